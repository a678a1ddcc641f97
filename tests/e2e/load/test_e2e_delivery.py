"""Runs whose workers share no directory with the master and send their turn records to it."""

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from e2e_runs import (
    FinishedRun,
    Fleet,
    Sandbox,
    check_complete,
    check_files,
    check_run,
    expected_exit_code,
    mark,
    marks_of,
    mostly_idle,
    run_cases,
    scenario,
    wait_for_measure_phase,
    wait_until,
)
from simulator_process import Simulator
from slow_disk import SlowDisk
from summaries import summarised
from test_e2e_master import check_orphans
from test_e2e_workers import due

RATE, SEED = 20, 7
ALONE_S = 6  # less than the 8 s without a heartbeat after which workers end a load by themselves
OLD_PARTS = 1  # of a worker before the one that it writes until it is killed
SLOW_S = 0.15  # of each write to a slow disk
UNSENT_S = 2.5  # between the arrival of a worker's part and its end


def start(
    sandbox: Sandbox, *options: str, workers: int = 2, env: dict[str, str] | None = None, **changes: Any
) -> tuple[Fleet, Simulator]:
    """Start a master and workers in separate directories. The second worker's has the master's name, which decides nothing."""
    simulator, file = sandbox.simulator(), scenario(sandbox.folder, **changes)
    sandbox.run_dir, same_name = sandbox.folder / "master" / "run", ("--run-dir", "/proc/self/cwd/run")
    words = ("--host", simulator.url, "--scenario", str(file), *same_name, *options)
    fleet = sandbox.fleet("by_hand", *words, workers=0, expected=workers, env=env, cwd="master")
    for number in range(workers):
        sandbox.join(fleet, *(same_name if number == 1 else ()), env=env, cwd=f"worker-{number}")
    return fleet, simulator


def apart(sandbox: Sandbox, *options: str) -> FinishedRun:
    """Run to the planned end; without options with slow disks of the master and of the workers, and little time for the drain."""
    disk = SlowDisk(sandbox.folder, sandbox.folder)
    disk.set(0 if options else SLOW_S)
    phases = {"warmup_s": 60, "warmup_turns": 30, "measure_s": 2 if options else 6, "drain_s": 2}
    words = ("--on-invalid", "warn", *options)
    fleet, simulator = start(sandbox, *words, env=disk.env, phases=phases, workload__output_tokens=4)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, simulator.stats()["requests"])


@mostly_idle
def decimated(sandbox: Sandbox) -> FinishedRun:
    """Of four workers end one by SIGTERM and one by SIGKILL, suspend one until it is lost, and start a late one."""
    arrivals = {"kind": "poisson", "sessions_per_s": RATE}
    message = ("--termination-message", str(sandbox.folder / "message.txt"))
    fleet, simulator = start(sandbox, *message, workers=4, arrivals=arrivals, workload__output_tokens=2, seed=SEED)
    run_dir = sandbox.run_dir
    wait_for_measure_phase(run_dir)
    names = {worker["pid"]: worker["name"] for worker in json.loads((run_dir / "run.json").read_text())["workers"]}
    ended, killed, paused, stays = (worker.process.pid for worker in fleet.by_hand)
    wait_until(lambda: len(parts_of(run_dir, names[killed])) >= OLD_PARTS, "old parts")
    sandbox.join(fleet, cwd="late")
    wait_until(lambda: mark(run_dir, "worker_late"), "the mark of the late worker")
    os.kill(ended, signal.SIGTERM)
    wait_until(lambda: mark(run_dir, "worker_left"), "the mark of the worker that left", 20)
    parts = len(parts_of(run_dir, names[killed]))
    wait_until(lambda: len(parts_of(run_dir, names[killed])) > parts, "a new part")
    time.sleep(UNSENT_S)  # turns that are not yet in a part
    killed_wall_ns = time.time_ns()
    os.kill(killed, signal.SIGKILL)
    os.kill(paused, signal.SIGSTOP)
    wait_until(lambda: len(marks_of_kind(run_dir, "worker_lost")) == 2, "marks of both losses", 20)
    os.kill(paused, signal.SIGCONT)
    finished = simulator.stats()["requests"]["finished"]
    wait_until(lambda: simulator.stats()["requests"]["finished"] > finished + RATE, "more turns")
    fleet.signal(signal.SIGINT, whole_group=False)
    code = fleet.exit_code(killed)
    roles = {"ended": names[ended], "killed": names[killed], "paused": names[paused], "stays": names[stays]}
    return FinishedRun(run_dir, code, fleet.text, seen=roles | {"killed_wall_ns": killed_wall_ns})


