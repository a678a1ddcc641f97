"""Spans of `--export-traces`: sampling, failed turns, and options."""

import re
from importlib.machinery import ModuleSpec

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from paths import ROOT
from records import turn

from inferload.base.clock import Anchor
from inferload.base.errors import UsageError
from inferload.client.turn import TurnResult
from inferload.figures.turn_figures import OF_TURN
from inferload.run.process import trace_export
from inferload.run.process.trace_export import TraceExport
from inferload.run.worker.turn_tracer import TurnTracer, attributes
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.turns.record import Failure

ANCHOR = Anchor(wall_ns=1_700_000_000_000_000_000, mono_ns=0)


def spans_of(ratio: float, results: list[TurnResult], run_id: str = "r1") -> tuple[list[ReadableSpan], list[str]]:
    """Return the exported spans of turns, and the headers of their requests."""
    exporter = InMemorySpanExporter()
    tracer = TurnTracer(TraceExport("http://127.0.0.1:9/v1/traces", ratio), run_id, "w0", ANCHOR, exporter)
    headers = [tracer.header(result.record.turn_id)[1] for result in results]
    tracer.add(ENDPOINTS["chat"], results)
    tracer.close()
    return list(exporter.get_finished_spans()), headers


def many(count: int) -> list[TurnResult]:
    return [TurnResult(turn(turn_id=f"s{number}.0"), "", "") for number in range(count)]


def test_the_sampled_share_is_the_ratio() -> None:
    results = many(1000)
    sampled: list[set[object]] = []
    for ratio in (0.05, 0.4, 1.0):
        spans, headers = spans_of(ratio, results)
        assert len(spans) == sum(header.endswith("-01") for header in headers)
        assert len(spans) == pytest.approx(1000 * ratio, abs=60)
        assert all(re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", header) for header in headers)
        sampled.append({(span.attributes or {})["inferload.turn.id"] for span in spans})
    assert sampled[0] < sampled[1] < sampled[2]
    assert len(sampled[2]) == 1000


def test_trace_ids_differ_between_runs() -> None:
    assert not set(spans_of(1, many(50))[1]) & set(spans_of(1, many(50), "r2")[1])


def test_a_failed_turn_has_a_failed_span_without_unknown_values() -> None:
    record = turn(
        failure=Failure.CONNECT,
        **dict.fromkeys(("sent_ns", "written_ns", "first_event_ns", "first_ns", "last_ns", "event_ns", "status")),
        **dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens", "finish_reason")),
    )
    ((span,), _headers) = spans_of(1, [TurnResult(record, "", "connection refused")])
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "connection refused")
    attributes = dict(span.attributes or {})
    assert attributes["error.type"] == "connect"
    assert not [name for name in attributes if "usage" in name or "finish" in name or "first_chunk" in name]
    assert span.start_time == ANCHOR.to_wall_ns(record.planned_ns)
    assert span.end_time == ANCHOR.to_wall_ns(record.closed_ns)
    assert span.events == ()


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("http://[::1]:4318/otlp/v1/traces", "http://[::1]:4318/otlp/v1/traces"),
    ],
)
def test_endpoints_are_parsed(url: str, endpoint: str) -> None:
    assert TraceExport.parse(url, "") == TraceExport(endpoint, 0.01)
    assert TraceExport.parse(url, "0.5") == TraceExport(endpoint, 0.5)
    assert TraceExport.parse("", "") is None


@pytest.mark.parametrize(
    "url", ["collector:4318", "grpc://collector:4317", "http://", "http://me:secret@collector:4318"]
)
def test_invalid_endpoints_are_refused_without_the_password(url: str) -> None:
    with pytest.raises(
        UsageError, match=r"--export-traces .*: not an address; write it as http://collector:4318"
    ) as error:
        TraceExport.parse(url, "")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("ratio", ["0", "-0.1", "1.01", "nan", "half"])
def test_invalid_ratios_are_refused(ratio: str) -> None:
    with pytest.raises(UsageError, match=f"--trace-ratio {ratio}: not a share"):
        TraceExport.parse("http://collector:4318", ratio)


def test_the_documentation_has_every_attribute() -> None:
    failed = attributes(
        ENDPOINTS["chat"], turn(failure=Failure.CUT, max_tokens=5, request_id="r", model="m", target="http://h:1"), "r1"
    )
    page = (ROOT / "docs" / "how-to" / "opentelemetry.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`([a-z0-9_.]+)`", page.rpartition("|---|---|")[2])) >= failed.keys()
    assert len(failed) == 20 + len(OF_TURN)


def test_a_missing_package_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(trace_export, "find_spec", missing)
    with pytest.raises(UsageError, match=r"opentelemetry-sdk is not installed; pip install 'inferload\[otel\]'"):
        TraceExport.parse("http://collector:4318", "1")
