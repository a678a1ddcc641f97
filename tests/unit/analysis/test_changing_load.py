"""Diagnosis of a load that changes: when the queue began, and no mean over different loads as the limit of the server."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic_run
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.data import timeline
from inferload.analysis.data.frame import Frame
from inferload.analysis.data.frames import PhaseSpan, RunFrames, load
from inferload.analysis.diagnosis.diagnose import Diagnoses, brief, causes, diagnose, document
from inferload.analysis.diagnosis.measured_load import MeasuredLoad, Unmet

from inferload.base.numbers import time_of_day
from inferload.base.rundir import Mark
from inferload.figures.pages import metric_names as names
from inferload.figures.pages.page_kinds import VLLM
from inferload.results.open_run import OpenRun
from inferload.servers.bottleneck.evidence import Scrapes, WindowEvidence
from inferload.servers.series import MetricSeries, ServerSeries

SLOTS = 8
LASTS_S = 120
TURNS_PER_S = 2.0  # of a slot

# Users at each second.
LOADS = {
    "ramp": np.linspace(1, 24, LASTS_S).astype(int),
    "steps": np.repeat([4, 7, 20], LASTS_S // 3),
    "spike": np.repeat([4, 30, 4], [40, 40, 40]),
    "diurnal": np.round(10 - 8 * np.cos(np.arange(LASTS_S) / LASTS_S * 2 * np.pi)).astype(int),
    "by hand": np.repeat([2, 12, 5, 16], [30, 30, 30, 30]),
    "users that die": np.repeat([14, 3], [60, 60]),
}


def run_of(tmp_path: Path, users: np.ndarray, until_s: int = LASTS_S, **summary: Any) -> tuple[RunFrames, Frame]:
    """A closed loop on a server with eight slots, and its timeline. `until_s`: time at which the server dies."""
    well = {"failed": 0, "by_failure": {}, "first_errors": [], "by_phase": {}}
    arrivals = {"kind": "closed", "users": int(users.max()), "spawn_per_s": 10}
    scenario = {"schema": 1, "name": "chat", "workload": {"kind": "chat"}, "arrivals": arrivals}
    known = synthetic_run.SUMMARY | {"turns": synthetic_run.SUMMARY["turns"] | well, "growth": None} | summary
    recorded = {"name": "chat", "text": json.dumps(scenario)}
    run = load(OpenRun(synthetic_run.write(tmp_path / "run", known, scenario=recorded)))
    seconds = np.arange(len(users))
    run = replace(
        run,
        phases=(PhaseSpan("measure", 0.0, float(len(users))),),
        servers={synthetic_run.TARGET: server_of(run.start_wall_ns, users[:until_s])},
        users=Frame({"t_s": seconds.astype(float), "users": users.astype(float)}),
    )
    busy, failed = np.where(seconds < until_s, np.minimum(users, SLOTS), 0), np.where(seconds < until_s, 0, users)
    ended = {"turns_ended": busy * TURNS_PER_S + failed, "turns_failed": failed, "output_tok": busy * TURNS_PER_S * 20}
    return run, timeline.build(run)[: len(users)].with_columns(ended)


@pytest.fixture(scope="module", params=list(LOADS))
def diagnosed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[np.ndarray, RunFrames, Diagnoses]:
    """Each load with its run and diagnosis."""
    users = LOADS[request.param]
    run, table = run_of(tmp_path_factory.mktemp("changing"), users)
    return users, run, diagnose(run, table)


def server_of(start_wall_ns: int, users: np.ndarray) -> ServerSeries:
    """One scrape per second."""
    gauges = {
        names.RUNNING: np.minimum(users, SLOTS),
        names.WAITING: np.maximum(users - SLOTS, 0),
        names.KV_CACHE_USAGE: users / 1000,
    }
    metrics = {name: (MetricSeries({"engine": "0"}, values.astype(float)),) for name, values in gauges.items()}
    wall_ns = start_wall_ns + np.arange(len(users), dtype=np.int64) * synthetic_run.NS
    return ServerSeries(synthetic_run.TARGET, wall_ns, metrics, np.zeros(len(users), dtype=bool), VLLM)


def first_queue(users: np.ndarray) -> int:
    return int(np.flatnonzero(users > SLOTS)[0])


def all_text(diagnoses: Diagnoses) -> str:
    return "\n".join(line for cause in causes(diagnoses) for line in cause.sentences)


def test_the_diagnosis_says_from_which_load_and_time_on_requests_waited(
    diagnosed: tuple[np.ndarray, RunFrames, Diagnoses],
) -> None:
    users, run, diagnoses = diagnosed
    began_s = first_queue(users)
    began = (
        f"from {users[began_s]} users on, {time_of_day(run.start_wall_ns / 1e9 + began_s)}"
        if began_s
        else "from the start of the measurement"
    )
    later = began_s + np.flatnonzero(users[began_s:] <= SLOTS)
    ended = f" to {time_of_day(run.start_wall_ns / 1e9 + later[0])}" if len(later) else ""
    ended += " and again later" if len(later) and (users[later[0] :] > SLOTS).any() else ""
    assert re.match(rf"(probably )?queue-bound {began}{ended}: ", brief(diagnoses))
    assert f"F{began[1:]}{ended}." in all_text(diagnoses)
    (cause,) = [cause for cause in causes(diagnoses) if cause.target == synthetic_run.TARGET]
    assert [row[2] for row in cause.history if "queue-bound" in row[2]]
    history = document(diagnoses)["servers"][0]["history"]
    assert next(entry["start_s"] for entry in history if entry["code"] == "queue-bound") == began_s
    assert history[0]["start_s"] == 0
    assert history[-1]["end_s"] == len(users)


def test_a_limit_of_the_server_is_from_a_time_at_one_load(diagnosed: tuple[np.ndarray, RunFrames, Diagnoses]) -> None:
    users, _, diagnoses = diagnosed
    text = all_text(diagnoses)
    stated = re.search(r"hroughput at (\d+) users \((\S+) turns/s, (\S+) output tok/s, from (\d+) to (\d+) s\)", text)
    if stated is None:
        assert users is LOADS["ramp"] or users is LOADS["diurnal"]
        assert "o throughput is stated as the limit of the server" in text
        return
    at, turns, tokens, begin, end = (float(value) for value in stated.groups())
    assert set(users[int(begin) : int(end)]) == {at}
    assert (turns, tokens) == (SLOTS * TURNS_PER_S, SLOTS * TURNS_PER_S * 20)


def test_a_constant_load_has_no_begin_of_the_queue(tmp_path: Path) -> None:
    diagnoses = diagnose(*run_of(tmp_path, np.full(60, 20)))
    assert brief(diagnoses) == "probably queue-bound: 8 running, 12 waiting on average"
    assert "Throughput at 20 users (16 turns/s, 320 output tok/s" in all_text(diagnoses)
    assert not any(cause.history for cause in causes(diagnoses))


@pytest.mark.parametrize(
    ("kind", "queued_s"), [("ramp", 8), ("ramp", 60), ("steps", 8), ("steps", 30), ("users that die", 20)]
)
def test_a_server_that_dies_later_does_not_erase_the_cause(kind: str, queued_s: int, tmp_path: Path) -> None:
    users = LOADS[kind]
    dies_s = first_queue(users) + queued_s
    stopped = [{"target": synthetic_run.TARGET, "at_s": float(dies_s), "by_failure": {"connect": 40}}]
    failed = {"failed": 40, "by_failure": {"connect": 40}, "first_errors": [], "by_phase": {}}
    summary = {"turns": synthetic_run.SUMMARY["turns"] | failed, "stopped_answering": stopped}
    run, table = run_of(tmp_path, users, dies_s, **summary)
    diagnoses = diagnose(run, table)
    died = time_of_day(run.start_wall_ns / 1e9 + dies_s - 1)  # at the last scrape
    began = (
        f"from {users[first_queue(users)]} users on, " if first_queue(users) else "from the start of the measurement "
    )
    assert re.match(rf"failures: .*; (probably )?queue-bound {began}.*to {died}: ", brief(diagnoses))
    assert "no rule holds" not in all_text(diagnoses)
    history = document(diagnoses)["servers"][0]["history"]
    assert [entry["code"] for entry in history][-2:] == ["queue-bound", None]
    assert history[-1]["start_s"] == dies_s - 1  # the last scrape


@pytest.mark.parametrize("lost", ["server", "worker"])
def test_no_capacity_is_stated_if_a_part_of_the_load_or_the_server_was_lost(lost: str, tmp_path: Path) -> None:
    rates = dict.fromkeys(("growth_per_s", "low_per_s", "high_per_s"), 8.0)
    growth = {"lasts_s": 60.0, "offered_per_s": 12.0, "ended_per_s": 4.0, "step": None, "state": "overloaded", **rates}
    run, table = run_of(tmp_path, LOADS["steps"], 40 if lost == "server" else LASTS_S, growth=growth)
    run = replace(run, marks=[Mark(wall_ns=0, kind="worker_lost", t_s=9.0)] if lost == "worker" else [])
    text = all_text(diagnose(run, table))
    assert "12 turns/s offered, 4/s ended in 60 s" in text
    assert "the capacity for turns" not in text.lower()


profiles = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=8)


@given(profiles, st.floats(0, 20))
def test_a_throughput_is_of_one_load_with_a_queue(profile: list[tuple[int, int]], start_s: float) -> None:
    users = np.repeat([float(users) for users, _ in profile], [seconds for _, seconds in profile])
    ended = np.minimum(users, SLOTS) * TURNS_PER_S
    measured = MeasuredLoad(users, ended, ended, 0 * users, 10 * ended)
    at_s = np.arange(len(users), dtype=float)
    columns = (np.minimum(users, SLOTS), np.maximum(users - SLOTS, 0), 0 * users, 0 * users, 0 * users)
    evidence = WindowEvidence(0.0, float(len(users)), "http://x", Scrapes(at_s, *columns))
    found = measured.saturated([evidence], start_s, float(len(users)))
    longest = max((seconds for users, seconds in profile if users > SLOTS), default=0)
    if isinstance(found, Unmet):
        assert start_s > 0 or longest < 15  # ten seconds, two on each side of a change, and one after the first end
        return
    (load_there,) = set(users[found.start_s : found.end_s])
    assert load_there > SLOTS
    assert found.load == f"{load_there:.0f} users"
    assert found.turns_per_s == pytest.approx(SLOTS * TURNS_PER_S)


@dataclass(frozen=True)
class Seconds:
    """Load and scrapes, one value per second. `users` repeat. `queued`: share of the scrapes with a queue."""

    lasts_s: int = 24
    users: tuple[int, ...] = (6,)
    failures: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    queued: float = 1.0
    turns_per_s: float = 4.0

    def load(self) -> MeasuredLoad:
        seconds = np.arange(self.lasts_s, dtype=float)
        ended = np.full(self.lasts_s, self.turns_per_s)
        users = np.resize(np.array(self.users, dtype=float), self.lasts_s)
        return MeasuredLoad(users, ended, ended, np.isin(seconds, self.failures).astype(float), ended)

    def server(self) -> WindowEvidence:
        at_s = np.array([second for second in range(self.lasts_s) if second not in self.silent], dtype=float)
        waiting = (np.floor((at_s + 1) * self.queued) > np.floor(at_s * self.queued)).astype(float)
        return WindowEvidence(0.0, self.lasts_s, "http://x", Scrapes(at_s, waiting, waiting, waiting, waiting, waiting))


UNMET = {
    Unmet.LENGTH: Seconds(lasts_s=8),
    Unmet.CONSTANT_LOAD: Seconds(users=tuple(range(6, 30))),
    Unmet.NO_FAILURE: Seconds(lasts_s=14, failures=(7,)),
    Unmet.SCRAPES: Seconds(silent=tuple(range(8, 15))),
    Unmet.QUEUE: Seconds(queued=0.5),
    Unmet.TURNS: Seconds(turns_per_s=0.5),
}


@pytest.mark.parametrize("unmet", list(UNMET))
def test_the_condition_that_is_not_met_is_named(unmet: Unmet) -> None:
    seconds = UNMET[unmet]
    assert seconds.load().saturated([seconds.server()], 0.0, seconds.lasts_s) is unmet


a_few = st.lists(st.integers(0, 40), max_size=4).map(tuple)


@given(
    st.builds(
        Seconds,
        st.integers(2, 40),
        st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
        a_few,
        a_few,
        st.floats(0, 1),
        st.floats(0.1, 4),
    )
)
def test_a_condition_is_named_only_if_it_is_not_met(seconds: Seconds) -> None:
    found = seconds.load().saturated([seconds.server()], 0.0, seconds.lasts_s)
    constant = len(set(seconds.users[: seconds.lasts_s])) == 1
    violated = {
        Unmet.LENGTH: seconds.lasts_s <= 10,
        Unmet.CONSTANT_LOAD: not constant,
        Unmet.NO_FAILURE: bool(seconds.failures) or not constant,
        Unmet.SCRAPES: bool(seconds.silent),
        Unmet.QUEUE: seconds.queued < 0.9,
        Unmet.TURNS: seconds.turns_per_s < 2,
    }
    if isinstance(found, Unmet):
        assert violated[found]
    else:
        assert found.turns_per_s == pytest.approx(seconds.turns_per_s)


def test_an_open_loop_has_a_rate_as_its_load() -> None:
    sent = np.repeat([2.0, 6.0], 30)
    measured = MeasuredLoad(None, sent, sent, 0 * sent, 0 * sent)
    assert [measured.at(at_s) for at_s in (0.5, 30.0, 45.0)] == ["2 turns/s", "4 turns/s", "6 turns/s"]
    assert measured.between(0.0, 60.0) == "2 to 6 turns/s"
    assert measured.saturated([], 0.0, 60.0) is Unmet.USERS_KNOWN


@pytest.mark.parametrize(
    ("users", "text"), [([np.nan, 0, 10, 10], "10 users"), ([0, 1, 1], "1 user"), ([np.nan], None)]
)
def test_seconds_before_the_first_report_of_users_are_no_load(users: list[float], text: str | None) -> None:
    values = np.array(users, dtype=float)
    assert MeasuredLoad(values, values, values, values, values).between(0.0, len(users)) == text
