"""Workers that are killed, suspended, missing or late; runs of several workers with the same seed."""

import json
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import virtual
from arrival_times import unit_process
from e2e_runs import (
    FinishedRun,
    Sandbox,
    check_complete,
    check_files,
    check_run,
    check_turns_across_drain,
    expected_exit_code,
    mark,
    marks_of,
    mostly_idle,
    run_cases,
    scenario,
    wait_for_measure_phase,
    wait_until,
)
from locust_process import LocustProcess, csv_rows, most_at_once

from inferload.client.connection import reader_choice
from inferload.scenario import scenario as scenarios
from inferload.workload.arrivals import Schedule
from inferload.workload.content.script import outline
from inferload.workload.sessions import Sessions

USERS = 6
RATE = 10
SEED = 7
OLD = 20  # turns of a worker that ended long enough before it was killed to be on disk
OLD_S = 4  # long enough: with the parts of WITNESS after 2 s. The usual ones, of 8 s: test_e2e_delivery.py

# A locustfile that writes each turn at its end to a file of its process, for comparison, with shorter parts of the turn table.
WITNESS = """
import os
from inferload.run.worker import turn_writer
from inferload.users import events

turn_writer.PART_S = 1.0


@events.turn_end.add_listener
def write(record, **_others):
    with open(f"witness-{os.getpid()}.txt", "a") as file:
        file.write(f"{record.worker} {record.turn_id} {record.closed_ns}\\n")
"""


def older(account: Path) -> Iterator[str]:
    """Return the lines of turns that ended more than OLD_S ago."""
    latest_ns = time.monotonic_ns() - OLD_S * 1e9
    lines = account.read_text().splitlines(keepends=True)
    return (line for line in lines if line.endswith("\n") and int(line.split()[2]) < latest_ns)


def closed(sandbox: Sandbox, **changes: Any) -> Path:
    return scenario(sandbox.folder, arrivals__users=USERS, workload__output_tokens=8, **changes)


def open_loop(sandbox: Sandbox, **changes: Any) -> Path:
    arrivals = {"kind": "poisson", "sessions_per_s": RATE}
    return scenario(sandbox.folder, arrivals=arrivals, workload__output_tokens=2, seed=SEED, **changes)


# -- killed


@mostly_idle
def killed(sandbox: Sandbox) -> FinishedRun:
    """Send SIGKILL to a worker that has old turns; SIGINT to the master 2 s after the loss is detected."""
    words = ("--host", sandbox.simulator().url, "--scenario", str(closed(sandbox)))
    words += ("--termination-message", "message.txt")
    fleet = sandbox.fleet("processes", *words, locustfile=sandbox.locustfile(WITNESS))
    wait_for_measure_phase(sandbox.run_dir)
    pid = fleet.worker_pids()[0]
    account = sandbox.folder / f"witness-{pid}.txt"
    wait_until(lambda: account.exists() and sum(1 for _ in older(account)) > OLD, "old turns", 60)
    killed_ns, killed_wall_ns = time.monotonic_ns(), time.time_ns()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: mark(sandbox.run_dir, "worker_lost"), "a mark of the loss", 20)
    time.sleep(2)
    fleet.signal(signal.SIGINT, whole_group=False)
    code = fleet.exit_code(pid)
    lines = [line.split() for line in account.read_text().splitlines()]
    old = {turn_id for _, turn_id, closed_ns in lines if int(closed_ns) < killed_ns - OLD_S * 1e9}
    seen = {"worker": lines[0][0], "old": old, "killed_wall_ns": killed_wall_ns}
    return FinishedRun(sandbox.run_dir, code, fleet.text, seen=seen)


@run_cases(killed, ())
def test_a_killed_worker_is_detected_and_its_older_turns_are_kept(ended: FinishedRun) -> None:
    """Of an open loop: test_e2e_delivery.py."""
    worker, old = ended.seen["worker"], ended.seen["old"]
    assert mark(ended.run_dir, "worker_lost")["worker"] == worker
    assert ended.code == 3, ended.text
    assert ended.summary["verdict"]["measurement"] == "invalid"
    assert "lost_worker" in ended.codes
    first, *_others = (ended.run_dir.parent / "message.txt").read_text().splitlines()
    assert first == ended.summary["outcome"]["headline"]
    assert "measurement invalid (lost_worker" in first
    check_files(ended.run_dir, killed=worker)
    rows = ended.turns
    assert len(old) > OLD
    assert old <= {row["turn_id"] for row in rows if row["worker"] == worker}
    others = [row for row in rows if row["worker"] != worker]
    (anchor_ns,) = (each["anchor"]["wall_ns"] for each in ended.manifest["workers"] if each["name"] != worker)
    latest_ns = max(row["planned_ns"] for row in others) + anchor_ns
    assert latest_ns - ended.seen["killed_wall_ns"] > 3e9, "the other worker did not go on"
    assert most_at_once(others) == USERS // 2


