"""Expected hits beside what real vLLM on the CPU counts: a shared system prompt, sessions kept apart, cold and warm."""

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
    """The block, once what all runs here have in common has been looked at."""
    expected, counted, told = cache["expected"], cache["counted"], cache["per_turn"]
    assert (cache["block_size"], cache["block_size_from"], cache["enabled"]) == (128, "server", True)
    assert expected["exactness"] in ("exact", "bounds"), expected["notes"]
    assert expected["input_tokens"] == counted["queries"] == told["input_tokens"]
    assert counted["hits"] == told["cached_tokens"]
    assert expected["hit_rate"] - POINTS <= counted["hit_rate"] <= expected["hit_rate_at_most"] + POINTS
    return cache


@pytest.mark.parametrize("isolate", ["run", "session"])
def test_hits_of_a_chat_with_a_shared_system_prompt_are_those_expected(
    vllm_server: LocalServer, tmp_path: Path, isolate: str
) -> None:
    summary = summary_of(_run(vllm_server, tmp_path, CHAT + f"cache: {{isolate: {isolate}}}\n"))
    cache = _checked(summary["cache"])
    assert abs(cache["counted"]["hit_rate"] - cache["expected"]["hit_rate"]) <= POINTS
    assert cache["counted"]["hits"] > 0
    assert "warm_cache" not in {reason["code"] for reason in summary["verdict"]["reasons"]}


def test_the_same_prompts_on_the_cache_that_they_left_are_found_token_for_token(
    vllm_server: LocalServer, tmp_path: Path
) -> None:
    folder = _run(vllm_server, tmp_path, ALONE + "cache: {arm: both}\n")
    cold = _checked(summary_of(folder)["cache"])
    warm = _checked(summary_of(folder.with_name("run-warm"))["cache"])
    assert cold["counted"]["hits"] == cold["expected"]["cached_tokens"]
    assert warm["counted"]["hits"] == warm["expected"]["cached_tokens"] == warm["expected"]["cacheable_tokens"]
    assert warm["earlier"]["measures"]["ttft_ms"]["pairs"] == summary_of(folder)["turns"]["ok"]
