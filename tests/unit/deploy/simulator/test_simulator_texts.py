"""Embeddings, pooling, score and rerank of the simulator: answers and counters as those of vLLM."""

import http.client
import json
from typing import Any

import pytest
import simulator_process
from simulator_requests import QUICK


@pytest.mark.parametrize(
    ("path", "body", "results", "texts", "tokens"),
    [
        ("/v1/embeddings", {"input": ["a b", "c"]}, 2, 2, 3),
        ("/v1/embeddings", {"input": [7, 8, 9]}, 1, 1, 3),
        ("/pooling", {"input": "a b"}, 1, 1, 2),
        ("/score", {"text_1": "q", "text_2": ["a b", "c"]}, 2, 3, 4),
        ("/v2/rerank", {"query": "q r", "documents": ["a", "b", "c"], "top_n": 2}, 2, 4, 5),
    ],
)
def test_each_text_is_a_request_without_output(
    path: str, body: dict[str, Any], results: int, texts: int, tokens: int
) -> None:
    server = simulator_process.start(*QUICK)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]), timeout=30)

        def asked(method: str, where: str, document: Any = None) -> tuple[int, str]:
            connection.request(method, where, json.dumps(document), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()

        status, text = asked("POST", path, body)
        answer = json.loads(text)
        assert (status, len(answer.get("data") or answer["results"])) == (200, results)
        assert answer["usage"]["prompt_tokens"] == tokens
        assert asked("POST", path, {})[0] == 400
        page = asked("GET", "/metrics")[1]
    finally:
        simulator_process.stop(server)
    samples = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    labels = 'engine="0",model_name="simulator"'
    assert (
        float(samples['vllm:request_success_total{engine="0",finished_reason="stop",model_name="simulator"}']) == texts
    )
    assert float(samples[f"vllm:time_to_first_token_seconds_count{{{labels}}}"]) == texts
    assert float(samples[f"vllm:prompt_tokens_total{{{labels}}}"]) == tokens
    assert float(samples[f"vllm:generation_tokens_total{{{labels}}}"]) == 0
    assert float(samples[f"vllm:inter_token_latency_seconds_count{{{labels}}}"]) == 0