def due(run_dir: Path, rate: float, seed: int) -> int:
    """Return the number of sessions scheduled in the measure phase of a run."""
    manifest = json.loads((run_dir / "run.json").read_text())
    phase = next(phase for phase in manifest["phases"] if phase["phase"] == "measure")
    length_s = (phase["end_wall_ns"] - phase["start_wall_ns"]) / 1e9
    return sum(1 for _ in takewhile(lambda unit: unit / rate < length_s, unit_process("poisson", seed)))


# -- suspended

# A locustfile whose workers suspend themselves when they receive their part of the run, and w0 when it receives the phases.
SLOW = """
import os
import signal

from inferload.run.worker.worker_run import WorkerRun

start, set_windows = WorkerRun.start, WorkerRun.set_windows


def stop_and_start(run):
    os.kill(os.getpid(), signal.SIGSTOP)
    start(run)


def set_windows_and_stop(run, windows):
    WorkerRun.set_windows = set_windows
    set_windows(run, windows)
    if run.part.assignment.name == "w0":
        with open("stopped.txt", "w") as file:
            file.write(f"{os.getpid()}\\n")
        os.kill(os.getpid(), signal.SIGSTOP)


WorkerRun.start, WorkerRun.set_windows = stop_and_start, set_windows_and_stop
"""


@mostly_idle
def suspended(sandbox: Sandbox) -> FinishedRun:
    """Suspend both workers before the load, until Locust reports them missing; w0 for 7 s from just before the load; w1 in it."""
    simulator = sandbox.simulator()
    words = ("--host", simulator.url, "--scenario", str(closed(sandbox, phases__measure_s=300)))
    fleet = sandbox.fleet("by_hand", *words, locustfile=sandbox.locustfile(SLOW))
    fleet.master.wait_for_line("The last worker went missing")
    for worker in fleet.by_hand:
        worker.send(signal.SIGCONT)
    stopped = sandbox.folder / "stopped.txt"
    wait_until(lambda: stopped.exists() and stopped.read_text().endswith("\n"), "a suspended worker")
    first = int(stopped.read_text())
    time.sleep(7)
    os.kill(first, signal.SIGCONT)
    wait_until(lambda: simulator.stats()["requests"]["running"] == USERS, "streams of all users")
    # Several seconds of load: the limit is larger for a worker that has not reported since the start of the load.
    finished = simulator.stats()["requests"]["finished"]
    wait_until(lambda: simulator.stats()["requests"]["finished"] > finished + 10 * USERS, "turns of some seconds")
    (second,) = {worker.process.pid for worker in fleet.by_hand} - {first}
    wait_until(lambda: suspended_briefly(sandbox.run_dir, second), "a mark of the silence")
    finished = simulator.stats()["requests"]["finished"]
    wait_until(lambda: simulator.stats()["requests"]["finished"] > finished + 2 * USERS, "more turns")
    return sandbox.interrupted(fleet, simulator)


def suspended_briefly(run_dir: Path, pid: int) -> bool:
    """Suspend w1 for less than the 4 s of a loss; return True if its silence was marked.

    There is no mark if the master handled the last report before the suspension late. The shell resumes the worker in time even if
    this process pauses.
    """
    subprocess.run(["sh", "-c", f"kill -STOP {pid}; sleep 2.2; kill -CONT {pid}"], check=True)
    resumed_s = time.monotonic()
    while time.monotonic() < resumed_s + 3 and "w1" not in silent(run_dir):
        time.sleep(0.1)
    return "w1" in silent(run_dir)


def silent(run_dir: Path) -> set[str]:
    """Return the workers whose silence was marked."""
    return {entry["worker"] for entry in marks_of(run_dir) if entry["kind"] == "worker_silent"}


