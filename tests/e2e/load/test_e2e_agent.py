"""Runs of agents on the simulator: their turns, cancellations and tasks."""

from collections import defaultdict
from itertools import pairwise
from typing import Any

from e2e_runs import FinishedRun, RunCase, RunPool, Sandbox, check_counts, run_cases, scenario

from inferload.scenario.scenario import load
from inferload.workload.content.script import outline
from inferload.workload.sessions import Sessions

SIZES = {"tools_tokens": 200, "system_prompt_tokens": 100, "prompt_tokens": 40, "context_limit_tokens": 3000}
TOOL = {"name": "look", "time_s": 0.2, "result_tokens": 50, "fails": 0.1}
AGENT = {"kind": "agent", "steps": 3, "output_tokens": 6, "tools": [TOOL], **SIZES}


def executed(sandbox: Sandbox, mode: str = "local", report: bool = False, **workload: Any) -> FinishedRun:
    simulator = sandbox.simulator()
    changes = {
        "workload": AGENT | workload,
        "request": {"continuous_usage": True},
        "phases": {"sessions": 8, "drain_s": 60},
    }
    file = scenario(sandbox.folder, **changes)
    words = ["--host", simulator.url, "--scenario", str(file), "--on-invalid", "warn", "--details"]
    fleet = sandbox.fleet(mode, *words, report=report)
    code = fleet.exit_code()
    return FinishedRun(sandbox.run_dir, code, fleet.text, simulator.stats()["requests"])


def tools(sandbox: Sandbox) -> FinishedRun:
    return executed(sandbox, "processes", report=True, parallel_calls=0.5)


@run_cases(tools, ())
def test_agents_call_tools_and_are_summarised_as_tasks(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    check_counts(ended)
    (block,) = ended.summary["tasks"].values()
    by_session = defaultdict(list)
    for row in sorted(ended.turns, key=lambda row: row["turn_index"]):
        by_session[row["session_id"]].append(row)
    assert {row["pause"] for rows in by_session.values() for row in rows[:1]} == {None}
    for rows in by_session.values():
        for before, after in pairwise(rows):
            assert after["pause"] == "tool"
            assert after["planned_ns"] - before["closed_ns"] == 200_000_000
            assert after["input_tokens"] > before["input_tokens"]
            assert after["cached_tokens"] > 0
    done = [rows for rows in by_session.values() if rows[-1]["final"] and rows[0]["phase"] == "measure"]
    assert block["done"] == len(done) > 0
    assert block["tool_s"]["min"] >= 2 * 0.2
    counts = f"{block['begun']} tasks started in the measure phase, {block['done']} completed"
    assert counts in " ".join(ended.text.split())
    assert "Tasks: agent" in (ended.run_dir / "report.md").read_text()


def cancelling(sandbox: Sandbox) -> FinishedRun:
    cancel = {"share": 0.5, "after_s": 0.15, "again_s": 0.05}
    return executed(sandbox, cancel=cancel, output_tokens=20)


@run_cases(cancelling, ())
def test_cancelled_replies_are_counted_separately(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    turns = ended.summary["turns"]["by_phase"]["all"]
    cancelled = [row for row in ended.turns if row["finish_reason"] == "cancelled"]
    assert turns["cancelled"] == len(cancelled) > 0
    assert turns["sent"] == turns["ok"] + turns["failed"] + turns["unfinished"]
    assert {row["failure"] for row in cancelled} == {None}
    assert all(row["output_tokens"] is None or row["output_tokens"] < 20 for row in cancelled)
    assert any(row["first_ns"] is not None for row in cancelled)
    measured = [row for row in ended.turns if row["phase"] == "measure"]
    whole = [row for row in measured if row["finish_reason"] != "cancelled"]
    assert ended.summary["latency"]["e2e_ms"]["count"] == len(whole)
    assert ended.summary["latency"]["ttft_ms"]["count"] > len(whole)
    assert "turns cancelled" in ended.text


def subagents(sandbox: Sandbox, context: str) -> FinishedRun:
    plan = {"share": 1.0, "count": 2, "steps": 2, "prompt_tokens": 10, "system_prompt_tokens": 30, "context": context}
    return executed(sandbox, subagents=plan)


@run_cases(subagents, ("fresh",), ("fork",))
def test_sub_agents_run_concurrently(run_pool: RunPool, run_case: RunCase) -> None:
    ended = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    check_counts(ended)
    rows = {row["turn_id"]: row for row in ended.turns}
    (block,) = ended.summary["tasks"].values()
    done = [row["session_id"] for row in ended.turns if row["final"]]
    assert block["done"] > 0
    for session in done:
        children = [
            row for row in rows.values() if row["session_id"].startswith(f"{session}/") and row["turn_index"] == 0
        ]
        assert len(children) == 4  # two steps with calls, two sub-agents each
        started = sorted(row["planned_ns"] for row in children)
        assert started[0] == started[1]
        assert started[2] == started[3]
        before = rows[f"{session}.0"]
        forked = run_case.arguments == ("fork",)
        assert (min(row["input_tokens"] for row in children) >= before["input_tokens"]) == forked


def test_sessions_of_bundled_agents_are_reproducible() -> None:
    for name in ("agent-tools", "agent-subagents"):
        first, second = (
            [turn.ask.output_tokens for turn in outline(Sessions(load(name)).begin(7).script, 7)] for _ in range(2)
        )
        assert first == second
