"""Each way to end a run, with long streams in flight: no turn is lost and no process is left."""

import json
import signal
import time
from typing import Any

import pytest
import summaries
from e2e_runs import (
    SOAK,
    STREAM_S,
    TOKENS,
    TOO_LONG_S,
    TOO_MANY_TOKENS,
    FinishedRun,
    Fleet,
    RunCase,
    Sandbox,
    check_counts,
    check_files,
    check_run,
    check_turns_across_drain,
    mark,
    run_cases,
    scenario,
    wait_for_measure_phase,
    wait_until,
)
from simulator_process import Simulator

from inferload.results.documents.typed_documents import document_of

pytestmark = pytest.mark.timeout(5400 if SOAK else 300)

USERS = 4
MODES = ("local", "processes", "by_hand")
SIGNALS = {
    "sigint": (signal.SIGINT, False),
    "sigint_to_all": (signal.SIGINT, True),
    "sigterm": (signal.SIGTERM, False),
    "sigterm_to_all": (signal.SIGTERM, True),
    "sighup": (signal.SIGHUP, False),
    "sighup_to_all": (signal.SIGHUP, True),
}
CODES = {"sigint": 130, "sigterm": 143, "sighup": 143}
WAYS = ("run_time", "web", "scenario_end", *SIGNALS)
CASES = [(way, mode) for way in WAYS for mode in MODES]
if not SOAK:  # all ways in one process are in test_virtual_stops.py, SIGTERM to workers by hand in test_e2e_delivery.py
    CASES = [(way, "processes") for way in ("web", "sigint_to_all", "sigterm")]