@run_cases(suspended, ())
def test_suspended_workers_are_awaited_or_marked_and_not_lost(ended: FinishedRun) -> None:
    check_run(ended)
    check_complete(ended)
    assert ended.code == expected_exit_code(ended)
    assert mark(ended.run_dir, "stop")["text"] == "stopped by Ctrl-C"
    assert mark(ended.run_dir, "worker_lost") is None
    assert silent(ended.run_dir) == {"w0", "w1"}
    assert {row["worker"] for row in ended.turns} == {"w0", "w1"}
    reasons = {reason["code"] for reason in ended.summary["verdict"]["reasons"]}
    assert reasons & {"loop_lag", "client_delay", "client_pause"}


def all_terminated(sandbox: Sandbox) -> FinishedRun:
    """Send SIGTERM to all workers, with short turns, so that they drain at once."""
    simulator = sandbox.simulator()
    file = scenario(sandbox.folder, arrivals__users=USERS, workload__output_tokens=1)
    fleet = sandbox.fleet("processes", "--host", simulator.url, "--scenario", str(file), report=True)
    wait_for_measure_phase(sandbox.run_dir)
    wait_until(lambda: simulator.stats()["requests"]["finished"] > 5 * USERS, "some load")
    for pid in fleet.worker_pids():
        os.kill(pid, signal.SIGTERM)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(all_terminated, ())
def test_the_end_of_every_worker_before_the_end_of_the_load_is_a_failure(ended: FinishedRun) -> None:
    assert mark(ended.run_dir, "stop")["text"] == "stopped by the end of every worker"
    assert ended.code == (3 if ended.summary["verdict"]["measurement"] == "invalid" else 1), ended.text
    assert (ended.run_dir / "report.md").exists()


# -- other versions

OLDER = """
from inferload.run.worker import worker as agent

agent.__version__ = "0.0.9"
"""


def different(sandbox: Sandbox) -> FinishedRun:
    """Start a worker of another version, and a forked one with another scenario."""
    simulator = sandbox.simulator()
    words = ["--host", simulator.url, "--scenario", str(closed(sandbox))]
    fleet = sandbox.fleet(
        "by_hand", *words, workers=1, expected=2, worker_arguments=["--scenario", "smoke", "--processes", "1"]
    )
    sandbox.join(fleet, locustfile=sandbox.locustfile(OLDER))
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, simulator.stats()["requests"])


@run_cases(different, ())
def test_workers_of_another_version_or_scenario_are_refused(ended: FinishedRun) -> None:
    errors = [line for line in ended.text.splitlines() if "ERROR" in line]
    assert len(errors) == 1, ended.text
    assert " runs 0.0.9, and the master inferload" in errors[0]
    assert f" was started with scenario {scenarios.load('smoke').digest[:12]}, and the master with " in errors[0]
    assert ended.code == 2
    assert ended.simulator_stats["started"] <= 1  # the preflight's turn
    assert not ended.run_dir.exists()


# -- programs

SUPPORT = """
import os
import sys
from locust.runners import MasterRunner
from locust import constant, events, task
from inferload.users import InferenceUser
from questions import QUESTION


class Support(InferenceUser):
    wait_time = constant(0.05)

    @task
    def ask(self):
        self.chat(QUESTION, max_tokens=4)


@events.init.add_listener
def add_page(environment, **_event):
    if isinstance(environment.runner, MasterRunner):
        sys.path.insert(0, os.path.dirname(__file__))
        import on_the_master
"""


def program(folder: Path) -> Path:
    """Write a locustfile with two modules, one of which only the master imports."""
    folder.mkdir()
    (folder / "questions.py").write_text("QUESTION = 'How?'")
    (folder / "on_the_master.py").write_text("")
    (folder / "support.py").write_text(SUPPORT)
    return folder / "support.py"


