"""Expected cache hits and those of vLLM on the CPU: shared system prompt, isolated sessions, cold and warm passes."""

from pathlib import Path
from typing import Any

import locust_process
import pytest
from inferload.deploy.launcher import launch
from inferload.deploy.launcher.server_state import LocalServer
from locust_process import summary_of

pytestmark = pytest.mark.vllm

POINTS = 0.02

CHAT = """
schema: 1
name: shared
workload:
  kind: chat
  turns: 3
  system_prompt_tokens: 700
  prompt_tokens: {dist: uniform, min: 150, max: 400}
  output_tokens: {dist: uniform, min: 16, max: 48}
arrivals: {kind: constant, sessions_per_s: 2}
phases: {sessions: 16, drain_s: 60}
"""
ALONE = CHAT.replace("turns: 3", "turns: 1").replace("system_prompt_tokens: 700", "system_prompt_tokens: 0")


def _run(server: LocalServer, folder: Path, text: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(text)
    client_cores, _ = launch.split_cores(launch.available_cores())
    with launch.on_cores(client_cores):
        process = locust_process.start(
            *("--headless", "--scenario", str(path), "--host", server.url, "--run-dir", str(folder / "run")),
            *("--on-invalid", "warn", "--only-summary"),
            cwd=folder,
        )
    try:
        assert process.exit_code(120) == 0, process.text
    finally:
        process.kill()
    return folder / "run"


def _checked(cache: dict[str, Any]) -> dict[str, Any]:
    """Return the block after the checks common to all runs."""
    expected, counted, per_turn = cache["expected"], cache["counted"], cache["per_turn"]
    assert (cache["block_size"], cache["block_size_from"], cache["enabled"]) == (128, "server", True)
    assert all("count as not cached" in note for note in expected["notes"]), expected["notes"]
    assert expected["input_tokens"] == counted["queries"] == per_turn["input_tokens"]
    assert counted["hits"] == per_turn["cached_tokens"]
    assert counted["hit_rate"] >= expected["hit_rate"] - POINTS
    return cache


@pytest.mark.parametrize("isolate", ["run", "session"])
def test_a_shared_system_prompt_has_the_expected_cache_hits(
    vllm_server: LocalServer, tmp_path: Path, isolate: str
) -> None:
    summary = summary_of(_run(vllm_server, tmp_path, CHAT + f"cache: {{isolate: {isolate}}}\n"))
    cache = _checked(summary["cache"])
    assert abs(cache["counted"]["hit_rate"] - cache["expected"]["hit_rate"]) <= POINTS
    assert cache["counted"]["hits"] > 0
    assert "warm_cache" not in {reason["code"] for reason in summary["verdict"]["reasons"]}


def test_a_repeated_run_has_exactly_the_expected_cache_hits(vllm_server: LocalServer, tmp_path: Path) -> None:
    folder = _run(vllm_server, tmp_path, ALONE + "cache: {arm: both}\n")
    cold = _checked(summary_of(folder)["cache"])
    warm = _checked(summary_of(folder.with_name("run-warm"))["cache"])
    assert cold["counted"]["hits"] == cold["expected"]["cached_tokens"]
    assert warm["counted"]["hits"] == warm["expected"]["cached_tokens"] == warm["expected"]["cacheable_tokens"]
    assert warm["earlier"]["measures"]["ttft_ms"]["pairs"] == summary_of(folder)["turns"]["ok"]
