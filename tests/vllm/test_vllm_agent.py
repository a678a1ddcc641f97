"""Live agents against vLLM on the CPU."""

import json
from pathlib import Path
from typing import Any

import locust_process
import pytest
import vllm_servers
from inferload.deploy.launcher.server_state import LocalServer

pytestmark = pytest.mark.vllm

LIVE_AGENT = """
import json
from pathlib import Path
from typing import Any
from inferload.locustfiles.toolagent import TOOLS, ToolAgent, definition
from inferload.workload.live_agent import Say


def strict(expression):
    tool = definition("calculate", "Calculate.", expression="")
    tool["function"]["parameters"] |= {"properties": {"expression": expression}, "additionalProperties": False}
    tool["function"]["strict"] = True  # else the grammar is any JSON, which random weights seldom end
    return tool


SUM, ENDLESS = strict({"enum": ["20 + 22"]}), strict({"type": "string", "minLength": 4000})
FORCED = {"type": "function", "function": {"name": "calculate"}}


class Clerk(ToolAgent):
    def step(self, messages):
        with Path(__file__).with_name("seen.jsonl").open("a") as file:
            file.write(json.dumps([self.session, messages]) + "\\n")
        say = super().step(messages)
        if say is None or self.session == 0:  # the first one is unconstrained
            return say
        if messages:
            return Say(say.messages, TOOLS, tool_choice="none", output_tokens=4)
        tool, tokens = (SUM, 600) if self.session == 1 else (ENDLESS, 120)  # the grammar permits blanks
        return Say(say.messages, [tool], tool_choice=FORCED, output_tokens=tokens)
"""


def test_a_live_agent_receives_the_replies_of_the_model(vllm_small: LocalServer, tmp_path: Path) -> None:
    """Three sessions: without a call, a forced call with its tool result, and a truncated call."""
    (tmp_path / "clerk.py").write_text(LIVE_AGENT)
    workload = {"kind": "live_agent", "agent": "clerk.py:Clerk", "output_tokens": 12}
    run_dir = vllm_servers.run(vllm_small, tmp_path, workload=workload, arrivals__users=1, phases__sessions=3)
    summary = locust_process.summary_of(run_dir)
    seen: dict[int, list[Any]] = {}
    for line in (tmp_path / "seen.jsonl").read_text().splitlines():
        session, messages = json.loads(line)
        seen.setdefault(session, []).append(messages)
    assert {session: len(steps) for session, steps in seen.items()} == {0: 2, 1: 3, 2: 3}
    assert "tool_calls" not in seen[0][-1][-1]
    for session, arguments, result in ((1, {"expression": "20 + 22"}, "42"), (2, None, "error: KeyError")):
        _question, answer, tool_message, last = seen[session][-1]
        (call,) = answer["tool_calls"]
        assert call["function"]["name"] == "calculate"
        found = json.loads(call["function"]["arguments"])
        assert found == arguments if arguments else found.keys() == {"unparsed"}
        assert (tool_message["role"], tool_message["tool_call_id"]) == ("tool", call["id"])
        assert tool_message["content"].startswith(result)
        assert "tool_calls" not in last
    (block,) = summary["tasks"].values()
    assert (block["begun"], block["done"]) == (3, 3)
    assert summary["turns"]["by_phase"]["all"]["failed"] == 0
    notes = json.loads((run_dir / "run.json").read_text())["workload"]["notes"]
    assert notes["tool calls to live agents whose arguments are not a JSON object"] == 1
    assert notes["answers to live agents truncated at max_tokens"] >= 1
