"""Runs on a virtual clock: its order, the load, the counts, and agreement with a run in real time."""

import subprocess
import sys
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import recomputed
import scrapes
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from inferload.deploy.sweep import definition
from inferload.deploy.sweep.definition import Sweep
from inferload.deploy.sweep.journal import SweepJournal
from inferload.deploy.sweep.plan import starts
from inferload.deploy.sweep.runner import SweepRunner
from inferload.deploy.variants.settings import changed
from inferload.deploy.variants.variant import named
from inferload.deploy.virtual import refused
from inferload.deploy.virtual.clock import VirtualClock
from inferload.deploy.virtual.run import VirtualRun
from inferload.deploy.virtual.server import VirtualStart
from locust_process import summary_of, turns_of

from inferload.base import rundir
from inferload.base.clock import Anchor
from inferload.base.errors import UsageError
from inferload.campaign.journal import Entry, RunEnded
from inferload.figures import metric_names as names
from inferload.results.cost import Prices
from inferload.results.open_run import OpenRun
from inferload.scenario import scenario as scenarios
from inferload.turns.tally import count_faults

MAKE = pytest.TempPathFactory
WORKLOAD = {"kind": "chat", "turns": 2, "prompt_tokens": 50, "output_tokens": 6, "think_time_s": 0.2}
CLOSED = {"kind": "closed", "users": 3, "spawn_per_s": 3}
KIND = {"schema": 1, "name": "virtual", "workload": WORKLOAD, "arrivals": CLOSED, "phases": {"measure_s": 4}}


def scenario(**changes: Any) -> scenarios.Scenario:
    return scenarios.from_data({**KIND, **changes}, "virtual.yaml")


def started(variant: str = "t4-prefix-caching", *changes: str) -> VirtualStart:
    return VirtualStart(changed(named(variant), changes), Prices())


def made(start: VirtualStart, load: scenarios.Scenario, folder: Path) -> dict[str, Any]:
    VirtualRun(start, load, "virtual.yaml", {}).perform(folder)
    return summary_of(folder)


def in_flight(rows: list[dict[str, Any]]) -> int:
    """Return the most turns in flight at any time."""
    changes = sorted([(row["sent_ns"], 1) for row in rows] + [(row["closed_ns"], -1) for row in rows])
    return max(accumulate(change for _, change in changes), default=0)


@given(st.lists(st.integers(0, 1000), max_size=30))
def test_calls_are_made_in_order_and_time_never_decreases(instants: list[int]) -> None:
    clock, seen = VirtualClock(Anchor(10**18, 0)), []

    def sleeper(at_ns: int) -> Callable[[], None]:
        def run() -> None:
            clock.sleep_until(at_ns)
            seen.append((clock.now_ns(), at_ns))
            clock.together([lambda: clock.sleep_until(at_ns + 5), lambda: clock.sleep_until(at_ns + 3)])
            seen.append((clock.now_ns(), at_ns + 5))

        return run

    for at_ns in instants:
        clock.spawn(sleeper(at_ns))
    while clock.next_ns is not None:
        clock.call_next()
    assert len(seen) == 2 * len(instants)
    assert [now_ns for now_ns, _ in seen] == sorted(now_ns for now_ns, _ in seen)
    assert all(now_ns == at_ns for now_ns, at_ns in seen)


def test_the_clock_does_not_go_back() -> None:
    clock = VirtualClock(Anchor(0, 100))
    with pytest.raises(ValueError, match="before"):
        clock.advance(99)


