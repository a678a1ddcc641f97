"""Properties of vLLM on the CPU that inferload relies on."""

import http.client
import json
from typing import Any

import pytest
import vllm_servers
from e2e_runs import wait_until
from inferload.deploy.launcher import probe, server_state
from inferload.deploy.launcher.server_state import LocalServer

pytestmark = pytest.mark.vllm


def stream(server: LocalServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the JSON of each event of a streamed chat completion; fails unless the stream ends with [DONE]."""
    text = probe.text(server.host, server.port, "/v1/chat/completions", body, 120)
    events = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def chat(prompt: str, salt: str, tokens: int = 8) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "cache_salt": salt,
    }


def leave(server: LocalServer) -> None:
    """Begin a long answer and leave it."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    body = json.dumps(chat("a stream that is not read to its end", "gone", tokens=1500))
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.read(20)
    response.close()
    connection.close()


def test_a_stream_ends_with_usage_cached_tokens_and_request_times(vllm_server: LocalServer) -> None:
    prompt = "some plain words that fill several blocks of the cache " * 40
    cold = stream(vllm_server, chat(prompt, "first"))[-1]
    warm = stream(vllm_server, chat(prompt, "first"))[-1]
    other = stream(vllm_server, chat(prompt, "second"))[-1]
    prompt_tokens = cold["usage"]["prompt_tokens"]
    cached = [last["usage"]["prompt_tokens_details"]["cached_tokens"] for last in (cold, warm, other)]
    assert cached == [0, (prompt_tokens - 1) // vllm_servers.BLOCK * vllm_servers.BLOCK, 0]
    for last in (cold, warm, other):
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 8
        times = last["metrics"]
        assert times["time_to_first_token_ms"] > 0
        assert times["generation_time_ms"] > 0
        assert times["queue_time_ms"] >= 0


def test_common_words_are_single_tokens(vllm_server: LocalServer) -> None:
    words = " ".join(["the quick brown dog and the small cat had to wait for the next train"] * 3)
    counted = probe.ask(vllm_server.host, vllm_server.port, "/tokenize", {"model": "tiny", "prompt": words})
    assert counted["count"] == len(words.split())
    assert counted["max_model_len"] == 32768


def test_the_server_reports_version_and_model(vllm_server: LocalServer) -> None:
    version = probe.ask(vllm_server.host, vllm_server.port, "/version")
    assert version["version"].startswith("0.32.")
    assert probe.model(vllm_server.host, vllm_server.port) == "tiny"
    listed = probe.ask(vllm_server.host, vllm_server.port, "/v1/models")["data"][0]
    assert (listed["owned_by"], listed["max_model_len"]) == ("vllm", 32768)


def test_server_processes_are_a_group_recorded_in_the_state_file(vllm_server: LocalServer) -> None:
    recorded = server_state.recall(server_state.state_file(vllm_server.port))
    assert recorded == vllm_server
    assert len(server_state.group(recorded)) >= 2  # the front end and the engine at least


def test_an_aborted_request_frees_its_blocks_and_is_not_counted(vllm_server: LocalServer) -> None:
    ended = ("vllm:request_success_total", "vllm:e2e_request_latency_seconds_count")
    before = [vllm_servers.value(vllm_server, name) for name in ended]
    leave(vllm_server)
    wait_until(lambda: vllm_servers.value(vllm_server, "vllm:num_requests_running{") == 0, "the request has ended")
    assert vllm_servers.value(vllm_server, "vllm:kv_cache_usage_perc{") == 0
    assert [vllm_servers.value(vllm_server, name) for name in ended] == before