def of_programs(sandbox: Sandbox) -> FinishedRun:
    """Start a worker whose locustfile is in another folder, and one that receives it."""
    mine = program(sandbox.folder / "master")
    words = ["--host", sandbox.simulator().url, "--on-invalid", "warn", "-u", "2", "-r", "2", "-t", "1s"]
    fleet = sandbox.fleet("by_hand", *words, workers=0, expected=2, locustfile=mine)
    sandbox.join(fleet, locustfile=program(sandbox.folder / "same"))
    received = sandbox.folder / "received"
    received.mkdir()
    (sandbox.folder / "questions.py").write_text("QUESTION = 'How?'")  # in the current directory of the worker
    sandbox.join(fleet, env={"TMPDIR": str(received)}, locustfile=Path("-"))
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(of_programs, ())
def test_workers_with_the_program_of_the_master_are_accepted(ended: FinishedRun) -> None:
    errors = [line for line in ended.text.splitlines() if "ERROR" in line]
    assert (ended.code, errors) == (0, []), ended.text
    manifest = ended.manifest
    assert manifest["scenario"]["name"] == "support"
    assert manifest["program"]["name"] == "support.py"
    assert {name for name, _digest in manifest["program"]["files"]} == {
        "support.py",
        "questions.py",
        "on_the_master.py",
    }
    assert ended.summary["run"]["locustfile"] == manifest["program"]["digest"]
    assert {row["worker"] for row in ended.turns} == {"w0", "w1"}


# -- the same seed


SEEDED = ("-t", "5s", "--seed", str(SEED))


def seeded(sandbox: Sandbox) -> FinishedRun:
    """Run three workers with the reader that others do not use."""
    simulator = sandbox.simulator()
    lengths = {"dist": "uniform", "min": 4, "max": 12}
    file = closed(sandbox, workload={
        "kind": "chat", "turns": {"dist": "uniform", "min": 1, "max": 3}, "prompt_tokens": lengths, "output_tokens": lengths,
    })  # fmt: skip
    words = ["--host", simulator.url, "--scenario", str(file), *SEEDED]
    fleet = sandbox.fleet("processes", *words, workers=3, env={reader_choice.VARIABLE: "python"})
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, simulator.stats()["requests"])


def requests_of(ended: FinishedRun | virtual.VirtualRun, sessions: int) -> dict[str, list[tuple[int, int, int]]]:
    """Return turn, max_tokens and prompt tokens of the first sessions of a run."""
    requests = defaultdict(list)
    for row in ended.turns:
        if int(row["session_id"][1:]) < sessions:
            requests[row["session_id"]].append((row["turn_index"], row["max_tokens"], row["input_tokens"]))
    return {name: sorted(turns) for name, turns in requests.items()}


@run_cases(seeded, ())
def test_runs_of_several_workers_are_complete(ended: FinishedRun) -> None:
    check_run(ended)
    check_turns_across_drain(ended, 1)
    assert {row["worker"] for row in ended.turns} == {"w0", "w1", "w2"}
    assert ended.code == expected_exit_code(ended)
    assert ended.summary["client"]["reader"] == "python"
    workers = ended.manifest["workers"]
    assert {(each["reader"], each["one_clock"], each["clock_offset_ns"]) for each in workers} == {("python", True, 0)}


@run_cases(seeded, ())
def test_the_same_seed_sends_the_same_with_any_number_of_workers(ended: FinishedRun, tmp_path: Path) -> None:
    alone = requests_of(virtual.run(tmp_path, ended.run_dir.parent / "scenario.yaml", *SEEDED), 12)
    assert len(alone) == 12
    assert requests_of(ended, 12) == alone
    scenario_text = ended.manifest["scenario"]["text"]
    planned, other_seed = (
        [
            [turn.ask.output_tokens for turn in outline(Sessions(resolved).begin(index).script, index)]
            for index in range(12)
        ]
        for resolved in (scenarios.from_text(scenario_text, "run.json").changed({"seed": seed}) for seed in (SEED, 6))
    )
    assert [[tokens for _, tokens, _ in alone[f"s{index}"]] for index in range(12)] == planned
    assert planned != other_seed


@run_cases(seeded, ())
def test_ttft_and_itl_are_not_part_of_aggregated(ended: FinishedRun) -> None:
    rows = {row["Type"] or row["Name"]: row for row in csv_rows(ended.run_dir / "locust_stats.csv")}
    assert set(rows) == {"TURN", "TTFT", "ITL", "Aggregated"}
    turns = ended.turns
    assert int(rows["TTFT"]["Request Count"]) == len(turns)
    assert int(rows["ITL"]["Request Count"]) == sum(len(row["event_ns"]) - 1 for row in turns)
    assert int(rows["Aggregated"]["Request Count"]) == int(rows["TURN"]["Request Count"]) == len(turns)
    assert rows["Aggregated"]["Average Response Time"] == rows["TURN"]["Average Response Time"]
    assert float(rows["TTFT"]["Average Response Time"]) == pytest.approx(
        sum(row["first_ns"] - row["sent_ns"] for row in turns) / len(turns) / 1e6, rel=1e-3
    )