def marks_of_kind(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    return [entry for entry in marks_of(run_dir) if entry["kind"] == kind]


def parts_of(run_dir: Path, name: str) -> list[Path]:
    """Return the parts of a worker in the master's run directory."""
    return sorted((run_dir / "turns").glob(f"{name}-0*.parquet"))


def interrupted(sandbox: Sandbox) -> FinishedRun:
    """Send SIGTERM to all processes."""
    fleet, simulator = start(sandbox, workload__output_tokens=4)
    wait_for_measure_phase(sandbox.run_dir)
    wait_until(lambda: simulator.stats()["requests"]["finished"] > 20, "turns")
    fleet.signal(signal.SIGTERM, whole_group=True)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, simulator.stats()["requests"])


@mostly_idle
def orphaned(sandbox: Sandbox) -> FinishedRun:
    """Send SIGKILL to the master, sooner before the planned end than workers end a load by themselves."""
    fleet, simulator = start(sandbox, workload__output_tokens=4, phases__measure_s=ALONE_S)
    wait_for_measure_phase(sandbox.run_dir)
    wait_until(lambda: simulator.stats()["requests"]["finished"] > 8, "turns")
    os.kill(fleet.master.process.pid, signal.SIGKILL)
    assert [worker.exit_code(60) for worker in fleet.by_hand] == [3, 3]
    return FinishedRun(sandbox.run_dir, 0, fleet.text, simulator.stats()["requests"])


def workers_of(ended: FinishedRun) -> list[dict[str, Any]]:
    workers: list[dict[str, Any]] = ended.manifest["workers"]
    return workers


def left_by_workers(ended: FinishedRun, workers: str = "worker-*") -> list[Path]:
    """Return the turn files in the workers' directories."""
    return [*ended.run_dir.parent.parent.glob(f"{workers}/**/*.parquet")]


@run_cases(apart, ())
def test_percentiles_come_from_records_that_workers_sent(ended: FinishedRun) -> None:
    assert ended.summary["verdict"]["passed"]
    assert ended.code == expected_exit_code(ended), ended.text
    check_run(ended)
    assert ended.summary["percentiles_from"] == "records"
    check_complete(ended)
    kinds = {entry["kind"] for entry in marks_of(ended.run_dir)}
    assert kinds == {"phase", "warmup_over"}, "a turn was in flight after the drain"
    records = ended.summary["turn_records"]
    assert records["counted"] == records["at_hand"] == len(ended.turns) > 0
    assert ended.summary["cache"]["expected"]["turns"] == len(ended.turns)
    assert ended.summary["tasks"] is not None
    workers = workers_of(ended)
    assert len({worker["folder"] for worker in workers}) == 2
    assert [worker["at_hand"] for worker in workers] == [worker["turns"] for worker in workers]
    assert all(worker["turns"] > 0 for worker in workers)
    assert left_by_workers(ended) == []


@run_cases(apart, ())
def test_a_warm_up_ends_by_count(ended: FinishedRun) -> None:
    run_dir = ended.run_dir
    manifest, summary = (json.loads((run_dir / name).read_text()) for name in ("run.json", "summary.json"))
    warmup_over = mark(run_dir, "warmup_over")
    assert warmup_over is not None
    assert int(warmup_over["text"].removesuffix(" turns were over")) >= 30
    assert [phase["phase"] for phase in manifest["phases"]] == ["warmup", "measure", "drain"]
    warmup, measure, _drain = manifest["phases"]
    assert warmup["end_wall_ns"] == measure["start_wall_ns"] > warmup_over["wall_ns"]
    assert measure["end_wall_ns"] - measure["start_wall_ns"] == 6e9
    assert summary["window_s"] == 6
    assert summary["turns"]["by_phase"]["warmup"]["sent"] >= 30
    begins = [entry["phase"] for entry in marks_of(run_dir) if entry["kind"] == "phase"]
    assert begins == ["warmup", "measure", "drain"]


@run_cases(apart, ("--max-turns-mb", "0"))
def test_records_over_the_size_limit_stay_on_the_workers(ended: FinishedRun) -> None:
    assert ended.summary["verdict"]["passed"]
    assert ended.code == expected_exit_code(ended), ended.text
    summary = ended.summary
    assert summarised(ended.run_dir) == summary
    assert summary["percentiles_from"] == "sketches"
    sent = summary["turns"]["by_phase"]["all"]["sent"]
    records = summary["turn_records"]
    assert (records["counted"], records["at_hand"], records["held_back"], records["lost"]) == (sent, 0, sent, 0)
    assert "the limit of --max-turns-mb 0 is reached" in records["why"]
    assert f"0 of {sent} turn records are in the run directory (worker w" in " ".join(summary["notes"])
    assert "turn records: the limit of --max-turns-mb 0 is reached; they are on" in ended.text
    check_complete(ended)
    assert {entry["kind"] for entry in marks_of(ended.run_dir)} >= {"held_back_records"}
    assert len(left_by_workers(ended)) == 2
    assert list((ended.run_dir / "turns").iterdir()) == []


