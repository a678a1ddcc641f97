"""Runs whose workers share no directory with the master and send their turn records to it."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import locust_process
import pyarrow.parquet as pq
from e2e_runs import (
    PATIENCE_S,
    FinishedRun,
    RunCase,
    RunPool,
    Sandbox,
    check_complete,
    check_counts,
    check_files,
    expected_exit_code,
    mark,
    marks_of,
    mostly_idle,
    run_cases,
    scenario,
    wait_for_measure_phase,
    wait_until,
)
from locust_process import LocustProcess
from ports import unused_port
from slow_disk import SlowDisk
from summaries import summarised

OLD_PARTS = 2  # of a worker before it is killed
SLOW_S = 0.15  # of each write to a slow disk
UNSENT_S = 2.5  # between the arrival of a worker's part and its end


def start(
    sandbox: Sandbox, *options: str, env: dict[str, str] | None = None, **changes: Any
) -> tuple[LocustProcess, list[LocustProcess], Any]:
    """Start a master and two workers in separate directories."""
    simulator = sandbox.simulator()
    file = scenario(sandbox.folder, **changes)
    port = str(unused_port())
    folders = [sandbox.folder / name for name in ("master", "first", "second")]
    for folder in folders:
        folder.mkdir()
    address = ("--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--host", simulator.url)
    words = ("--headless", "--master", "--expect-workers", "2", *address, "--scenario", str(file), "--no-report")
    master = locust_process.start(*words, "--run-dir", "/proc/self/cwd/run", *options, cwd=folders[0], env=env)
    to_master = ("--worker", "--master-host", "127.0.0.1", "--master-port", port)
    # The second has the same path as the master: the token decides, not the name.
    own = ((), ("--run-dir", "/proc/self/cwd/run"))
    workers = [
        locust_process.start(*to_master, *more, cwd=folder, env=env)
        for more, folder in zip(own, folders[1:], strict=True)
    ]
    return master, workers, simulator


def stop(processes: list[LocustProcess]) -> None:
    for process in processes:
        process.kill()


def apart(sandbox: Sandbox, *options: str, env: dict[str, str] | None = None) -> FinishedRun:
    """Run to the planned end."""
    phases = {"warmup_s": 60, "warmup_turns": 30, "measure_s": 9, "drain_s": 20}
    words = ("--on-invalid", "warn", *options)
    master, workers, simulator = start(sandbox, *words, env=env, phases=phases, workload__output_tokens=20)
    try:
        code = master.exit_code(PATIENCE_S)
        assert [worker.exit_code(20) for worker in workers] == [0, 0]
        text = "\n".join(process.text for process in (master, *workers))
        return FinishedRun(sandbox.folder / "master" / "run", code, text, simulator.stats()["requests"])
    finally:
        stop([master, *workers])


def on_slow_disks(sandbox: Sandbox) -> FinishedRun:
    """Run with slow disks of the master and of the workers."""
    disk = SlowDisk(sandbox.folder, sandbox.folder)
    disk.set(SLOW_S)
    return apart(sandbox, env=disk.env)


@mostly_idle
def killed(sandbox: Sandbox) -> FinishedRun:
    """Send SIGKILL to a worker, and SIGINT to the master when the loss is detected."""
    master, workers, simulator = start(sandbox, workload__output_tokens=4)
    run_dir = sandbox.folder / "master" / "run"
    try:
        wait_for_measure_phase(run_dir)
        manifest = json.loads((run_dir / "run.json").read_text())
        name = next(worker["name"] for worker in manifest["workers"] if worker["pid"] == workers[0].process.pid)
        parts = wait_until(lambda: len(parts_of(run_dir, name)) >= OLD_PARTS and parts_of(run_dir, name), "old parts")
        wait_until(lambda: len(parts_of(run_dir, name)) > len(parts), "a new part")
        since_s = time.monotonic()
        wait_until(lambda: time.monotonic() > since_s + UNSENT_S, "turns that are not yet in a part")
        killed_wall_ns = time.time_ns()
        os.kill(workers[0].process.pid, signal.SIGKILL)
        lost = wait_until(lambda: mark(run_dir, "worker_lost"), "a mark of the loss", 20)
        master.send(signal.SIGINT)
        code = master.exit_code(PATIENCE_S)
        assert workers[1].exit_code(20) == 0
        assert lost["worker"] == name
        seen = {"worker": name, "killed_wall_ns": killed_wall_ns}
        return FinishedRun(run_dir, code, master.text, simulator.stats()["requests"], seen)
    finally:
        stop([master, *workers])


def parts_of(run_dir: Path, name: str) -> list[Path]:
    """Return the parts of a worker in the master's run directory."""
    return sorted((run_dir / "turns").glob(f"{name}-0*.parquet"))


