"""OpenTelemetry spans of sampled turns, by the semantic conventions for generative AI, sent by OTLP/HTTP."""

import hashlib
import logging
from collections.abc import Sequence

import gevent
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from inferload import __version__
from inferload.base.clock import Anchor
from inferload.client.connection.target import Target
from inferload.client.turn_record import TurnResult
from inferload.figures.turn_batch import TurnBatch
from inferload.figures.turn_figures import FIRST_EVENT, OF_TURN
from inferload.run.process.trace_export import TraceExport
from inferload.scenario.schema.endpoints import Endpoint
from inferload.turns.record import TurnRecord

logger = logging.getLogger(__name__)

_EXPORT_S = 5.0  # of one request to the collector
_CLOSE_S = 5.0
_LOW_64 = (1 << 64) - 1


class _Ids(IdGenerator):
    """IDs of the next span, which its turn has sent already."""

    def __init__(self) -> None:
        self.next = (0, 0)  # trace and span

    def generate_trace_id(self) -> int:
        return self.next[0]

    def generate_span_id(self) -> int:
        return self.next[1]


class TurnTracer:
    """Traces of one worker's part of a run: a trace with one span for each sampled turn.

    A hash of run, worker and turn gives the IDs, and decides on sampling as TraceIdRatioBased does.
    """

    def __init__(
        self, export: TraceExport, run_id: str, worker: str, anchor: Anchor, exporter: SpanExporter | None = None
    ) -> None:
        self._run_id = run_id
        self._worker = worker
        self._anchor = anchor
        self._bound = round(export.ratio * (_LOW_64 + 1))
        self._ids = _Ids()
        resource = Resource.create(
            {"service.name": "inferload", "service.version": __version__, "service.instance.id": f"{run_id}/{worker}"}
        )
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, id_generator=self._ids)
        exporter = exporter or OTLPSpanExporter(endpoint=export.endpoint, timeout=_EXPORT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("inferload", __version__)

    def header(self, turn_id: str) -> tuple[str, str]:
        """Return the W3C trace context of a turn's request."""
        trace_id, span_id = self._ids_of(turn_id)
        return "traceparent", f"00-{trace_id:032x}-{span_id:016x}-{self._sampled(trace_id):02x}"

    def add(self, endpoint: Endpoint, results: Sequence[TurnResult]) -> None:
        """Add the spans of the sampled ones of ended turns."""
        for result in results:
            ids = self._ids_of(result.record.turn_id)
            if self._sampled(ids[0]):
                self._ids.next = ids
                self._add(endpoint, result)

    def close(self) -> None:
        """Send the remaining spans, for at most five seconds. Blocks."""
        try:
            with gevent.Timeout(_CLOSE_S):
                self._provider.shutdown()
        except gevent.Timeout:
            logger.warning("traces: the last spans were not sent within %g s", _CLOSE_S)

    def _ids_of(self, turn_id: str) -> tuple[int, int]:
        """Return the trace and span IDs of a turn, which are never 0."""
        digest = hashlib.blake2b(f"{self._run_id}/{self._worker}/{turn_id}".encode(), digest_size=24).digest()
        return int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:]) or 1

    def _sampled(self, trace_id: int) -> bool:
        return trace_id & _LOW_64 < self._bound

    def _add(self, endpoint: Endpoint, result: TurnResult) -> None:
        record = result.record
        start_ns = record.planned_ns if record.sent_ns is None else record.sent_ns
        span = self._tracer.start_span(
            f"{endpoint.operation} {record.model}".strip(),
            context=Context(),  # no parent
            kind=SpanKind.CLIENT,
            attributes=attributes(endpoint, record, self._run_id),
            start_time=self._anchor.to_wall_ns(start_ns),
        )
        for name, at_ns in (("request written", record.written_ns), ("first token", record.first_ns)):
            if at_ns is not None:
                span.add_event(name, timestamp=self._anchor.to_wall_ns(at_ns))
        if record.failure is not None:
            span.set_status(Status(StatusCode.ERROR, result.detail or record.failure.value))
        span.end(self._anchor.to_wall_ns(record.closed_ns))


def attributes(endpoint: Endpoint, record: TurnRecord, run_id: str) -> dict[str, AttributeValue]:
    """Return the attributes of a turn's span, without unknown ones."""
    target = Target.parse(record.target) if record.target else None
    finish = record.finish_reason
    batch = TurnBatch.of_records([record])
    times_ms = {figure: next(iter(figure.values(batch)[0].tolist()), None) for figure in (FIRST_EVENT, *OF_TURN)}
    first_ms = times_ms.pop(FIRST_EVENT)
    values: dict[str, AttributeValue | None] = {
        "gen_ai.operation.name": endpoint.operation,
        "gen_ai.provider.name": endpoint.provider,
        "gen_ai.request.model": record.model or None,
        "gen_ai.request.max_tokens": record.max_tokens,
        "gen_ai.request.stream": record.texts is None,
        "gen_ai.response.finish_reasons": None if finish is None else (finish,),
        "gen_ai.response.id": record.request_id,
        "gen_ai.response.time_to_first_chunk": None if first_ms is None else first_ms / 1e3,
        "gen_ai.usage.input_tokens": record.input_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.conversation.id": record.session_id,
        "server.address": None if target is None else target.host,
        "server.port": None if target is None else target.port,
        "error.type": None if record.failure is None else record.failure.value,
        "http.response.status_code": record.status,
        "inferload.run.id": run_id,
        "inferload.turn.id": record.turn_id,
        "inferload.class": record.class_name,
        "inferload.phase": record.phase,
        **{f"inferload.{figure.key}": value for figure, value in times_ms.items()},
    }
    return {name: value for name, value in values.items() if value is not None}