# -- open loop

CHANGED_S = 8  # measured, with a changed rate


def changed_rate(sandbox: Sandbox) -> FinishedRun:
    """Run Poisson arrivals on two workers, and double the users in the web UI during the run."""
    simulator = sandbox.simulator()
    file = open_loop(sandbox, phases={"measure_s": CHANGED_S, "drain_s": 20})
    words = ["--host", simulator.url, "--scenario", str(file), "--details"]
    fleet = sandbox.fleet("processes", *words, web=True)
    fleet.wait_for_page()
    assert fleet.post("/swarm", user_count=RATE, spawn_rate=RATE)["success"]
    state = fleet.get_json("/stats/requests")["state"]  # on "ready" the page would ask no more
    assert state in ("spawning", "running"), state
    wait_for_measure_phase(sandbox.run_dir)
    wait_until(lambda: simulator.stats()["requests"]["finished"] > RATE, "a second's sessions")
    assert fleet.get_json("/inferload/status")["load"] == f"sessions_per_s {RATE}"
    assert fleet.post("/swarm", user_count=RATE * 2, spawn_rate=RATE)["success"]
    wait_until(lambda: fleet.get_json("/inferload/status").get("load") == f"sessions_per_s {RATE * 2}", "the new rate")
    fleet.outcome()
    return sandbox.interrupted(fleet, simulator)


@run_cases(changed_rate, ())
def test_arrivals_follow_the_schedule(ended: FinishedRun) -> None:
    check_run(ended)
    manifest = ended.manifest
    start_ns = next(phase for phase in manifest["phases"] if phase["phase"] == "measure")["start_wall_ns"]
    schedule = Schedule(unit_process("poisson", SEED), RATE)
    (changed,) = [entry for entry in marks_of(ended.run_dir) if entry["kind"] == "users"]
    schedule.set_rate((changed["wall_ns"] - start_ns) / 1e9, changed["users"])
    assert changed["text"] == "users changed by hand: 10 -> 20, so arrivals.sessions_per_s is 20"
    assert changed["sessions_per_s"] == schedule.rate == 2 * RATE
    load = manifest["load"]
    assert load["users_or_rate"] == "10 to 20/s Poisson"
    assert "by hand   at" in ended.text
    assert "changed by hand once" in load["detail"]
    expected_s = {}
    while (arrival := schedule.next()) is not None and arrival.due_s < CHANGED_S:
        expected_s[f"s{arrival.index}"] = arrival.due_s
    anchors = {worker["name"]: worker["anchor"]["wall_ns"] for worker in manifest["workers"]}
    planned_s = {
        row["session_id"]: (row["planned_ns"] + anchors[row["worker"]] - start_ns) / 1e9 for row in ended.turns
    }
    # The mark is rounded to a millisecond of the wall clock: the last arrival may be before or after the end. On a busy
    # machine the last arrivals may not have started at the end of the load: then they are dropped.
    sessions = ended.summary["sessions"]
    assert set(planned_s) - set(expected_s) <= {f"s{len(expected_s)}"}
    assert all(expected_s[name] > CHANGED_S - 1 for name in set(expected_s) - set(planned_s))
    late_s = {name: planned_s[name] - expected_s[name] for name in planned_s if name in expected_s}
    # Arrivals that a worker has taken before the message of the new rate keep their instants at the old rate.
    changed_s = (changed["wall_ns"] - start_ns) / 1e9
    at_change = {name for name in late_s if changed_s <= expected_s[name] < changed_s + 1}
    assert 0 < len(at_change) < len(late_s) / 2
    assert max(abs(late) for name, late in late_s.items() if name not in at_change) < 0.1, late_s
    assert max(abs(late_s[name]) for name in at_change) < 1, late_s
    assert sessions["planned"] == sessions["dropped"] + sessions["started"]
    assert abs(sessions["planned"] - len(expected_s)) <= 1
    assert sessions["dropped"] == sessions["planned"] - len(planned_s) <= RATE
    codes = {reason["code"] for reason in ended.summary["verdict"]["reasons"]}
    assert ("dropped_sessions" in codes) == (sessions["dropped"] > 0)
    assert {row["worker"] for row in ended.turns} == {"w0", "w1"}