@settings(max_examples=5, deadline=None, phases=(Phase.explicit, Phase.generate))  # shrinking takes minutes
@given(
    st.fixed_dictionaries(
        {
            "users": st.integers(1, 8),
            "turns": st.integers(1, 3),
            "output_tokens": st.integers(1, 20),
            "sessions": st.one_of(st.none(), st.integers(1, 12)),
            "warmup_s": st.sampled_from([0, 1]),
        }
    )
)
def test_a_closed_loop_keeps_its_counts(tmp_path_factory: MAKE, shape: dict[str, Any]) -> None:
    users, output_tokens, sessions = shape["users"], shape["output_tokens"], shape["sessions"]
    load = scenario(
        workload={**WORKLOAD, "turns": shape["turns"], "output_tokens": output_tokens},
        arrivals={"kind": "closed", "users": users, "spawn_per_s": users},
        phases={"measure_s": 3, "sessions": sessions, "warmup_s": shape["warmup_s"]},
    )
    folder = tmp_path_factory.mktemp("closed") / "run"
    start = started()
    summary = made(start, load, folder)
    rows = turns_of(folder)
    assert rows
    assert in_flight(rows) <= users
    for row in rows:
        instants = [
            row[f"{name}_ns"] for name in ("planned", "sent", "written", "first_event", "first", "last", "closed")
        ]
        assert instants == sorted(instants)
        assert row["output_tokens"] == output_tokens
    if sessions is not None:
        begun = {row["session_id"] for row in rows if row["phase"] == "measure" and not row["turn_index"]}
        assert len(begun) <= sessions
    assert count_faults(OpenRun(folder).counts.tallies) == []
    assert summary["turns"]["by_phase"]["all"]["sent"] == len(rows)
    generated = scrapes.table_of(folder, [names.GENERATION_TOKENS])["value"].to_pylist()
    assert generated[-1] - generated[0] == sum(row["output_tokens"] for row in rows)


def test_the_summary_is_that_of_the_turns(tmp_path: Path) -> None:
    summary = made(started(), scenario(phases={"measure_s": 8, "warmup_s": 2}), tmp_path / "run")
    manifest = rundir.read_object(tmp_path / "run" / rundir.MANIFEST)
    recomputed.check(summary, manifest, turns_of(tmp_path / "run"), {})
    assert summary["verdict"]["measurement"] == "valid"
    assert summary["run"]["stands_for"] == "Qwen3-4B on NVIDIA T4 (virtual clock)"
    assert manifest["targets"][0]["stands_for"] == summary["run"]["stands_for"]


def test_equal_seeds_give_equal_runs_and_starts_of_a_seed_differ(tmp_path: Path) -> None:
    def ttft_ms(name: str, seed: int) -> float:
        start = VirtualStart(named("t4-baseline"), Prices(), seed)
        mean: float = made(start, scenario(), tmp_path / name)["latency"]["ttft_ms"]["mean"]
        return mean

    assert ttft_ms("a", 1) == ttft_ms("b", 1) != ttft_ms("c", 2)


STEPS = {"kind": "steps", "steps": [{"sessions_per_s": 1, "for_s": 2}, {"sessions_per_s": 3, "for_s": 2}]}


@pytest.mark.parametrize(
    "arrivals",
    [
        {"kind": "poisson", "sessions_per_s": 3},
        {"kind": "constant", "sessions_per_s": 4, "max_in_flight": 1},
        {"kind": "constant", "sessions_per_s": 4, "max_in_flight": 1, "when_full": "drop"},
        {
            "kind": "constant",
            "profile": {
                "kind": "steps",
                "steps": [{"sessions_per_s": 1, "for_s": 2}, {"sessions_per_s": 3, "for_s": 2}],
            },
        },
    ],
    ids=lambda arrivals: "-".join(map(str, arrivals)),
)
def test_an_open_loop_keeps_its_counts(arrivals: dict[str, Any], tmp_path: Path) -> None:
    load = scenario(arrivals=arrivals, phases={"measure_s": 4, "warmup_s": 1})
    summary = made(started(), load, tmp_path / "run")
    rows = turns_of(tmp_path / "run")
    assert count_faults(OpenRun(tmp_path / "run").counts.tallies) == []
    assert len(rows) == summary["turns"]["by_phase"]["all"]["sent"] > 0
    if "max_in_flight" in arrivals:
        assert in_flight(rows) == 1
    assert (summary["sessions"]["at_limit"] > 0) == ("max_in_flight" in arrivals)


def test_turns_in_flight_at_the_end_of_the_drain_are_unfinished(tmp_path: Path) -> None:
    load = scenario(workload={**WORKLOAD, "output_tokens": 500}, phases={"measure_s": 2, "drain_s": 1})
    start = started()
    summary = made(start, load, tmp_path / "run")
    assert summary["turns"]["by_phase"]["all"]["unfinished"] == 3
    assert count_faults(OpenRun(tmp_path / "run").counts.tallies) == []
    start.empty_prefix_cache()  # the server has forgotten the turns
    again = made(start, scenario(), tmp_path / "again")
    assert again["turns"]["by_phase"]["all"]["unfinished"] == 0


