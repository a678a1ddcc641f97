"""OpenTelemetry spans of generative AI: OTLP in JSON, as its file exporter writes it, or a span in each line."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from inferload.workload.traces.turn import RecordedTurn, TraceFault, count_of, json_line

# The attribute as the conventions name it now, and as they did up to 1.26.
_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
# Of the input, what the provider's cache had, where the span says so; 0 tells nothing of what prompts have in common.
_CACHED = ("gen_ai.usage.cache_read.input_tokens",)
_SESSION = ("gen_ai.conversation.id", "session.id")


def otel(line: str) -> Iterator[RecordedTurn]:
    """Spans that report input and output tokens; others are passed over. The conversation's id, or the trace's, is the session."""
    value = json_line(line)
    for span in _spans(value):
        attributes = _attributes(span.get("attributes"))
        kinds = (("input", _INPUT), ("output", _OUTPUT), ("cached", _CACHED))
        found = {name: _first(attributes, keys) for name, keys in kinds}
        if found["input"] is None or found["output"] is None or _above_others(attributes):
            continue
        session = _first(attributes, _SESSION) or span.get("traceId") or span.get("trace_id")
        context = span.get("context")
        if session is None and isinstance(context, dict):
            session = context.get("trace_id")
        yield RecordedTurn(
            _time_s(span, "startTimeUnixNano", "start_time"),
            count_of(found, "input"),
            count_of(found, "output"),
            session=None if session is None else str(session),
            ends_s=_time_s(span, "endTimeUnixNano", "end_time"),
            prefix_tokens=(count_of(found, "cached") or None) if found["cached"] is not None else None,
        )


def _above_others(attributes: Mapping[str, Any]) -> bool:
    """Whether a span stands for an agent or a tool, whose tokens its own children report too."""
    return attributes.get("gen_ai.operation.name") in (
        "invoke_agent",
        "create_agent",
        "execute_tool",
        "invoke_workflow",
    )


def _spans(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for one in value:
            yield from _spans(one)
    elif isinstance(value, dict) and "resourceSpans" in value:
        for resource in value["resourceSpans"]:
            for scope in resource.get("scopeSpans", ()):
                yield from scope.get("spans", ())
    elif isinstance(value, dict) and "attributes" in value:
        yield value
    else:
        raise TraceFault("neither resourceSpans of OTLP nor a span with attributes")


def _attributes(value: Any) -> dict[str, Any]:
    """Attributes by name, from OTLP's list of typed values or a plain mapping."""
    if isinstance(value, list):
        return {one["key"]: next(iter(one.get("value", {}).values()), None) for one in value if "key" in one}
    return value if isinstance(value, dict) else {}


def _first(attributes: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((attributes[key] for key in keys if attributes.get(key) is not None), None)


def _time_s(span: Mapping[str, Any], nanos: str, iso: str) -> float:
    if span.get(nanos) is not None:
        try:
            return int(span[nanos]) / 1e9
        except (TypeError, ValueError):
            raise TraceFault(f"{nanos} is {span[nanos]!r}; it must be a number of nanoseconds") from None
    try:
        return datetime.fromisoformat(str(span.get(iso))).timestamp()
    except ValueError:
        raise TraceFault(f"{nanos} and {iso} are missing, or no times") from None
