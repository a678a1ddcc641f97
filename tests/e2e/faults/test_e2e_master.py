"""A master that is killed or suspended during a run."""

import os
import re
import signal
import time
from typing import Any

from e2e_runs import (
    PATIENCE_S,
    TOO_MANY_TOKENS,
    FinishedRun,
    Sandbox,
    check_complete,
    check_counts,
    expected_exit_code,
    mostly_idle,
    run_cases,
    scenario,
    wait_for_measure_phase,
    wait_until,
)

USERS = 6
INVALID = 3


def closed(sandbox: Sandbox, measure_s: int, **changes: Any) -> str:
    return str(scenario(sandbox.folder, arrivals__users=USERS, phases__measure_s=measure_s, **changes))


@mostly_idle
def orphaned(sandbox: Sandbox, mode: str, measure_s: int, **changes: Any) -> FinishedRun:
    """Send SIGKILL to the master during the load. `code`: exit code of the workers started by hand."""
    simulator = sandbox.simulator()
    fleet = sandbox.fleet(mode, "--host", simulator.url, "--scenario", closed(sandbox, measure_s, **changes))
    wait_for_measure_phase(sandbox.run_dir)
    wait_until(lambda: simulator.stats()["requests"]["started"] > USERS, "a turn of each user")  # and the preflight's
    os.kill(fleet.master.process.pid, signal.SIGKILL)
    assert fleet.master.process.wait(PATIENCE_S) == -signal.SIGKILL
    wait_until(lambda: not fleet.pids(), f"the end of processes {fleet.pids()}")
    codes = {worker.exit_code() for worker in fleet.by_hand} or {INVALID}
    assert len(codes) == 1, codes
    return FinishedRun(sandbox.run_dir, codes.pop(), fleet.text, simulator.stats()["requests"])


def check_orphans(text: str, rows: list[dict[str, Any]], started: int) -> None:
    """Check that two workers without a master ended in time, with all of their turns. `started`: requests at the server."""
    silences_s = re.findall(r"master: no heartbeat for ([\d.]+) s; load stopped", text)
    assert len(silences_s) == 2, text
    assert max(map(float, silences_s)) < 10
    assert text.count(f"Shutting down (exit code {INVALID})") == 2, text
    assert {row["worker"] for row in rows} == {"w0", "w1"}
    assert len({row["turn_id"] for row in rows}) == len(rows) == started - 1  # the preflight's turn
    assert {row["status"] for row in rows} == {200}
    assert all(row["finish_reason"] for row in rows)


@run_cases(orphaned, ("processes", 300))
def test_workers_of_a_killed_master_end_the_load_and_keep_their_turns(ended: FinishedRun) -> None:
    assert ended.simulator_stats is not None
    check_orphans(ended.text, ended.turns, ended.simulator_stats["started"])


@mostly_idle
def orphaned_with_long_streams(sandbox: Sandbox) -> FinishedRun:
    return orphaned(sandbox, "by_hand", 300, workload__output_tokens=TOO_MANY_TOKENS, phases__drain_s=1)


@run_cases(orphaned_with_long_streams, ())
def test_without_a_master_workers_keep_to_the_drain_limit(ended: FinishedRun) -> None:
    assert ended.code == INVALID
    assert len(ended.turns) == USERS
    assert not any(row["finish_reason"] for row in ended.turns)


@mostly_idle
def suspended(sandbox: Sandbox) -> FinishedRun:
    """Suspend the master for 4.5 s; then more turns, and SIGINT."""
    simulator = sandbox.simulator()
    fleet = sandbox.fleet("processes", "--host", simulator.url, "--scenario", closed(sandbox, 300))
    wait_for_measure_phase(sandbox.run_dir)
    wait_until(lambda: simulator.stats()["requests"]["running"] == USERS, "streams of all users")
    os.kill(fleet.master.process.pid, signal.SIGSTOP)
    since_s = time.monotonic()
    wait_until(lambda: time.monotonic() > since_s + 4.5, "4.5 s of suspension")
    os.kill(fleet.master.process.pid, signal.SIGCONT)
    finished = simulator.stats()["requests"]["finished"]
    wait_until(lambda: simulator.stats()["requests"]["finished"] > finished + 2 * USERS, "more turns")
    return sandbox.interrupted(fleet)


@run_cases(suspended, ())
def test_a_run_continues_after_its_master_was_suspended(ended: FinishedRun) -> None:
    assert "no heartbeat" not in ended.text
    check_counts(ended)
    check_complete(ended)
    assert ended.code == expected_exit_code(ended)
