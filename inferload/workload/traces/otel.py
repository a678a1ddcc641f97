"""Parser of OpenTelemetry spans of generative AI: OTLP JSON of the file exporter, or one span per line."""

from collections.abc import Iterator, Mapping
from typing import Any

from inferload.base.clock import NS_PER_S
from inferload.workload.traces.turn import RecordedTurn, TraceFault, count_of, instant_s, json_line

# Current names of the semantic conventions, then those up to 1.26.
_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
# Cached input tokens of the provider; 0 says nothing about shared prefixes.
_CACHED = ("gen_ai.usage.cache_read.input_tokens",)
_SESSION = ("gen_ai.conversation.id", "session.id")


def otel(line: str) -> Iterator[RecordedTurn]:
    """Parse spans with input and output tokens, and skip others. Session: the conversation's id, else the trace's."""
    value = json_line(line)
    for span in _spans(value):
        attributes = _attributes(span.get("attributes"))
        kinds = (("input", _INPUT), ("output", _OUTPUT), ("cached", _CACHED))
        tokens = {name: _first(attributes, keys) for name, keys in kinds}
        if tokens["input"] is None or tokens["output"] is None or _is_parent(attributes):
            continue
        session = _first(attributes, _SESSION) or span.get("traceId") or span.get("trace_id")
        context = span.get("context")
        if session is None and isinstance(context, dict):
            session = context.get("trace_id")
        yield RecordedTurn(
            _time_s(span, "startTimeUnixNano", "start_time"),
            count_of(tokens, "input"),
            count_of(tokens, "output"),
            session=None if session is None else str(session),
            ends_s=_time_s(span, "endTimeUnixNano", "end_time"),
            prefix_tokens=(count_of(tokens, "cached") or None) if tokens["cached"] is not None else None,
        )


def _is_parent(attributes: Mapping[str, Any]) -> bool:
    """Return whether a span is that of an agent or a tool, whose child spans report the same tokens."""
    return attributes.get("gen_ai.operation.name") in (
        "invoke_agent",
        "create_agent",
        "execute_tool",
        "invoke_workflow",
    )


def _spans(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for item in value:
            yield from _spans(item)
    elif isinstance(value, dict) and "resourceSpans" in value:
        for resource in value["resourceSpans"]:
            for scope in resource.get("scopeSpans", ()):
                yield from scope.get("spans", ())
    elif isinstance(value, dict) and "attributes" in value:
        yield value
    else:
        raise TraceFault("neither resourceSpans of OTLP nor a span with attributes")


def _attributes(value: Any) -> dict[str, Any]:
    """Return attributes by name, from OTLP's list of typed values or a plain mapping."""
    if isinstance(value, list):
        return {item["key"]: next(iter(item.get("value", {}).values()), None) for item in value if "key" in item}
    return value if isinstance(value, dict) else {}


def _first(attributes: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((attributes[key] for key in keys if attributes.get(key) is not None), None)


def _time_s(span: Mapping[str, Any], nanos: str, iso: str) -> float:
    if span.get(nanos) is not None:
        try:
            return int(span[nanos]) / NS_PER_S
        except (TypeError, ValueError):
            raise TraceFault(f"{nanos} is {span[nanos]!r}; it must be a number of nanoseconds") from None
    if span.get(iso) is None:
        raise TraceFault(f"{nanos} and {iso} are missing")
    return instant_s(iso, span[iso])
