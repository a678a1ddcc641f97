"""Parser of OpenTelemetry spans of generative AI: OTLP JSON of the file exporter, one span a record, or the spans of a session.

Names of attributes: semantic conventions of OpenTelemetry (also those up to 1.26) and of OpenInference 0.1.42.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from inferload.base.clock import NS_PER_S
from inferload.workload.traces.turn import (
    Missing,
    RecordedTurn,
    TraceFault,
    count_of,
    instant_s,
    is_missing,
    json_line,
    name_of,
)

_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
# Cached input tokens of the provider; 0 says nothing about shared prefixes.
_CACHED = ("gen_ai.usage.cache_read.input_tokens", "llm.token_count.prompt_details.cache_read")
# Reasons why an answer ended, as a text, a list, or a list in JSON.
_FINISH, _CALLS = ("gen_ai.response.finish_reasons", "llm.finish_reason"), ("tool_call", "tool_use", "function_call")
_SESSION = ("gen_ai.conversation.id", "session.id")
# Attributes that change the load and are not used.
_UNUSED = (
    "gen_ai.request.model",
    "llm.model_name",
    "gen_ai.request.choice.count",
    *(f"gen_ai.usage.{kind}.input_tokens" for kind in ("image", "audio", "video")),
    "llm.token_count.prompt_details.audio",
)
# Kinds of spans that are one request to a model. Spans of agents, chains and tools repeat the tokens of their child spans.
_REQUESTS = ("chat", "generate_content", "text_completion", "generate", "completion", "responses", "llm")
_KINDS = ("gen_ai.operation.name", "openinference.span.kind", "traceloop.span.kind")
_FAILED = (2, "2", "ERROR", "STATUS_CODE_ERROR")

Span = Mapping[str, Any]


def otel(value: Any) -> Iterator[RecordedTurn | str]:
    """Parse the spans of requests to a model, and skip others. Session: the conversation's id, else the trace's."""
    for span, of_record in _spans(value):
        attributes = _attributes(span)
        kind = name_of(attributes, *_KINDS)
        tokens = {"input": _first(attributes, _INPUT), "output": _first(attributes, _OUTPUT)}
        known = [name for name, count in tokens.items() if not is_missing(count)]
        if (kind is not None and kind.lower() not in _REQUESTS) or (kind is None and not known):
            continue
        if _mapping(span.get("status")).get("code") in _FAILED or span.get("status_code") in _FAILED:
            yield "that failed"
            continue
        if len(known) < len(tokens):
            yield f"without a count of {' and '.join(name for name in tokens if name not in known)} tokens"
            continue
        try:
            yield _turn(span, attributes, tokens, of_record)
        except Missing as missing:  # of this span alone
            yield missing.reason


def _turn(span: Span, attributes: Mapping[str, Any], tokens: Mapping[str, Any], of_record: str | None) -> RecordedTurn:
    cached = _first(attributes, _CACHED)
    of_trace = name_of(span, "traceId", "trace_id", "context.trace_id") or name_of(
        _mapping(span.get("context")), "trace_id"
    )
    return RecordedTurn(
        _time_s(span, "startTimeUnixNano", "start_time"),
        count_of(tokens, "input"),
        count_of(tokens, "output"),
        session=name_of(attributes, *_SESSION) or of_record or of_trace,
        ends_s=_time_s(span, "endTimeUnixNano", "end_time"),
        prefix_tokens=None if is_missing(cached) else count_of({"cached": cached}, "cached") or None,
        calls=any(word in str(_first(attributes, _FINISH)) for word in _CALLS),
    )


def unused(value: Any) -> Iterator[str]:
    """Yield the attributes that change the load and are not used, of each span with one."""
    for span, _session in _spans(value):
        attributes = _attributes(span)
        yield from (key for key in _UNUSED if not is_missing(attributes.get(key)))


def _spans(value: Any, session: str | None = None, inside: bool = False) -> Iterator[tuple[Span, str | None]]:
    """Yield each span with attributes, and the session that its record names. `inside`: of a part of a record."""
    inner = ("resourceSpans", "batches", "scopeSpans", "instrumentationLibrarySpans", "spans")
    if isinstance(value, list):
        for item in value:
            yield from _spans(item, session, inside)
    elif isinstance(value, Mapping) and (keys := [key for key in inner if key in value]):
        yield from _spans(_decoded(value[keys[0]]), name_of(value, "session_id") or session, inside=True)
    elif isinstance(value, Mapping) and any(key.startswith("attributes") for key in value):
        yield value, session
    elif not inside:
        raise TraceFault("neither resourceSpans of OTLP nor a span with attributes")


def _attributes(span: Span) -> dict[str, Any]:
    """Return attributes by name: from OTLP's list of typed values, a mapping, a nested one, or columns of a table."""
    value = _decoded(span.get("attributes"))
    if isinstance(value, list):
        return {item["key"]: next(iter(item.get("value", {}).values()), None) for item in value if "key" in item}
    columns = {key.removeprefix("attributes."): item for key, item in span.items() if key.startswith("attributes.")}
    return dict(_flat(_mapping(value) or columns))


def _flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{before}{key}.")
        else:
            yield f"{before}{key}", item


def _decoded(value: Any) -> Any:
    """Return a value that may be JSON in a cell of a table."""
    return json_line(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _first(attributes: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((attributes[key] for key in keys if attributes.get(key) is not None), None)


def _time_s(span: Span, nanos: str, iso: str) -> float:
    if span.get(nanos) is not None:
        try:
            return int(span[nanos]) / NS_PER_S
        except (TypeError, ValueError):
            raise TraceFault(f"{nanos} is {span[nanos]!r}; it must be a number of nanoseconds") from None
    return instant_s(iso, span.get(iso))