def left(sandbox: Sandbox, how: str) -> FinishedRun:
    """Send SIGTERM to a worker and then SIGINT to the master; or SIGINT to all processes."""
    master, workers, simulator = start(sandbox, workload__output_tokens=4)
    run_dir = sandbox.folder / "master" / "run"
    try:
        wait_for_measure_phase(run_dir)
        wait_until(lambda: simulator.stats()["requests"]["finished"] > 50, "turns")
        if how == "one":
            workers[0].send(signal.SIGTERM)
            assert workers[0].exit_code(20) == 0
            wait_until(lambda: mark(run_dir, "worker_left"), "a mark of the worker that left", 20)
            master.send(signal.SIGINT)
        else:
            for process in (*workers, master):
                process.send(signal.SIGINT)
        code = master.exit_code(PATIENCE_S)
        assert [worker.exit_code(20) for worker in workers] == [0, 0]
        text = "\n".join(process.text for process in (master, *workers))
        return FinishedRun(run_dir, code, text, simulator.stats()["requests"])
    finally:
        stop([master, *workers])


@mostly_idle
def orphaned(sandbox: Sandbox) -> FinishedRun:
    """Send SIGKILL to the master."""
    master, workers, simulator = start(sandbox, workload__output_tokens=4)
    run_dir = sandbox.folder / "master" / "run"
    try:
        wait_for_measure_phase(run_dir)
        wait_until(lambda: simulator.stats()["requests"]["finished"] > 50, "turns")
        os.kill(master.process.pid, signal.SIGKILL)
        assert [worker.exit_code(60) for worker in workers] == [3, 3]
        text = "\n".join(worker.text for worker in workers)
        return FinishedRun(run_dir, 0, text, simulator.stats()["requests"])
    finally:
        stop([master, *workers])


def workers_of(ended: FinishedRun) -> list[dict[str, Any]]:
    workers: list[dict[str, Any]] = json.loads((ended.run_dir / "run.json").read_text())["workers"]
    return workers


def left_by_workers(ended: FinishedRun) -> list[Path]:
    """Return the turn files in the workers' directories."""
    sandbox = ended.run_dir.parent.parent
    return [path for name in ("first", "second") for path in (sandbox / name).rglob("*.parquet")]