def test_turns_can_be_cancelled_and_sessions_can_fork(tmp_path: Path) -> None:
    agent = scenarios.load("agent-subagents").as_data()["workload"]
    cancel = scenarios.load("agent-tools").as_data()["workload"]["cancel"]
    load = scenario(
        workload={**agent, "cancel": {**cancel, "share": 1}},
        phases={"measure_s": 50},
        arrivals={"kind": "closed", "users": 3, "spawn_per_s": 3},
    )
    summary = made(started("llama31-base", "max-model-len=70000"), load, tmp_path / "run")
    assert summary["turns"]["by_phase"]["all"]["failed"] == 0
    assert summary["turns"]["by_phase"]["all"]["cancelled"] > 0
    assert any("/" in row["session_id"] for row in turns_of(tmp_path / "run"))
    assert count_faults(OpenRun(tmp_path / "run").counts.tallies) == []


def test_a_timeout_ends_a_turn(tmp_path: Path) -> None:
    load = scenario(
        workload={**WORKLOAD, "output_tokens": 500}, request={"timeouts": {"turn_s": 1}}, phases={"measure_s": 5}
    )
    summary = made(started(), load, tmp_path / "run")
    assert set(summary["turns"]["by_phase"]["all"]["by_failure"]) == {"timeout_turn"}


@pytest.mark.parametrize("keep", [True, False])
def test_the_prefix_cache_lasts_for_a_start(keep: bool, tmp_path: Path) -> None:
    start, load = started(), scenario(cache={"isolate": "none"}, phases={"measure_s": 60, "sessions": 4})
    load = load.changed({"workload.turns": 1, "workload.prompt_tokens": 200})
    first = made(start, load, tmp_path / "first")
    if not keep:
        start.empty_prefix_cache()
    second = made(start, load, tmp_path / "second")
    hits = [summary["servers"][0]["prefix_cache_hit_rate"] for summary in (first, second)]
    assert hits[0] == 0
    assert (hits[1] > 0.5) == keep


