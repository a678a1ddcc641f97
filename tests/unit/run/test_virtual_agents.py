"""Runs of agents on a virtual clock: their turns, cancellations, tasks, and the tools of live agents."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import virtual
from e2e_runs import scenario

from inferload.scenario.scenario import load
from inferload.workload.content.script import outline
from inferload.workload.sessions import Sessions

SIZES = {"tools_tokens": 200, "system_prompt_tokens": 100, "prompt_tokens": 40, "context_limit_tokens": 3000}
TOOL = {"name": "look", "time_s": 0.2, "result_tokens": 50, "fails": 0.1}
AGENT = {"kind": "agent", "steps": 3, "output_tokens": 6, "tools": [TOOL], **SIZES}
LIVE = "inferload.locustfiles.toolagent:ToolAgent"
PARROT = """
from inferload.workload.live_agent import LiveAgent, Say

class Parrot(LiveAgent):
    def step(self, messages):
        if len(messages) > 3:
            raise RuntimeError("no more")
        return Say([{"role": "user", "content": f"{len(messages)} so far"}], output_tokens=7, pause_s=0.5)
"""


def executed(folder: Path, *options: str, **workload: Any) -> virtual.VirtualRun:
    request, phases = {"continuous_usage": True}, {"sessions": 8, "drain_s": 60}
    file = scenario(folder, workload=AGENT | workload, request=request, phases=phases)
    run = virtual.run(folder, file, "--details", *options)
    assert run.code == 0, run.text
    run.check_counts()
    return run


def test_agents_call_tools_and_are_summarised_as_tasks(tmp_path: Path) -> None:
    run = executed(tmp_path, "--report", parallel_calls=0.5)
    (block,) = run.summary["tasks"].values()
    by_session = defaultdict(list)
    for row in sorted(run.turns, key=lambda row: row["turn_index"]):
        by_session[row["session_id"]].append(row)
    for first, *_ in by_session.values():
        assert first["pause"] is None
    for rows in by_session.values():
        for before, after in pairwise(rows):
            assert after["pause"] == "tool"
            assert after["sent_ns"] - before["closed_ns"] == 200_000_000
            assert after["input_tokens"] > before["input_tokens"]
            assert after["cached_tokens"] > 0
    done = [rows for rows in by_session.values() if rows[-1]["final"] and rows[0]["phase"] == "measure"]
    assert block["done"] == len(done) == 8
    assert block["tool_s"]["min"] == pytest.approx(2 * 0.2)  # a failed call adds a step
    counts = f"{block['begun']} tasks started in the measure phase, {block['done']} completed"
    assert counts in " ".join(run.text.split())
    assert "Tasks: agent" in (run.run_dir / "report.md").read_text()


def test_cancelled_replies_are_counted_separately(tmp_path: Path) -> None:
    run = executed(tmp_path, cancel={"share": 0.5, "after_s": 0.15, "again_s": 0.05}, output_tokens=20)
    turns = run.summary["turns"]["by_phase"]["all"]
    cancelled = [row for row in run.turns if row["finish_reason"] == "cancelled"]
    assert turns["cancelled"] == len(cancelled) > 0
    assert turns["sent"] == turns["ok"] + turns["failed"] + turns["unfinished"]
    assert {row["failure"] for row in cancelled} == {None}
    assert {row["closed_ns"] - row["sent_ns"] for row in cancelled} == {150_000_000}
    assert {len(row["event_ns"]) for row in cancelled} <= {13, 14}  # after 20, 30, ..., 140 or 150 ms
    measured = [row for row in run.turns if row["phase"] == "measure"]
    whole = [row for row in measured if row["finish_reason"] != "cancelled"]
    assert run.summary["latency"]["e2e_ms"]["count"] == len(whole)
    assert run.summary["latency"]["ttft_ms"]["count"] == len(measured)
    assert "turns cancelled" in run.text


@pytest.mark.parametrize("context", ["fresh", "fork"])
def test_sub_agents_run_concurrently(context: str, tmp_path: Path) -> None:
    plan = {"share": 1.0, "count": 2, "steps": 2, "prompt_tokens": 10, "system_prompt_tokens": 30, "context": context}
    run = executed(tmp_path, subagents=plan)
    rows = {row["turn_id"]: row for row in run.turns}
    (block,) = run.summary["tasks"].values()
    done = [row["session_id"] for row in run.turns if row["final"]]
    assert block["done"] == len(done) == 8
    for session in done:
        children = [
            row for row in rows.values() if row["session_id"].startswith(f"{session}/") and row["turn_index"] == 0
        ]
        assert len(children) == 4  # two steps with calls, two sub-agents each
        started = sorted(row["sent_ns"] for row in children)
        assert started[0] == started[1] < started[2] == started[3]
        before = rows[f"{session}.0"]
        assert (min(row["input_tokens"] for row in children) >= before["input_tokens"]) == (context == "fork")


def test_sessions_of_bundled_agents_are_reproducible() -> None:
    for name in ("agent-tools", "agent-subagents"):
        first, second = (
            [turn.ask.output_tokens for turn in outline(Sessions(load(name)).begin(7).script, 7)] for _ in range(2)
        )
        assert first == second


# -- live agents


def live(folder: Path, agent: str, *, workload: dict[str, Any] | None = None, **server: Any) -> virtual.VirtualRun:
    file = scenario(
        folder,
        workload={"kind": "live_agent", "agent": agent, **(workload or {})},
        phases={"measure_s": 1.5, "drain_s": 20},
        arrivals={"kind": "closed", "users": 2, "spawn_per_s": 50},
        request={"ignore_eos": False},
    )
    run = virtual.run(folder, file, **server)
    run.check_counts(by_server="script" not in server)
    return run


def test_a_run_of_a_live_agent_calls_its_tools(tmp_path: Path) -> None:
    run = live(tmp_path, LIVE, script="tool_server:model_with_tools")
    assert run.code == 0, run.text
    rows = [row for row in run.turns if row["failure"] is None]
    assert {(row["turn_index"], row["pause"], row["final"]) for row in rows} == {(0, None, False), (1, "tool", True)}
    bodies = [json.loads(request.partition("\r\n\r\n")[2]) for request in run.requests if '"tools"' in request]
    results = [body["messages"][-1] for body in bodies if body["messages"][-1]["role"] == "tool"]
    assert results
    assert all(result["content"].startswith("note-") and result["tool_call_id"] == "call-1" for result in results)
    assert run.summary["tasks"]["live_agent"]["done"] > 0
    assert LIVE in json.dumps(run.manifest["workload"])


def test_a_live_agent_continues_after_tool_calls_of_the_simulator(tmp_path: Path) -> None:
    """Replies of the simulator call tools at random with valid arguments."""
    simulator = f"{virtual.PACED} --enable-auto-tool-choice --tool-call-parser hermes --tool-call-share 0.8"
    run = live(tmp_path, LIVE, workload={"output_tokens": 60, "max_steps": 3}, simulator=simulator)
    assert run.code == 0, run.text
    later_turns = [row for row in run.turns if row["turn_index"]]
    assert later_turns
    assert {row["pause"] for row in later_turns} == {"tool"}
    assert max(row["turn_index"] for row in later_turns) == 2
    assert not any("exception" in note for note in run.manifest["workload"]["notes"])
    cache = run.summary["cache"]
    assert cache["expected"] is None
    assert cache["counted"]["hit_rate"] > 0.1


def test_an_exception_of_agent_code_ends_its_session_and_is_logged_once(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PARROT)
    run = live(tmp_path, "mine.py:Parrot", script="tool_server:model_with_tools")
    (count,) = (c for note, c in run.manifest["workload"]["notes"].items() if "exception of their own code" in note)
    assert count > 1
    assert run.text.count("Traceback") == 1, run.text
    assert run.text.count("turn failed (client_error): RuntimeError: no more") == 1
    assert run.summary["sessions"]["completed"] == 0
    assert run.summary["turns"]["by_phase"]["all"]["by_failure"] == {"client_error": count}
    assert run.code == 1
