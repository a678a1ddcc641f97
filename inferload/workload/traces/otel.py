"""Parser of OpenTelemetry spans of generative AI: OTLP JSON of the file exporter, one span a record, or the spans of a session.

Names of attributes: semantic conventions of OpenTelemetry (also those up to 1.26) and of OpenInference 0.1.42.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from inferload.base.clock import NS_PER_S
from inferload.base.escaping import escaped
from inferload.workload.traces.turn import (
    Missing,
    RecordedTurn,
    Row,
    TraceFault,
    count_of,
    instant_s,
    json_value,
    name_of,
)

_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
# Cached input tokens of the provider; 0 says nothing about shared prefixes.
_CACHED = ("gen_ai.usage.cache_read.input_tokens", "llm.token_count.prompt_details.cache_read")
# Reasons why an answer ended, as a text, a list, or a list in JSON.
_FINISH, _CALLS = ("gen_ai.response.finish_reasons", "llm.finish_reason"), ("tool_call", "tool_use", "function_call")
_SESSION = ("gen_ai.conversation.id", "session.id", "session_id", "traceId", "trace_id", "context.trace_id")
# Attributes that change the load and are not used.
_UNUSED = {f"gen_ai.usage.{kind}.input_tokens" for kind in ("image", "audio", "video")}
_UNUSED.add("llm.token_count.prompt_details.audio")
# Kinds of spans that are one request to a model, and of others, which may repeat the tokens of their child spans.
_REQUESTS = ("chat", "generate_content", "text_completion", "generate", "completion", "responses", "llm")
_OTHERS = (
    "agent chain embedding embeddings evaluator guardrail prompt reranker retriever tool unknown create_agent execute_tool "
    "invoke_agent invoke_workflow plan retrieval"
)
_SKIPPED = _OTHERS.split()
_KINDS = ("gen_ai.operation.name", "openinference.span.kind")
_STATUS = ("status.code", "status_code", "status.status_code")
_FAILED = ("2", "ERROR", "STATUS_CODE_ERROR", "StatusCode.ERROR")
_PARTS = ("resourceSpans", "batches", "scopeSpans", "instrumentationLibrarySpans", "spans")
_LONGEST = 40  # of the name of an operation in messages


def otel(value: Any) -> Iterator[RecordedTurn | str]:
    """Parse the spans of requests to a model, and skip others. Session: the conversation's id, else the record's or the trace's."""
    for span in _spans(value):
        kind = (name_of(span, *_KINDS) or "").lower()
        tokens = {"input": name_of(span, *_INPUT), "output": name_of(span, *_OUTPUT)}
        unknown = [name for name, count in tokens.items() if count is None]
        if kind in _SKIPPED or (kind not in _REQUESTS and len(unknown) == len(tokens)):
            continue
        if kind and kind not in _REQUESTS:
            yield f"of the unknown operation {escaped(kind[:_LONGEST])}"
        elif name_of(span, *_STATUS) in _FAILED or name_of(span, "error.type") is not None:
            yield "that failed"
        elif unknown:
            yield f"without a count of {' and '.join(unknown)} tokens"
        else:
            try:
                yield _turn(span, tokens)
            except Missing as missing:  # of this span alone
                yield missing.text


def _turn(span: Row, tokens: Row) -> RecordedTurn:
    return RecordedTurn(
        _time_s(span, "startTimeUnixNano", "start_time"),
        count_of(tokens, "input"),
        count_of(tokens, "output"),
        session=name_of(span, *_SESSION),
        ends_s=_time_s(span, "endTimeUnixNano", "end_time"),
        prefix_tokens=count_of({"cached": name_of(span, *_CACHED) or "0"}, "cached") or None,
        calls=any(word in (name_of(span, *_FINISH) or "") for word in _CALLS),
    )


def unused(value: Any) -> list[str]:
    """Return the attributes that change the load and are not used, of each span with one."""
    return [key for span in _spans(value) for key in _UNUSED & span.keys() if name_of(span, key) not in (None, "0")]


def _spans(value: Any, inside: Row | None = None) -> Iterator[Row]:
    """Yield each span with attributes as a flat mapping. `inside`: the name of the session that a record around it has."""
    if isinstance(value, list):
        for item in value:
            yield from _spans(item, inside)
    elif isinstance(value, Mapping) and (part := next((key for key in _PARTS if key in value), None)):
        session = {"session_id": value["session_id"]} if "session_id" in value else {}
        yield from _spans(_decoded(value[part]), {**(inside or {}), **session})
    elif isinstance(value, Mapping) and any(key.startswith("attributes") for key in value):
        yield {key.removeprefix("attributes."): item for key, item in _flat({**(inside or {}), **value})}
    elif inside is None:
        raise TraceFault("neither resourceSpans of OTLP nor a span with attributes")


def _flat(value: Row, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a span with their paths. Attributes are OTLP's list of typed values, a mapping, or columns of a table."""
    for key, encoded in value.items():
        item = _decoded(encoded) if key == "attributes" else encoded
        if key == "attributes" and isinstance(item, list):
            item = {each["key"]: next(iter((each.get("value") or {}).values()), None) for each in item if "key" in each}
        if isinstance(item, Mapping):
            yield from _flat(item, f"{before}{key}.")
        else:
            yield before + key, item


def _decoded(value: Any) -> Any:
    """Return a value that may be JSON in a text."""
    is_json = isinstance(value, str) and value[:1] in ("{", "[")
    return json_value(value.encode("utf-8", "surrogatepass")) if is_json else value


def _time_s(span: Row, nanos: str, iso: str) -> float:
    if span.get(nanos) in (None, 0, "0"):  # OTLP's 0 is a time that is not set
        return instant_s(iso, span.get(iso))
    try:
        return int(span[nanos]) / NS_PER_S
    except (TypeError, ValueError):
        raise TraceFault(f"{nanos} is {span[nanos]!r}; it must be a number of nanoseconds") from None
