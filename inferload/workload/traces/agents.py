"""Parsers of traces of coding agents: Weka (AgentX) with one session per line, TraceLab with one step per line."""

import codecs
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from inferload.workload.traces.turn import RecordedTurn, TraceFault, blocks_of, count_of, json_object, number_of

_WEKA_BLOCK = 64


def weka(line: str) -> Iterator[RecordedTurn]:
    """Parse `requests` with `t` and `api_time` in s, `in`, `out`, `hash_ids`, `input_types`; `type: subagent` nests requests.

    Times count from the start of the session. Block identities are local to the session unless `hash_id_scope` is global.
    """
    trace = json_object(line)
    session, block = str(trace.get("id") or ""), count_of({"block_size": _WEKA_BLOCK} | trace, "block_size")
    if not session or not isinstance(trace.get("requests"), list):
        raise TraceFault("id or requests is missing; a line is a whole session")
    shared = trace.get("hash_id_scope", "local") == "global"
    for number, request in enumerate(trace["requests"]):
        inner = request.get("requests") if request.get("type") == "subagent" else None
        name = f"{number}-{request.get('agent_id', 'agent')}"
        for row in [request] if inner is None else inner:
            yield _weka_turn(row, session, block, shared, "" if inner is None else name)


class _Requests(msgspec.Struct):
    """Requests of a session or a sub-agent, as raw JSON."""

    requests: list[msgspec.Raw] = []
    type: Any = None


def weka_spans(line: bytes) -> Iterator[tuple[int, int]]:
    """Yield (start, length) of each request in a line, in the order of `weka`."""
    end = len(codecs.BOM_UTF8) * line.startswith(codecs.BOM_UTF8)
    for raw in msgspec.json.decode(line[end:], type=_Requests).requests:
        text = bytes(raw)
        start = line.index(text, end)
        end = start + len(text)
        if msgspec.json.decode(text, type=_Requests).type == "subagent":
            yield from ((start + inner, length) for inner, length in weka_spans(text))
        else:
            yield start, len(text)


def weka_whole(text: str, turn: RecordedTurn) -> RecordedTurn:
    """Return a turn with its blocks, from the JSON of its request."""
    row = json_object(text)
    if "hash_ids" not in row:
        return turn
    blocks = blocks_of(row, turn.input_tokens, turn.block_tokens)
    return replace(turn, blocks=tuple(turn.scope + block for block in blocks))


def _weka_turn(row: dict[str, Any], session: str, block: int, shared: bool, agent: str) -> RecordedTurn:
    if row.get("type") == "subagent":
        raise TraceFault("a sub-agent within a sub-agent is not supported")
    at_s, tokens = number_of(row, "t"), count_of(row, "in")
    scope = "" if shared else f"{session}/"
    return RecordedTurn(
        at_s,
        tokens,
        count_of(row, "out"),
        session=session,
        ends_s=at_s + number_of(row, "api_time") if row.get("api_time") is not None else None,
        blocks=tuple(scope + block_id for block_id in blocks_of(row, tokens, block)) if "hash_ids" in row else None,
        block_tokens=block,
        agent=agent,
        after="tool" if "tool_result" in (row.get("input_types") or ()) else "think",
        scope=scope,
    )


# Input events of a step; all other events are output.
_INPUTS = ("user_message", "tool_result")


def tracelab(line: str) -> Iterator[RecordedTurn]:
    """Parse `session_id`, `input_tokens_total`, `prefix_tokens`, `output_tokens`, and `timing_events` with `timestamp`.

    A step starts at its last input before the output, as in the trace's own analyses, and ends with its last event.
    """
    row = json_object(line)
    events = row.get("timing_events")
    times = [(event.get("event_type"), _iso_s(event.get("timestamp"))) for event in events] if events else []
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


def _iso_s(text: object) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        raise TraceFault(f"timestamp is {text!r}; it must be a date and time") from None
