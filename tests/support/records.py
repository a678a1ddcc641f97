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


_gaps_ns = st.lists(st.integers(0, 400 * MS), min_size=0, max_size=12)
_maybe_tokens = st.none() | st.integers(0, 40)
_maybe_ms = st.none() | st.floats(0, 1e4)


@st.composite
def turns(draw: st.DrawFn) -> TurnRecord:
    """Draw a turn with or without connection, events, token counts, failures."""
    planned_ns = draw(st.integers(0, 60 * S))
    sent_ns = planned_ns + draw(st.integers(0, S))
    gaps = draw(_gaps_ns)
    offsets = list(accumulate(gaps, initial=draw(st.integers(0, S)))) if gaps or draw(st.booleans()) else []
    tokens = draw(st.none() | st.lists(st.integers(0, 6), min_size=len(offsets), max_size=len(offsets)))
    failure = draw(st.sampled_from([None, None, None, Failure.CUT, Failure.UNFINISHED, Failure.HTTP_5XX]))
    number = draw(st.integers(0, 999))
    sent = bool(offsets) or draw(st.booleans())
    return TurnRecord(
        turn_id=f"s{number}/é",
        session_id=f"s{number}",
        turn_index=draw(st.integers(0, 3)),
        class_name=draw(st.sampled_from(["chat", "agent"])),
        worker="w1",
        phase=draw(st.sampled_from(PHASES)),
        planned_ns=planned_ns,
        closed_ns=sent_ns + (offsets[-1] if offsets else 0) + draw(st.integers(0, S)),
        sent_ns=sent_ns if sent else None,
        written_ns=sent_ns + 5 if sent else None,
        first_event_ns=sent_ns + offsets[0] if offsets else None,
        first_ns=sent_ns + offsets[0] if offsets else None,
        first_visible_ns=sent_ns + offsets[-1] if offsets and draw(st.booleans()) else None,
        last_ns=sent_ns + offsets[-1] if offsets else None,
        connect_ns=draw(st.none() | st.integers(0, 50 * MS)),
        round_trip_ns=draw(st.none() | st.integers(0, 200 * MS)),
        input_tokens=draw(_maybe_tokens),
        output_tokens=(output := draw(_maybe_tokens)),
        hidden_tokens=draw(st.sampled_from([0, 0, 0, None]) | st.integers(0, output or 0)),
        cached_tokens=draw(_maybe_tokens),
        event_ns=array("q", offsets) if offsets else None,
        event_tokens=array("i", tokens) if tokens and offsets else None,
        delay_ns=array("q", draw(st.lists(st.integers(0, 5 * MS), max_size=4))) if sent else None,
        attempts=draw(st.integers(0, 2)),
        target=draw(st.sampled_from(["", "http://server:8000"])),
        server=draw(st.none() | st.sampled_from(["10.0.0.1:8000", "http://10.0.0.2:8000"])),
        model="tiny",
        max_tokens=draw(_maybe_tokens),
        finish_reason=draw(st.none() | st.sampled_from(["stop", "cancelled"])),
        request_id=draw(st.none() | st.just(f"chatcmpl-{number}")),
        step=draw(st.none() | st.integers(0, 2)),
        server_queue_ms=draw(_maybe_ms),
        server_ttft_ms=draw(_maybe_ms),
        server_generation_ms=draw(_maybe_ms),
        failure=failure,
        status=draw(st.none() | st.sampled_from([200, 429, 503])),
        pause=draw(st.sampled_from([None, "think", "tool"])),
        final=draw(st.booleans()),
    )
