"""Parser of TraceLab's traces of coding agents: a line is a step of a session."""

from collections.abc import Iterator

from inferload.workload.traces.turn import RecordedTurn, TraceFault, count_of, instant_s, json_object

# Input events of a step; all other events are output.
_INPUTS = ("user_message", "tool_result")


def tracelab(line: str) -> Iterator[RecordedTurn]:
    """Parse `session_id`, `input_tokens_total`, `prefix_tokens`, `output_tokens`, and `timing_events` with `timestamp`.

    A step starts at its last input before the output, as in the trace's own analyses, and ends with its last event.
    """
    row = json_object(line)
    events = row.get("timing_events")
    times = (
        [(event.get("event_type"), instant_s("timestamp", event.get("timestamp"))) for event in events]
        if events
        else []
    )
    if not times:
        raise TraceFault("timing_events is missing or empty; the step has no time")
    inputs = [(at_s, kind) for kind, at_s in times if kind in _INPUTS]
    outputs = [at_s for kind, at_s in times if kind not in _INPUTS]
    first = min(at_s for _kind, at_s in times), ""
    at_s, kind = max((event for event in inputs if not outputs or event[0] <= min(outputs)), default=first)
    session = row.get("session_id")
    if not session:
        raise TraceFault("session_id is missing")
    yield RecordedTurn(
        at_s,
        count_of(row, "input_tokens_total"),
        count_of(row, "output_tokens"),
        session=str(session),
        ends_s=max(outputs, default=None),
        prefix_tokens=count_of(row, "prefix_tokens") if row.get("prefix_tokens") is not None else None,
        after="tool" if kind == "tool_result" else "think",
    )
