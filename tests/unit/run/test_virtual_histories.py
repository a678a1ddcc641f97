"""Runs against servers that insist on their own fields in the history (tests/support/client/strict_server.py)."""

import json
from pathlib import Path
from typing import Any

import pytest
import virtual
from e2e_runs import scenario

SERVERS = {"fields": "chat", "gateway": "chat", "signatures": "messages", "encrypted": "responses"}
CHAT = {"kind": "chat", "turns": 4, "prompt_tokens": 9, "output_tokens": 9}
LIVE = {"kind": "live_agent", "agent": "inferload.locustfiles.toolagent:ToolAgent"}
TOOL = {"name": "look", "time_s": 0.2, "result_tokens": 9}
SIZES = {"tools_tokens": 200, "system_prompt_tokens": 9, "prompt_tokens": 9, "context_limit_tokens": 3000}
PLANNED = {"kind": "agent", "steps": 3, "output_tokens": 9, "tools": [TOOL], "parallel_calls": 0.5, **SIZES}
TALK = """
from locust import constant, task
from inferload.users import InferenceUser

TOOL = {"type": "function", "function": {"name": "list_files", "parameters": {"type": "object"}}}


class Talker(InferenceUser):
    wait_time = constant(1)

    @task
    def talk(self):
        with self.conversation(max_tokens=8, tools=[TOOL]) as chat:
            reply = chat.ask("Hi")
            while reply.tool_calls:
                reply = chat.ask([{"role": "tool", "tool_call_id": c.call_id, "content": "1"} for c in reply.tool_calls])
            chat.ask("And?")
"""


def check(run: virtual.VirtualRun, longest: int) -> None:
    assert run.code == 0, run.text
    assert {(row["failure"], row["status"]) for row in run.turns} == {(None, 200)}, run.text
    assert max(row["turn_index"] for row in run.turns) == longest


def planned(folder: Path, server: str, workload: dict[str, Any]) -> virtual.VirtualRun:
    arrivals = {"kind": "closed", "users": 2, "spawn_per_s": 50}
    request = {"endpoint": SERVERS.get(server, "chat"), "ignore_eos": False, "wrong_length": "warn"}
    file = scenario(
        folder, workload=workload, phases={"sessions": 4, "drain_s": 20}, arrivals=arrivals, request=request
    )
    return virtual.run(folder, file, "--on-invalid", "warn", script=f"strict_server:{server}")


def talking(folder: Path, server: str) -> virtual.VirtualRun:
    (folder / "talk.py").write_text(TALK)
    options = ("--users", "2", "-t", "5s", "--model", "scripted", "--on-invalid", "warn")
    return virtual.run(folder, None, *options, script=f"strict_server:{server}", locustfile=folder / "talk.py")


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(("workload", "longest"), [(CHAT, 3), (LIVE, 2), (PLANNED, 2)])
def test_a_server_gets_its_own_fields_back(server: str, workload: dict[str, Any], longest: int, tmp_path: Path) -> None:
    check(planned(tmp_path, server, workload), longest)


def test_a_conversation_has_the_fields_of_the_server(tmp_path: Path) -> None:
    run = talking(tmp_path, "fields")
    check(run, 3)
    last = json.loads([request for request in run.requests if "And?" in request][-1].partition("\r\n\r\n")[2])
    assert [message["role"] for message in last["messages"]].count("assistant") == 3


@pytest.mark.parametrize("form", ["sessions", "conversations"])
def test_an_answer_that_is_too_large_for_a_history_ends_its_session_with_a_note(form: str, tmp_path: Path) -> None:
    run = planned(tmp_path, "huge", CHAT) if form == "sessions" else talking(tmp_path, "huge")
    assert {row["turn_index"] for row in run.turns} == {0, 1}, run.text
    ((note, count),) = run.manifest["workload"]["notes"].items()
    assert "sessions ended by an answer with more than 1 MB beside its text" in note
    assert count == len([row for row in run.turns if row["turn_index"]])
    assert (run.summary["sessions"]["completed"], {row["failure"] for row in run.turns}) == (0, {None})
    assert "too large to be sent back" in run.text
    assert "Traceback" not in run.text