GATES = ["failed_ratio < 0.5", "p50(ttft_ms) < 60000", "p50(e2e_ms) < 60000"]  # all pass
LENGTHS = {"dist": "uniform", "min": TOKENS // 3, "max": TOKENS}  # so that some turns end before the stop


def streaming(simulator: Simulator, run_dir: Any) -> None:
    """Wait until every user has a stream in flight, and a first turn has ended."""

    def full() -> bool:
        counts = simulator.stats()["requests"]
        return bool(counts["running"] == USERS and counts["finished"] > 1)

    wait_for_measure_phase(run_dir)
    wait_until(full, "streams of all users")


def finished(sandbox: Sandbox, fleet: Fleet, simulator: Simulator, **seen: Any) -> FinishedRun:
    code = fleet.exit_code()
    return FinishedRun(sandbox.run_dir, code, fleet.text, simulator.stats()["requests"], seen)


def stop(sandbox: Sandbox, way: str, mode: str) -> FinishedRun:
    """Run, and end the run in this way."""
    simulator = sandbox.simulator()
    stop_s = round(STREAM_S * 0.8)
    measure_s = stop_s if way == "scenario_end" else 300
    file = scenario(
        sandbox.folder, workload__output_tokens=LENGTHS, arrivals__users=USERS, phases__measure_s=measure_s, gates=GATES
    )
    words = ["--host", simulator.url, "--scenario", str(file)]
    words += ["-t", f"{stop_s}s"] if way == "run_time" else []
    fleet = sandbox.fleet(mode, *words, "--on-invalid", "warn", web=way == "web", report=reported(way, mode))
    if way == "web":
        web_stop(fleet, simulator, sandbox)
    elif way in SIGNALS:
        streaming(simulator, sandbox.run_dir)
        fleet.signal(*SIGNALS[way])
    return finished(sandbox, fleet, simulator)


def reported(way: str, mode: str) -> bool:
    """Return True if the run writes a report."""
    return (way, mode) == ("sigterm", "processes")


def web_stop(fleet: Fleet, simulator: Simulator, sandbox: Sandbox) -> None:
    fleet.wait_for_page()
    answer = fleet.post("/swarm", user_count=USERS, spawn_rate=50)
    assert answer["success"], answer
    streaming(simulator, sandbox.run_dir)
    assert fleet.press_stop()
    fleet.outcome()
    fleet.signal(signal.SIGINT, whole_group=False)


@run_cases(stop, *CASES)
def test_turns_in_flight_complete_at_each_kind_of_stop(ended: FinishedRun, run_case: RunCase) -> None:
    way, mode = run_case.arguments
    check_files(ended.run_dir)
    assert (ended.run_dir / "report.html").exists() == reported(way, mode)
    summary = ended.summary
    check_counts(ended)
    check_turns_across_drain(ended, 1)
    assert ended.simulator_stats is not None
    assert ended.simulator_stats["aborted"] == 0  # no stream was cut
    assert summary["turns"]["by_phase"]["all"]["unfinished"] == 0
    assert summary["turns"]["by_phase"]["all"]["failed"] == 0
    code = CODES.get(way.removesuffix("_to_all"), 0)
    assert ended.code == summary["outcome"]["exit_code"] == code, ended.text
    assert (mark(ended.run_dir, "stop") is None) == (way in ("run_time", "scenario_end"))


def twice(sandbox: Sandbox, mode: str, to_all: bool) -> FinishedRun:
    """Send SIGINT twice, the second one in the drain, with streams that do not end by then."""
    simulator = sandbox.simulator()
    file = scenario(sandbox.folder, workload__output_tokens=TOO_MANY_TOKENS, arrivals__users=USERS)
    fleet = sandbox.fleet(mode, "--host", simulator.url, "--scenario", str(file))
    wait_for_measure_phase(sandbox.run_dir)
    tokens = "vllm:generation_tokens_total"
    wait_until(lambda: simulator.stats()["requests"]["running"] == USERS, "streams of all users")
    before = simulator.metric(tokens)
    wait_until(lambda: simulator.metric(tokens) > before + 10 * USERS, "tokens of all streams")
    fleet.signal(signal.SIGINT, to_all)
    fleet.master.wait_for_line("draining")
    pressed_s = time.monotonic()
    fleet.signal(signal.SIGINT, to_all)
    return finished(sandbox, fleet, simulator, took_s=time.monotonic() - pressed_s)


@run_cases(
    twice, ("processes", True), *SOAK * (("local", True), ("processes", False), ("by_hand", False), ("by_hand", True))
)
def test_a_second_ctrl_c_aborts_the_turns_in_flight(ended: FinishedRun) -> None:
    check_run(ended)
    summary = ended.summary
    assert (
        summary["turns"]["by_phase"]["all"] | {"sent": USERS, "ok": 0, "failed": 0, "unfinished": USERS}
        == (summary["turns"]["by_phase"]["all"])
    )
    assert {reason["code"] for reason in summary["verdict"]["reasons"]} >= {"unfinished_drain", "no_turns"}
    assert summary["verdict"]["measurement"] == "invalid"
    assert ended.code == 3
    assert mark(ended.run_dir, "abort") is not None
    assert all(row["event_ns"] and row["failure"] == "unfinished" for row in ended.turns)
    longest_s = max(row["closed_ns"] - row["sent_ns"] for row in ended.turns) / 1e9
    assert ended.seen["took_s"] < TOO_LONG_S - longest_s, "it waited for the streams"


@pytest.mark.parametrize("name", ["summary.json", "marks.jsonl"])
def test_the_check_of_files_can_fail(tmp_path: Any, name: str) -> None:
    for folder in ("turns", "server_metrics"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "w0-all.parquet").write_text("x")
    from e2e_runs import FILES

    documents = {each: {} for each in FILES} | {"summary.json": document_of(summaries.summary({}))}
    for each in FILES - {name}:
        (tmp_path / each).write_text(json.dumps(documents[each]))
    with pytest.raises(AssertionError):
        check_files(tmp_path)
    (tmp_path / name).write_text(json.dumps(documents[name]))
    check_files(tmp_path)
    (tmp_path / ".run-token").write_text("x")
    with pytest.raises(AssertionError):
        check_files(tmp_path)


# A locustfile whose workers take longer to prepare a run than the master waits for them.
SLOW_TO_PREPARE = """
import os

import gevent

from inferload.run.worker.worker_run import WorkerRun


def start(run):
    with open(f"preparing-{os.getpid()}.txt", "w"):
        pass
    gevent.sleep(100)


WorkerRun.start = start
"""


def stopped_while_preparing(sandbox: Sandbox, mode: str, whole_group: bool) -> FinishedRun:
    """Send SIGINT to the master or to all processes, or end a worker, while the workers prepare the run."""
    words = ("--host", sandbox.simulator().url, "--scenario", str(scenario(sandbox.folder)))
    fleet = sandbox.fleet(mode, *words, locustfile=sandbox.locustfile(SLOW_TO_PREPARE))
    wait_until(lambda: len([*sandbox.folder.glob("preparing-*.txt")]) == 2, "the preparation")
    if mode == "by_hand":
        fleet.by_hand[0].send(signal.SIGTERM)
    else:
        fleet.signal(signal.SIGINT, whole_group)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(stopped_while_preparing, ("processes", True), ("by_hand", False))
def test_a_signal_during_the_preparation_of_the_workers_ends_it(ended: FinishedRun, run_case: RunCase) -> None:
    by_hand = run_case.arguments[0] == "by_hand"
    reason = "disconnected before the load" if by_hand else "stopped early by Ctrl-C before the load"
    assert reason in ended.text
    assert ended.code == (2 if by_hand else 130)
    assert not ended.run_dir.exists()


def changed_in_the_drain(sandbox: Sandbox) -> FinishedRun:
    """Try to change the load of an open loop after its planned end, with streams that are longer than the drain."""
    arrivals = {"kind": "poisson", "sessions_per_s": 4}
    file = scenario(
        sandbox.folder,
        arrivals=arrivals,
        workload__output_tokens=TOO_MANY_TOKENS,
        phases={"measure_s": 2, "drain_s": 8},
    )
    fleet = sandbox.fleet(
        "processes", "--host", sandbox.simulator("--itl-ms", "500").url, "--scenario", str(file), web=True, workers=1
    )
    fleet.wait_for_page()
    assert fleet.post("/swarm", user_count=4, spawn_rate=4)["success"]
    wait_for_measure_phase(sandbox.run_dir)
    wait_until(lambda: mark(sandbox.run_dir, "phase", "drain"), "the drain")
    steer = fleet.get_json("/inferload/live")["steer"]
    answer = fleet.post("/swarm", user_count=8, spawn_rate=4)
    fleet.outcome()
    return sandbox.interrupted(fleet, seen={"steer": steer, "answer": answer})


@run_cases(changed_in_the_drain, ())
def test_the_load_does_not_change_in_a_drain_whose_limit_is_reported(ended: FinishedRun) -> None:
    assert ended.seen["steer"] is None
    assert ended.seen["answer"]["success"] is False
    assert ended.seen["answer"]["message"] == "the run is draining; start again after its end"
    assert mark(ended.run_dir, "users") is None
    check_run(ended)
    sent = ended.summary["turns"]["by_phase"]["all"]["sent"]
    assert ended.summary["turns"]["by_phase"]["all"]["unfinished"] == sent > 0
    reason = next(reason for reason in ended.summary["verdict"]["reasons"] if reason["code"] == "unfinished_drain")
    assert reason["value"] == 1.0
    assert f"{sent} of {sent} turns" in reason["text"]
    assert ended.code == 3
    assert mark(ended.run_dir, "unfinished_drain") is not None