@run_cases(apart, ())
def test_percentiles_come_from_records_that_workers_sent(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert "Traceback" not in ended.text, ended.text
    assert ended.summary["verdict"]["passed"]
    assert ended.code == expected_exit_code(ended), ended.text
    check_files(ended.run_dir)
    check_counts(ended)
    assert ended.summary["percentiles_from"] == "records"
    check_complete(ended)
    assert ended.summary["cache"]["expected"]["turns"] == len(ended.turns)
    assert ended.summary["tasks"] is not None
    workers = workers_of(ended)
    assert len({worker["folder"] for worker in workers}) == 2
    assert [worker["at_hand"] for worker in workers] == [worker["turns"] for worker in workers]
    assert all(worker["turns"] > 0 for worker in workers)
    assert left_by_workers(ended) == []


@run_cases(on_slow_disks, ())
def test_slow_disks_lose_no_turn(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.summary["verdict"]["passed"]
    assert ended.code == expected_exit_code(ended), ended.text
    check_files(ended.run_dir)
    check_counts(ended)
    check_complete(ended)
    assert [worker["at_hand"] for worker in workers_of(ended)] == [worker["turns"] for worker in workers_of(ended)]
    assert left_by_workers(ended) == []


@run_cases(apart, ())
def test_a_warm_up_ends_by_count(run_pool: RunPool, run_case: RunCase) -> None:
    run_dir = run_pool.result(run_case).run_dir
    manifest, summary = (json.loads((run_dir / name).read_text()) for name in ("run.json", "summary.json"))
    warmup_over = mark(run_dir, "warmup_over")
    assert warmup_over is not None
    assert int(warmup_over["text"].removesuffix(" turns were over")) >= 30
    assert [phase["phase"] for phase in manifest["phases"]] == ["warmup", "measure", "drain"]
    warmup, measure, _drain = manifest["phases"]
    assert warmup["end_wall_ns"] == measure["start_wall_ns"] > warmup_over["wall_ns"]
    assert measure["end_wall_ns"] - measure["start_wall_ns"] == 9e9
    assert summary["window_s"] == 9
    assert summary["turns"]["by_phase"]["warmup"]["sent"] >= 30
    begins = [entry["phase"] for entry in marks_of(run_dir) if entry["kind"] == "phase"]
    assert begins == ["warmup", "measure", "drain"]


@run_cases(apart, ("--max-turns-mb", "0"))
def test_records_over_the_size_limit_stay_on_the_workers(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
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


@run_cases(killed, ())
def test_records_lost_with_a_killed_worker_are_few_and_counted(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert "Traceback" not in ended.text, ended.text
    assert ended.code == 3
    summary, seen = ended.summary, ended.seen
    assert summarised(ended.run_dir) == summary
    assert ended.codes >= {"lost_worker", "lost_records"}
    manifest = json.loads((ended.run_dir / "run.json").read_text())
    workers = {worker["name"]: worker for worker in manifest["workers"]}
    lost = workers.pop(seen["worker"])
    (other,) = workers.values()
    assert other["at_hand"] == other["turns"]
    rows = [row for row in ended.turns if row["worker"] == seen["worker"]]
    assert lost["at_hand"] == len(rows) > 0
    latest_ns = max(row["closed_ns"] for row in rows) + lost["anchor"]["wall_ns"]
    assert seen["killed_wall_ns"] - latest_ns < 10e9
    records = summary["turn_records"]
    assert records["lost"] == lost["turns"] - lost["at_hand"] > 0
    assert records["at_hand"] == len(ended.turns)
    assert records["counted"] == sum(worker["turns"] for worker in manifest["workers"])
    (reason,) = [reason for reason in summary["verdict"]["reasons"] if reason["code"] == "lost_records"]
    assert reason["value"] == records["lost"]
    assert f"worker {seen['worker']}: the worker was lost before it had written its last records" in reason["text"]


@run_cases(left, ("one",), ("all",))
def test_a_stopped_worker_sends_its_records_before_it_exits(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert "Traceback" not in ended.text, ended.text
    check_files(ended.run_dir)
    check_counts(ended)
    assert ended.summary["percentiles_from"] == "records"
    workers = workers_of(ended)
    assert [worker["left"] for worker in workers].count(True) == (run_case.arguments[0] == "one")
    assert [worker["at_hand"] for worker in workers] == [worker["turns"] for worker in workers]
    assert left_by_workers(ended) == []


@run_cases(orphaned, ())
def test_workers_keep_their_records_if_the_master_is_lost(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert "Traceback" not in ended.text, ended.text
    files = left_by_workers(ended)
    assert len(files) == 2
    turns = [turn for path in files for turn in pq.read_table(path, columns=["turn_id"])["turn_id"].to_pylist()]
    assert ended.simulator_stats is not None
    assert len(turns) == len(set(turns)) == ended.simulator_stats["started"] - 1  # without the preflight's turn
