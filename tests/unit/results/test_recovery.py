"""Time to recover after a mark, and attainment by phase."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import virtual
from e2e_runs import scenario
from hypothesis import given
from hypothesis import strategies as st

from inferload.base import rundir
from inferload.results.statistics.recovery import EndedTurns, Recovery, recoveries
from inferload.results.summarise.summarise import summarise

AT_S, END_S = 40.0, 120.0


def turns(rate: float, seed: int, down: tuple[float, float] | None = None, share: float = 1.0) -> EndedTurns:
    """Random turns of 1 s each on average; those in flight at an outage or planned in it are lost, or a share of them."""
    random = np.random.default_rng(seed)
    planned_s = np.sort(random.uniform(0, END_S, random.poisson(rate * END_S)))
    ended_s = planned_s + random.exponential(1.0, len(planned_s))
    lost = np.zeros(len(planned_s), dtype=bool)
    if down is not None:
        lost = (ended_s >= down[0]) & (planned_s < down[1]) & (random.uniform(size=len(lost)) < share)
        ended_s[lost] = np.maximum(planned_s, down[0])[lost] + 0.01
    return EndedTurns(planned_s, ended_s, ~lost, lost, lost)


def one(of: EndedTurns, at_s: float = AT_S, until_s: float = END_S) -> Recovery:
    (found,) = recoveries(of, [at_s], [until_s], [(0.0, END_S)])
    return found


@given(st.sampled_from([8.0, 30.0, 200.0]), st.integers(0, 10_000), st.floats(5, 30), st.sampled_from([0.7, 1.0]))
def test_an_outage_is_measured_to_its_resolution(rate: float, seed: int, lasts_s: float, share: float) -> None:
    of = turns(rate, seed, (AT_S, AT_S + lasts_s), share)
    found = one(of)
    assert found.state == "recovered"
    assert found.after_s is not None
    assert found.within_s is not None
    # A later window can be outside the prediction by chance: it holds back the recovery, by a few seconds at most.
    assert lasts_s - found.within_s <= found.after_s <= lasts_s + found.within_s + 8.0
    assert found.lost == int(of.lost[of.planned_s < AT_S + found.after_s].sum())


@pytest.mark.parametrize(("rate", "runs", "most"), [(8.0, 300, 8), (30.0, 300, 8), (200.0, 100, 4)])
def test_noise_is_no_change(rate: float, runs: int, most: int) -> None:
    states = Counter(one(turns(rate, seed)).state for seed in range(runs))
    assert states["no change seen"] >= runs - most - states["too few turns to say"]
    assert states["too few turns to say"] <= runs / 20


def test_what_cannot_be_said_is_not_said() -> None:
    assert recoveries(turns(30, 1), [], [], [(0.0, END_S)]) == []
    assert one(turns(0.5, 1)).state == "too few turns to say"
    assert one(turns(30, 1), at_s=5.0).state == "too few turns to say"  # too early for a reference
    assert one(turns(30, 1, (AT_S, END_S))).state == "not recovered"
    assert one(turns(30, 1, (AT_S, 60)), until_s=50.0).state == "not recovered"  # another mark came before
    assert one(turns(30, 1, (105, 110))).state == "no change seen"  # more than a minute after the mark
    joined, killed = recoveries(turns(30, 1, (50, 60)), [AT_S, 50.0], [END_S, END_S], [(0.0, END_S)])
    assert (joined.state, joined.lost) == ("no change seen", 0)  # what began after the next mark is not of this one
    assert killed.state == "recovered"
    parts = [(0.0, 20.0), (20.0, 60.0), (60.0, END_S)]  # in which the load is constant
    dropped = turns(30, 1)
    dropped = EndedTurns(
        *(
            each[(dropped.planned_s < 60) | (np.arange(len(dropped.planned_s)) % 3 == 0)]
            for each in (dropped.planned_s, dropped.ended_s, dropped.good, dropped.bad, dropped.lost)
        )
    )
    assert one(dropped).state == "not recovered"  # which is false: the load fell
    states = [each.state for each in recoveries(dropped, [22.0, AT_S, 62.0], [END_S] * 3, parts)]
    assert states == ["too few turns to say", "no change seen", "too few turns to say"]
    assert recoveries(dropped, [AT_S], [END_S], parts[2:])[0].state == "load not steady"
    soon, _ = recoveries(turns(30, 1), [AT_S, AT_S + 0.5], [END_S, END_S], [(0.0, END_S)])
    assert soon.state == "too few turns to say"
    none = np.zeros(0, dtype=bool)
    assert one(EndedTurns(np.zeros(0), np.zeros(0), none, none, none)).state == "too few turns to say"


def test_a_mark_within_an_outage_has_the_reference_before_it() -> None:
    first, second = recoveries(turns(30, 1, (AT_S, 55)), [AT_S, 45.0], [END_S, END_S], [(0.0, END_S)])
    assert first.after_s is not None
    assert second.after_s == pytest.approx(first.after_s - 5)
    assert second.lost < first.lost


def test_a_run_that_failed_for_ten_seconds_on_the_virtual_clock(tmp_path: Path) -> None:
    phases = {"warmup_s": 0, "measure_s": 70, "drain_s": 20}
    file = scenario(tmp_path, arrivals={"kind": "constant", "sessions_per_s": 8}, phases=phases)
    run = virtual.run(tmp_path, file, acts=[(30.0, {"kind": "status", "status": 400, "count": 80})])
    start = json.loads((run.run_dir / rundir.MARKS).read_text().splitlines()[0])
    for at_s, text, kind in ((30.0, "fault", "mark"), (55.0, "less", "worker_lost"), (62.0, "nothing", "mark")):
        line = {"wall_ns": start["wall_ns"] + round(at_s * 1e9), "kind": kind, "text": text}
        with (run.run_dir / rundir.MARKS).open("a") as marks:
            marks.write("\n" + json.dumps(line))
    before, fault, less, nothing = summarise(run.run_dir).by_phase
    assert (less.begins, less.recovery, less.lost) == ("less", None, None)  # the load changes: nothing recovers
    assert less.goodput_turns_per_s == pytest.approx(8, abs=0.5)
    assert (before.begins, before.met, before.recovery) == ("start", before.turns, None)
    assert fault.lost == 80
    assert fault.recovered_after_s == pytest.approx(10.0, abs=fault.recovered_within_s)
    assert fault.turns - fault.met == 80
    assert fault.interval is None  # one outage says nothing of how often they come
    assert before.interval is not None
    assert before.interval[0] < before.met / before.turns == before.interval[1]
    assert (nothing.recovery, nothing.lost) in {("no change seen", 0), ("too few turns to say", 0)}
