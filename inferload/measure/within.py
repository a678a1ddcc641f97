"""What of a turn happened inside a window: events, tokens, time in flight."""

from array import array
from bisect import bisect_left

import msgspec

from inferload.measure.record import PhaseWindow, TurnRecord

_NO_EVENTS: tuple[int, ...] = ()


class Happened(msgspec.Struct, frozen=True, gc=False):
    """Counts over the half-open window. Over windows that follow each other they add up to the turn's own."""

    events: int = 0
    output_tokens: int | None = 0  # None: nobody counted the tokens of these events
    input_tokens: int = 0  # all of them, where the first output event fell
    in_flight_ns: int = 0
    session_begun: bool = False  # the client set about the session's first turn here


def within(record: TurnRecord, window: PhaseWindow) -> Happened | None:
    """None where the turn and the window have no instant in common."""
    begun_ns = _begun_ns(record)
    if record.closed_ns < window.start_ns or (window.end_ns is not None and begun_ns >= window.end_ns):
        return None
    first_turn_here = record.turn_index == 0 and window.holds(begun_ns)
    if record.sent_ns is None:
        return Happened(session_begun=first_turn_here)
    low, high = _events_between(record.event_ns or _NO_EVENTS, record.sent_ns, window)
    end_ns = record.closed_ns if window.end_ns is None else min(record.closed_ns, window.end_ns)
    first_here = record.first_ns is not None and window.holds(record.first_ns)
    return Happened(
        events=high - low,
        output_tokens=_tokens_between(record, low, high),
        input_tokens=(record.input_tokens or 0) if first_here else 0,
        in_flight_ns=max(0, end_ns - max(record.sent_ns, window.start_ns)),
        session_begun=first_turn_here,
    )


def _begun_ns(record: TurnRecord) -> int:
    """When the client set about sending: connecting is the server's time, so a slow server makes no client look late."""
    if record.sent_ns is None:
        return record.planned_ns
    return max(record.planned_ns, record.sent_ns - (record.connect_ns or 0))


def _events_between(offsets: "array[int] | tuple[int, ...]", sent_ns: int, window: PhaseWindow) -> tuple[int, int]:
    """The events inside the window, as a range of their numbers."""
    n = len(offsets)
    if n == 0:
        return 0, 0
    low = 0 if window.start_ns <= sent_ns + offsets[0] else bisect_left(offsets, window.start_ns - sent_ns)
    if window.end_ns is None or sent_ns + offsets[-1] < window.end_ns:
        return low, n
    return low, bisect_left(offsets, window.end_ns - sent_ns)


def _tokens_between(record: TurnRecord, low: int, high: int) -> int | None:
    """Tokens of events low to high - 1: as the server counted them, else the turn's own shared evenly in whole numbers."""
    if low == high or record.event_ns is None:
        return 0
    if record.event_tokens is not None:
        return sum(record.event_tokens[low:high])
    if record.output_tokens is None:
        return None
    n = len(record.event_ns)
    return record.output_tokens * high // n - record.output_tokens * low // n
