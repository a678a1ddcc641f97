"""Per-window counts of one turn: events, tokens, time in flight, its end."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from inferload.measure.record import PhaseWindow, TurnRecord

_NO_EVENTS: tuple[int, ...] = ()


class WindowCounts(msgspec.Struct, frozen=True, gc=False):
    """Counts of one turn over a half-open window. The counts of adjacent windows add up to those of the turn."""

    events: int = 0
    output_tokens: int | None = 0  # None: the tokens of these events were not counted
    first_output: bool = False  # the first output event lies in the window
    input_tokens: int | None = 0  # of the whole prompt of such a turn; None: not counted
    in_flight_ns: int = 0
    ended_ok: bool = False  # the turn ended well, and its end lies in the window
    ended_tokens: int | None = 0  # all output tokens of such a turn; None: not counted
    edge_tokens: int = 0  # |output_tokens - ended_tokens| of a turn that crosses an end of the window, or failed


def within(record: TurnRecord, window: PhaseWindow) -> WindowCounts | None:
    """Count one turn in a window. Returns None if the turn and the window have no instant in common."""
    start_ns = begun_ns(record)
    if record.closed_ns < window.start_ns or (window.end_ns is not None and start_ns >= window.end_ns):
        return None
    if record.sent_ns is None:
        return WindowCounts()
    low, high = _events_between(record.event_ns or _NO_EVENTS, record.sent_ns, window)
    end_ns = record.closed_ns if window.end_ns is None else min(record.closed_ns, window.end_ns)
    ended_ok = record.ok and window.holds(record.closed_ns)
    whole = ended_ok and 0 < high - low == len(record.event_ns or _NO_EVENTS)
    streamed, ended = _tokens_between(record, low, high), _tokens(record) if ended_ok else 0
    first_here = record.first_ns is not None and window.holds(record.first_ns)
    return WindowCounts(
        events=high - low,
        output_tokens=streamed,
        first_output=first_here,
        input_tokens=record.input_tokens if first_here else 0,
        in_flight_ns=max(0, end_ns - max(record.sent_ns, window.start_ns)),
        ended_ok=ended_ok,
        ended_tokens=ended,
        edge_tokens=0 if whole else abs((streamed or 0) - (ended or 0)),
    )


def session_window(record: TurnRecord, windows: Sequence[PhaseWindow]) -> PhaseWindow | None:
    """Window in which the session of a first turn was planned, if it also began in that phase; None for other turns."""
    if not record.opens_session:
        return None
    start_ns = begun_ns(record)
    planned = next((window for window in windows if window.holds(record.planned_ns)), None)
    begun = next((window for window in windows if window.holds(start_ns)), None)
    return planned if planned is not None and begun is not None and planned.phase == begun.phase else None


def begun_ns(record: TurnRecord) -> int:
    """Start of sending, without the time to connect, which depends on the server and is no delay of the client."""
    if record.sent_ns is None:
        return record.planned_ns
    return max(record.planned_ns, record.sent_ns - (record.connect_ns or 0))


def _events_between(offsets: "array[int] | tuple[int, ...]", sent_ns: int, window: PhaseWindow) -> tuple[int, int]:
    """Return the range of the indices of the events inside the window."""
    n = len(offsets)
    if n == 0:
        return 0, 0
    low = 0 if window.start_ns <= sent_ns + offsets[0] else bisect_left(offsets, window.start_ns - sent_ns)
    if window.end_ns is None or sent_ns + offsets[-1] < window.end_ns:
        return low, n
    return low, bisect_left(offsets, window.end_ns - sent_ns)


def _tokens(record: TurnRecord) -> int | None:
    """Output tokens of the whole turn: the server's total, else the sum over its events; None if neither is known."""
    if record.output_tokens is not None:
        return record.output_tokens
    if record.event_tokens is not None:
        return sum(record.event_tokens)
    return None if record.event_ns else 0


def _tokens_between(record: TurnRecord, low: int, high: int) -> int | None:
    """Tokens of events low to high - 1: as the server counted them, else the turn's tokens shared evenly in whole numbers."""
    if low == high or record.event_ns is None:
        return 0
    if record.event_tokens is not None:
        return sum(record.event_tokens[low:high])
    if record.output_tokens is None:
        return None
    n = len(record.event_ns)
    return record.output_tokens * high // n - record.output_tokens * low // n