def long_ramp(sandbox: Sandbox) -> FinishedRun:
    """Begin a ramp in the web UI that would take longer than the load."""
    file = scenario(sandbox.folder, phases={"warmup_s": 0, "measure_s": 4, "drain_s": 60})
    words = ("--host", sandbox.simulator().url, "--scenario", str(file), "--on-invalid", "warn")
    fleet = sandbox.fleet("processes", *words, web=True, workers=1)
    fleet.wait_for_page()
    assert fleet.post("/swarm", user_count=2, spawn_rate=50)["success"]
    wait_for_measure_phase(sandbox.run_dir)
    assert fleet.post("/swarm", user_count=200, spawn_rate=2)["success"]
    fleet.outcome()
    users = [fleet.get_json("/stats/requests")["user_count"]]
    return sandbox.interrupted(fleet, seen={"users": users})


@run_cases(long_ramp, ())
def test_a_ramp_of_the_web_ui_ends_with_the_load(ended: FinishedRun) -> None:
    assert "Timeout waiting for all workers to stop" not in ended.text
    assert mark(ended.run_dir, "users")["users"] == 200
    assert ended.seen["users"] == [0]


@mostly_idle
def replaced(sandbox: Sandbox) -> FinishedRun:
    """Make four runs: SIGKILL to one of two workers; with the other and a third; SIGKILL to both; with others."""
    simulator = sandbox.simulator()
    words = ("--host", simulator.url, "--scenario", str(scenario(sandbox.folder)))
    fleet = sandbox.fleet("by_hand", *words, web=True)
    fleet.wait_for_page()
    runs = [""]

    def begin(users: int, workers: int) -> None:
        wait_until(lambda: fleet.get_json("/worker-count")["worker_count"] == workers, f"{workers} workers")
        before = simulator.stats()["requests"]["finished"]
        assert fleet.post("/swarm", user_count=users, spawn_rate=50)["success"]
        wait_until(lambda: simulator.stats()["requests"]["finished"] > before + 2 * users, "turns")

    def kill(*workers: LocustProcess) -> None:
        for worker in workers:
            os.kill(worker.process.pid, signal.SIGKILL)

    def end(*, stop: bool) -> None:
        assert not stop or fleet.press_stop()
        runs.append(fleet.outcome(after=runs[-1])["run_dir"])

    begin(6, workers=2)
    sandbox.join(fleet)
    wait_until(lambda: fleet.get_json("/worker-count")["worker_count"] == 3, "the third worker")
    kill(fleet.by_hand[0])
    wait_until(lambda: fleet.get_json("/inferload/status").get("workers_lost"), "the loss of the worker")
    end(stop=True)
    wait_until(lambda: fleet.get_json("/stats/requests")["state"] == "stopped", "the state after the run")
    # Locust itself has the state "stopping" as long as it lists the killed worker.
    states = [worker["state"] for worker in fleet.get_json("/stats/requests")["workers"]]
    begin(2, workers=2)
    end(stop=True)
    begin(20, workers=2)
    kill(*fleet.by_hand[1:])
    fleet.master.wait_for_line("The last worker went missing")
    end(stop=False)
    for _ in range(2):
        sandbox.join(fleet)
    begin(2, workers=2)
    end(stop=True)
    fleet.signal(signal.SIGINT, whole_group=False)
    code = fleet.exit_code(*(worker.process.pid for worker in fleet.by_hand[:3]))
    return FinishedRun(Path(runs[3]), code, fleet.text, seen={"states": states, "runs": runs[1:]})


@run_cases(replaced, ())
def test_runs_after_the_loss_of_workers_have_their_own_users(ended: FinishedRun) -> None:
    assert sorted(ended.seen["states"]) == ["missing", "ready", "ready"]
    _first, second, _third, last = (FinishedRun(Path(run), 0, "") for run in ended.seen["runs"])
    check_complete(second)
    assert most_at_once(second.turns) == most_at_once(last.turns) == 2


@run_cases(replaced, ())
def test_the_loss_of_every_worker_ends_the_run(ended: FinishedRun) -> None:
    assert ended.summary["outcome"]["exit_code"] == 3
    assert mark(ended.run_dir, "stop")["text"] == "stopped by the loss of every worker"
    assert {entry["worker"] for entry in marks_of(ended.run_dir) if entry["kind"] == "worker_lost"} == {"w0", "w1"}
    assert "lost_worker" in ended.codes
