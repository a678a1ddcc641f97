"""Workers share steps, and an end by count. Other arrivals: tests/unit/run/test_virtual_arrivals.py."""

from typing import Any

import pytest
from e2e_runs import FinishedRun, RunCase, RunPool, Sandbox, check_counts, run_cases, scenario

pytestmark = pytest.mark.timeout(180)


def executed(sandbox: Sandbox, **changes: Any) -> FinishedRun:
    """Run the scenario with two workers to its end."""
    simulator = sandbox.simulator()
    file = scenario(sandbox.folder, **changes)
    fleet = sandbox.fleet("processes", "--host", simulator.url, "--scenario", str(file))
    ended = FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, simulator.stats()["requests"])
    check_counts(ended)
    assert {row["worker"] for row in ended.turns} == {"w0", "w1"}
    return ended


def stepped_users(sandbox: Sandbox) -> FinishedRun:
    """One user, then four, then two."""
    steps = [{"users": users, "for_s": 1.5} for users in (1, 4, 2)]
    return executed(
        sandbox,
        arrivals={"kind": "closed", "users": 4, "spawn_per_s": 50, "profile": {"kind": "steps", "steps": steps}},
        workload__output_tokens=4,
        phases={"measure_s": 4.5, "drain_s": 20},
    )


@run_cases(stepped_users, ())
def test_users_of_all_workers_start_and_stop_as_planned(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    steps = ended.summary["steps"]
    assert [step["users"] for step in steps] == [1, 4, 2]
    assert steps[1]["turns"]["ok"] > steps[0]["turns"]["ok"] > 0
    assert ended.summary["turns"]["unfinished"] == ended.summary["turns"]["failed"] == 0


def counted(sandbox: Sandbox, loop: str, unit: str) -> FinishedRun:
    """Run sessions of three turns until 25 sessions or turns have ended."""
    arrivals: dict[str, Any] = {"kind": "closed", "users": 4, "spawn_per_s": 50}
    return executed(
        sandbox,
        arrivals=arrivals if loop == "closed" else {"kind": "poisson", "sessions_per_s": 30},
        workload={"kind": "chat", "turns": 3, "prompt_tokens": 20, "output_tokens": 4},
        phases={unit: 25, "drain_s": 20},
    )


@run_cases(counted, ("open", "sessions"), ("closed", "turns"))
def test_workers_that_end_by_count_send_exactly_that_count(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    _, unit = run_case.arguments
    rows = [row for row in ended.turns if row["phase"] == "measure"]
    if unit == "sessions":
        assert {row["session_id"] for row in rows} == {f"s{index}" for index in range(25)}
        assert len(ended.turns) == 75  # all sessions are complete
    else:
        assert len(rows) == ended.summary["turns"]["ok"] == 25
    assert ended.summary["turns"]["unfinished"] == ended.summary["turns"]["failed"] == 0