@run_cases(decimated, ())
def test_the_ends_of_workers_are_marked_and_their_records_kept_or_counted_as_lost(ended: FinishedRun) -> None:
    assert "a run is being drained" not in ended.text
    assert ended.code == 3
    summary, seen, rows = ended.summary, ended.seen, ended.turns
    assert summarised(ended.run_dir) == summary
    assert ended.codes >= {"lost_worker", "lost_records", "dropped_sessions"}
    first, second, *_others = (ended.run_dir.parent.parent / "message.txt").read_text().splitlines()
    assert first == summary["outcome"]["headline"]
    assert "measurement invalid (lost_worker, " in first
    assert "invalid: 3 of 4 workers were lost during the run" in second
    assert summary["turns"]["by_phase"]["all"]["unfinished"] == 0
    check_files(ended.run_dir, killed=seen["killed"])
    late, left = mark(ended.run_dir, "worker_late"), mark(ended.run_dir, "worker_left")
    assert late is not None
    assert late["client"] in late["text"]
    assert left is not None
    assert left["worker"] == seen["ended"]
    lost = {entry["worker"]: entry for entry in marks_of_kind(ended.run_dir, "worker_lost")}
    assert lost.keys() == {seen["killed"], seen["paused"]}
    for name, entry in lost.items():
        # The limit is 4 s; after a pause of the master, which can occur until just before the detection, they begin again.
        assert 0 < (entry["wall_ns"] - seen["killed_wall_ns"]) / 1e9 < 10
        silent = re.fullmatch(r"worker \w+ lost: nothing heard for ([\d.]+) s", entry["text"])
        assert silent is not None
        assert float(silent[1]) >= 4
        assert f"worker {name} lost" in ended.text
    check_records(ended)
    assert {row["worker"] for row in rows} == {"w0", "w1", "w2", "w3"}
    sessions = summary["sessions"]
    assert sessions["planned"] == sessions["dropped"] + sessions["started"]
    # Sessions may start while messages of the end are on their way to the remaining workers.
    assert 0 <= sessions["planned"] - due(ended.run_dir, RATE, SEED) <= 2
    assert sessions["dropped"] >= RATE / 4 * 2 * 4  # of two workers in the 4 s until the losses were detected


def check_records(ended: FinishedRun) -> None:
    """Check that only the last records of the killed worker are lost, and that they are counted."""
    summary, seen = ended.summary, ended.seen
    workers = {worker["name"]: worker for worker in workers_of(ended)}
    assert {name for name, worker in workers.items() if worker["left"]} == {seen["ended"]}
    lost = workers.pop(seen["killed"])
    assert all(worker["at_hand"] == worker["turns"] for worker in workers.values())
    rows = [row for row in ended.turns if row["worker"] == seen["killed"]]
    assert lost["at_hand"] == len(rows) > 0
    latest_ns = max(row["closed_ns"] for row in rows) + lost["anchor"]["wall_ns"]
    assert seen["killed_wall_ns"] - latest_ns < 10e9
    records = summary["turn_records"]
    assert records["lost"] == lost["turns"] - lost["at_hand"] > 0
    assert records["at_hand"] == len(ended.turns)
    assert records["counted"] == lost["turns"] + sum(worker["turns"] for worker in workers.values())
    (reason,) = [reason for reason in summary["verdict"]["reasons"] if reason["code"] == "lost_records"]
    assert reason["value"] == records["lost"]
    assert f"worker {seen['killed']}: the worker was lost before it had written its last records" in reason["text"]
    assert [left_by_workers(ended, f"worker-{number}") for number in (0, 2, 3)] == [[], [], []]


@run_cases(interrupted, ())
def test_stopped_workers_end_their_turns_and_send_their_records_before_they_exit(ended: FinishedRun) -> None:
    check_run(ended)
    turns, at_server = ended.summary["turns"]["by_phase"]["all"], ended.simulator_stats
    assert at_server is not None
    assert (ended.code, at_server["aborted"], turns["unfinished"], turns["failed"]) == (143, 0, 0, 0), ended.text
    assert mark(ended.run_dir, "stop") is not None
    assert ended.summary["percentiles_from"] == "records"
    workers = workers_of(ended)
    assert not any(worker["left"] for worker in workers)
    assert [worker["at_hand"] for worker in workers] == [worker["turns"] for worker in workers]
    assert left_by_workers(ended) == []


@run_cases(orphaned, ())
def test_workers_keep_their_records_and_the_planned_end_if_the_master_is_lost(ended: FinishedRun) -> None:
    files = left_by_workers(ended)
    assert len(files) == 2
    assert ended.simulator_stats is not None
    tables = [pq.read_table(path).to_pylist() for path in files]
    check_orphans(ended.text, [row for rows in tables for row in rows], ended.simulator_stats["started"])
    for rows in tables:
        sent_ns = [row["sent_ns"] for row in rows]
        assert max(sent_ns) - min(sent_ns) < ALONE_S * 1e9
