"""Traces of coding agents: Weka's (AgentX), a session in each line; TraceLab's, a step in each line."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from inferload.workload.traces.turn import RecordedTurn, TraceFault, blocks_of, count_of, json_object, number_of

_WEKA_BLOCK = 64


def weka(line: str) -> Iterator[RecordedTurn]:
    """`requests` of `t` and `api_time` in s, `in`, `out`, `hash_ids`; `type: subagent` holds the requests of one.

    Times count from the session's own beginning, and identities are the session's own.
    """
    trace = json_object(line)
    session, block = str(trace.get("id") or ""), count_of({"block_size": _WEKA_BLOCK} | trace, "block_size")
    if not session or not isinstance(trace.get("requests"), list):
        raise TraceFault("id or requests is missing; a line is a whole session")
    shared = trace.get("hash_id_scope", "local") == "global"
    for number, request in enumerate(trace["requests"]):
        inner = request.get("requests") if request.get("type") == "subagent" else None
        name = f"{number}-{request.get('agent_id', 'agent')}"
        for one in [request] if inner is None else inner:
            yield _weka_turn(one, session, block, shared, "" if inner is None else name)


def _weka_turn(row: dict[str, Any], session: str, block: int, shared: bool, agent: str) -> RecordedTurn:
    if row.get("type") == "subagent":
        raise TraceFault("a sub-agent within a sub-agent: not known of this form")
    at_s, tokens = number_of(row, "t"), count_of(row, "in")
    return RecordedTurn(
        at_s,
        tokens,
        count_of(row, "out"),
        session=session,
        ends_s=at_s + number_of(row, "api_time") if row.get("api_time") is not None else None,
        blocks=tuple(one if shared else f"{session}/{one}" for one in blocks_of(row, "hash_ids", tokens, block))
        if "hash_ids" in row
        else None,
        block_tokens=block,
        agent=agent,
    )


# The events of a step that the model waited for, and those that it made.
_INPUTS = ("user_message", "tool_result")


def tracelab(line: str) -> Iterator[RecordedTurn]:
    """`session_id`, `input_tokens_total`, `prefix_tokens`, `output_tokens`, and `timing_events` with their `timestamp`.

    A step was sent when its last input was there, as the trace's own analyses take it, and ended with its last event.
    """
    row = json_object(line)
    events = row.get("timing_events")
    times = [(event.get("event_type"), _iso_s(event.get("timestamp"))) for event in events] if events else []
    if not times:
        raise TraceFault("timing_events is missing or empty; the step has no time")
    inputs = [at_s for kind, at_s in times if kind in _INPUTS]
    made = [at_s for kind, at_s in times if kind not in _INPUTS]
    at_s = max((one for one in inputs if not made or one <= min(made)), default=min(at_s for _kind, at_s in times))
    session = row.get("session_id")
    if not session:
        raise TraceFault("session_id is missing")
    yield RecordedTurn(
        at_s,
        count_of(row, "input_tokens_total"),
        count_of(row, "output_tokens"),
        session=str(session),
        ends_s=max(made, default=None),
        prefix_tokens=count_of(row, "prefix_tokens") if row.get("prefix_tokens") is not None else None,
    )


def _iso_s(text: object) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        raise TraceFault(f"timestamp is {text!r}; it must be a date and time") from None
