"""--export-traces with real vLLM on the CPU: the spans of a request at the client and at the server are one trace."""

from pathlib import Path

import locust_process
import pytest
import vllm_servers
from e2e_runs import wait_until
from inferload.deploy.launcher.server_state import LocalServer
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otlp_collector import Collector, attributes_of

pytestmark = pytest.mark.vllm

SESSIONS = 24


def test_the_span_of_vllm_is_a_child_of_the_span_of_its_turn(
    vllm_features: LocalServer, span_collector: Collector, tmp_path: Path
) -> None:
    words = ("--export-traces", span_collector.url, "--trace-ratio", "0.5", "--model", "tiny")
    workload = {"kind": "chat", "prompt_tokens": 50, "output_tokens": 8}
    vllm_servers.run(vllm_features, tmp_path, *words, workload=workload, phases__sessions=SESSIONS)
    turns = {turn["turn_id"]: turn for turn in locust_process.turns_of(tmp_path / "run")}
    assert len(turns) == SESSIONS
    ours = {span.span_id: span for span in span_collector.of_service("inferload")}
    assert 0 < len(ours) < SESSIONS

    def of_requests() -> list[Span]:
        return [
            span for span in span_collector.of_service("vllm") if span.name == "llm_request" and span.parent_span_id
        ]

    wait_until(lambda: len(of_requests()) >= len(ours), "a span of vLLM for each span of inferload")
    assert {span.parent_span_id for span in of_requests()} == ours.keys()  # none of a turn that is not sampled
    assert len(of_requests()) == len(ours)
    for span in of_requests():
        parent = ours[span.parent_span_id]
        turn = turns[str(attributes_of(parent)["inferload.turn.id"])]
        figures = attributes_of(span)
        assert span.trace_id == parent.trace_id
        assert parent.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= parent.end_time_unix_nano
        assert figures["gen_ai.usage.prompt_tokens"] == turn["input_tokens"]
        assert figures["gen_ai.usage.completion_tokens"] == turn["output_tokens"]
        assert 0 <= figures["gen_ai.latency.time_in_queue"] < figures["gen_ai.latency.e2e"]
