"""Parser of TraceLab's traces of coding agents: a line is a step of a session."""

from collections.abc import Iterator

from inferload.workload.traces.turn import Missing, RecordedTurn, Row, count_of, instant_s, name_of

# Keys that are used, or do not change the load.
_KEYS = (
    "provider project session_id round_index round_id input_tokens_total prefix_tokens newly_append_tokens "
    "claude_uncached_input_tokens claude_cache_creation_input_tokens claude_cache_read_input_tokens output_tokens "
    "reasoning_output_tokens timing_events tools current_input_event_count current_user_message_count "
    "current_tool_result_count current_user_message_chars current_tool_result_chars current_input_chars "
    "first_input_event_type store trace_key"
)
KEYS = _KEYS.split()
# Input events of a step; all other events are output.
_INPUTS = ("user_message", "tool_result")


def tracelab(row: Row) -> Iterator[RecordedTurn]:
    """Parse `session_id`, `input_tokens_total`, `prefix_tokens`, `output_tokens`, and `timing_events` with `timestamp`.

    A step starts at its last input before the output, as in the trace's own analyses, and ends with its last event.
    """
    if not (events := row.get("timing_events")):
        raise Missing("without timing_events")
    times = [(event.get("event_type"), instant_s("timestamp", event.get("timestamp"))) for event in events]
    inputs = [(at_s, kind) for kind, at_s in times if kind in _INPUTS]
    outputs = [at_s for kind, at_s in times if kind not in _INPUTS]
    first = min(at_s for _kind, at_s in times), ""
    at_s, kind = max((event for event in inputs if not outputs or event[0] <= min(outputs)), default=first)
    session = name_of(row, "session_id")
    if session is None:
        raise Missing("without session_id")
    yield RecordedTurn(
        at_s,
        count_of(row, "input_tokens_total"),
        count_of(row, "output_tokens"),
        session=session,
        ends_s=max(outputs, default=None),
        prefix_tokens=count_of(row, "prefix_tokens") if row.get("prefix_tokens") is not None else None,
        after="tool" if kind == "tool_result" else "think",
    )