TWO_USERS = {"kind": "steps", "steps": [{"users": 1, "for_s": 1}, {"users": 2, "for_s": 1}]}
REFUSED = {
    "phases.warmup_turns": {"phases": {"measure_s": 4, "warmup_s": 4, "warmup_turns": 2}},
    "abort_on": {"abort_on": ["failed_ratio > 0.5 for 5s"]},
    "cache.arm both": {"cache": {"arm": "both"}},
    "request.endpoint responses": {"request": {"endpoint": "responses"}},
    "request.models": {"request": {"models": [{"name": "a", "share": 1}]}},
    "arrivals.profile": {
        "arrivals": {
            **CLOSED,
            "profile": {"kind": "steps", "steps": [{"users": 1, "for_s": 1}, {"users": 2, "for_s": 1}]},
        }
    },
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_the_clock_cannot_honour_is_refused_with_its_key(key: str) -> None:
    with pytest.raises(UsageError, match=f"x: {key}.* cannot be used with clock: virtual"):
        refused.check(scenario(**REFUSED[key]), "x")


def test_live_agents_are_refused() -> None:
    with pytest.raises(UsageError, match=r"workload\.kind live_agent"):
        refused.check(scenarios.load("agent-live"), "x")


def sweep(**changes: Any) -> Sweep:
    document = {
        "schema": 1,
        "name": "tiny",
        "engine": "simulator",
        "baseline": "t4-baseline",
        "scenarios": [{"scenario": "smoke", "set": ["phases={measure_s: 3}", "gates=[]"]}],
        "pairs": 2,
        "reports": False,
    }
    return Sweep.model_validate({**document, **changes})


@pytest.mark.parametrize("engine", ["vllm", "vllm-cpu"])
def test_the_clock_is_virtual_on_the_simulator_only(engine: str) -> None:
    with pytest.raises(UsageError, match=f"clock virtual needs engine simulator, not {engine}"):
        definition.check(sweep(engine=engine, clock="virtual"), "x")


def test_a_sweep_checks_its_scenarios() -> None:
    with pytest.raises(UsageError, match=r"scenario riddle: cache\.arm both"):
        definition.check(sweep(clock="virtual", scenarios=["riddle"]), "x")


def performed(planned: Sweep, folder: Path) -> SweepJournal:
    folder.mkdir()
    loads, journal = planned.loads(), SweepJournal(folder)
    SweepRunner(planned, folder, loads, journal, lambda text: None).perform(starts(planned, list(loads)))
    return journal


def test_a_sweep_on_a_virtual_clock_has_the_runs_of_its_plan(tmp_path: Path) -> None:
    journal = performed(sweep(clock="virtual"), tmp_path / "sweep")
    assert [entry.cause for entry in journal.runs] == [None, None]
    runs = [summary_of(tmp_path / "sweep" / entry.folder) for entry in journal.runs]
    assert len({run["run"]["seed"] for run in runs}) == 2
    assert all(run["window_s"] == 3 and run["turns"]["failed"] == 0 for run in runs)
    report = [sys.executable, "-m", "inferload", "report", str(tmp_path / "sweep" / journal.runs[0].folder)]
    assert subprocess.run(report, capture_output=True, check=False).returncode == 0
    assert "(virtual clock)" in (tmp_path / "sweep" / journal.runs[0].folder / rundir.REPORT_HTML).read_text()


@pytest.mark.parametrize("keep", [True, False])
def test_a_sweep_that_was_interrupted_has_the_results_of_one_that_was_not(keep: bool, tmp_path: Path) -> None:
    """The second run of a start depends on the first one by the prefix cache, which starts anew with the server."""
    same = {"scenario": "smoke", "set": ["phases={measure_s: 3}", "gates=[]", "cache.isolate=none"]}
    planned = sweep(clock="virtual", scenarios=[same], restart="once", keep_cache=keep)
    whole = performed(planned, tmp_path / "whole")
    folder = tmp_path / "interrupted"
    folder.mkdir()
    loads, journal = planned.loads(), InterruptedJournal(folder)
    runner = SweepRunner(planned, folder, loads, journal, lambda text: None)
    with pytest.raises(KeyboardInterrupt):
        runner.perform(starts(planned, list(loads)))
    again = SweepJournal(folder)
    assert len(again.runs) == 1
    SweepRunner(planned, folder, loads, again, lambda text: None).perform(starts(planned, list(loads)))
    assert [entry.folder for entry in again.runs] == [entry.folder for entry in whole.runs]
    for entry in whole.runs:
        one, other = (summary_of(tmp_path / name / entry.folder) for name in ("whole", "interrupted"))
        assert (one["latency"], one["servers"]) == (other["latency"], other["servers"])


class InterruptedJournal(SweepJournal):
    """Journal of a sweep that the user interrupts after its first run."""

    def write(self, entry: Entry) -> None:
        super().write(entry)
        if isinstance(entry, RunEnded):
            raise KeyboardInterrupt


def test_arguments_that_the_simulator_refuses_are_the_cause_of_each_run(tmp_path: Path) -> None:
    journal = performed(sweep(clock="virtual", set=["max-model-len=9999999"]), tmp_path / "sweep")
    assert len(journal.failures) == 2
    assert all("max-model-len" in str(entry.cause) for entry in journal.failures)


def test_a_run_on_a_virtual_clock_agrees_with_one_in_real_time(tmp_path: Path) -> None:
    """The same sessions and seeds; step times have noise, and a real run has delays of the machine."""
    load: dict[str, Any] = {
        "scenario": "agent-short-static",
        "set": [
            "workload.output_tokens=30",
            "arrivals={kind: constant, sessions_per_s: 3}",
            "phases={measure_s: 8, drain_s: 30}",
            "gates=[]",
        ],
    }
    runs = {}
    for clock in ("real", "virtual"):
        changes = {"baseline": "t4-prefix-caching", "scenarios": [load], "pairs": 1}
        journal = performed(sweep(clock=clock, **changes), tmp_path / clock)
        assert [entry.cause for entry in journal.runs] == [None]
        runs[clock] = tmp_path / clock / journal.runs[0].folder
    real, virtual = summary_of(runs["real"]), summary_of(runs["virtual"])
    assert real["turns"]["ok"] == virtual["turns"]["ok"] == 24
    for figure, within, machine_ms in (("tpot_ms", 0.05, 0), ("ttft_ms", 0.05, 10)):
        means = [summary["latency"][figure]["mean"] for summary in (virtual, real)]
        assert means[0] == pytest.approx(means[1], rel=within, abs=machine_ms)
    of_turns = [
        {row["turn_id"]: (row["input_tokens"], row["cached_tokens"], row["output_tokens"]) for row in turns_of(run)}
        for run in runs.values()
    ]
    assert of_turns[0] == of_turns[1]
    assert sum(cached for _, cached, _ in of_turns[1].values()) > 0
