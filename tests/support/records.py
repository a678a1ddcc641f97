"""Turn records for tests: a fixed one with changes, and a hypothesis strategy."""

from array import array
from itertools import accumulate
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from inferload.turns.record import PHASES, Failure, TurnRecord

MS = 1_000_000
S = 1_000_000_000


def merged(left: Any, right: Any) -> Any:
    """Return the sum of two sketches, tallies or health records."""
    total = type(left)()
    total.absorb(left)
    total.absorb(right)
    return total


def turn(**changes: Any) -> TurnRecord:
    """Return a successful turn: planned at 1 s, sent 2 ms later, first token after 50 ms, then four gaps of 10 ms; 5 tokens."""
    plain = TurnRecord(
        turn_id="s0/0",
        session_id="s0",
        turn_index=0,
        class_name="chat",
        worker="w1",
        phase="measure",
        planned_ns=S,
        closed_ns=S + 95 * MS,
        sent_ns=S + 2 * MS,
        written_ns=S + 3 * MS,
        first_event_ns=S + 51 * MS,
        first_ns=S + 52 * MS,
        first_visible_ns=S + 62 * MS,
        last_ns=S + 92 * MS,
        input_tokens=100,
        output_tokens=5,
        cached_tokens=64,
        event_ns=array("q", [50 * MS, 60 * MS, 70 * MS, 80 * MS, 90 * MS]),
        status=200,
        finish_reason="length",
    )
    return replace(plain, **changes)


_maybe_tokens = st.none() | st.integers(0, 40)
_maybe_ms = st.none() | st.floats(0, 1e4)
_second_ns = st.integers(0, S)
# Strategies are made once: their making takes longer than a draw.
_timing = st.fixed_dictionaries(
    {
        "planned_ns": st.integers(0, 60 * S),
        "late_ns": _second_ns,
        "first_ns": _second_ns,
        "gaps_ns": st.lists(st.integers(0, 400 * MS), max_size=12),
        "tokens": st.none()
        | st.lists(st.integers(0, 6), min_size=13, max_size=13),  # of the events, which may be fewer
        "streamed": st.booleans(),
        "sent": st.booleans(),
        "visible": st.booleans(),
        "end_ns": _second_ns,
        "delay_ns": st.lists(st.integers(0, 5 * MS), max_size=4),
        "number": st.integers(0, 999),
        "hidden": st.sampled_from([0.0, 0.0, 0.0, None]) | st.floats(0, 1),
        "named": st.booleans(),
    }
)
_others = st.fixed_dictionaries(
    {
        "turn_index": st.integers(0, 3),
        "class_name": st.sampled_from(["chat", "agent"]),
        "phase": st.sampled_from(PHASES),
        "connect_ns": st.none() | st.integers(0, 50 * MS),
        "round_trip_ns": st.none() | st.integers(0, 200 * MS),
        "input_tokens": _maybe_tokens,
        "output_tokens": _maybe_tokens,
        "cached_tokens": _maybe_tokens,
        "attempts": st.integers(0, 2),
        "target": st.sampled_from(["", "http://server:8000"]),
        "server": st.none() | st.sampled_from(["10.0.0.1:8000", "http://10.0.0.2:8000"]),
        "max_tokens": _maybe_tokens,
        "finish_reason": st.none() | st.sampled_from(["stop", "cancelled"]),
        "step": st.none() | st.integers(0, 2),
        "server_queue_ms": _maybe_ms,
        "server_ttft_ms": _maybe_ms,
        "server_generation_ms": _maybe_ms,
        "failure": st.sampled_from([None, None, None, Failure.CUT, Failure.UNFINISHED, Failure.HTTP_5XX]),
        "status": st.none() | st.sampled_from([200, 429, 503]),
        "pause": st.sampled_from([None, "think", "tool"]),
        "final": st.booleans(),
    }
)


def turns() -> st.SearchStrategy[TurnRecord]:
    """Turns with or without connection, events, token counts, failures."""
    return st.builds(_turn, _timing, _others)


def _turn(timing: dict[str, Any], others: dict[str, Any]) -> TurnRecord:
    sent_ns = timing["planned_ns"] + timing["late_ns"]
    gaps = timing["gaps_ns"]
    offsets = list(accumulate(gaps, initial=timing["first_ns"])) if gaps or timing["streamed"] else []
    sent = bool(offsets) or timing["sent"]
    first_ns, last_ns = (sent_ns + offsets[0], sent_ns + offsets[-1]) if offsets else (None, None)
    hidden, number = timing["hidden"], timing["number"]
    return TurnRecord(
        turn_id=f"s{number}/é",
        session_id=f"s{number}",
        worker="w1",
        planned_ns=timing["planned_ns"],
        closed_ns=(last_ns or sent_ns) + timing["end_ns"],
        sent_ns=sent_ns if sent else None,
        written_ns=sent_ns + 5 if sent else None,
        first_event_ns=first_ns,
        first_ns=first_ns,
        first_visible_ns=last_ns if timing["visible"] else None,
        last_ns=last_ns,
        hidden_tokens=None if hidden is None else round(hidden * (others["output_tokens"] or 0)),
        event_ns=array("q", offsets) if offsets else None,
        event_tokens=array("i", timing["tokens"][: len(offsets)]) if timing["tokens"] and offsets else None,
        delay_ns=array("q", timing["delay_ns"]) if sent else None,
        model="tiny",
        request_id=f"chatcmpl-{number}" if timing["named"] else None,
        **others,
    )
