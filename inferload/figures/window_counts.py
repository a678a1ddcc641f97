"""Counts of turns in a window of time: events, tokens, time in flight, ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferload.figures.turn_batch import Bools, Ints, TurnBatch
from inferload.turns.record import PhaseWindow

_END_NS = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class WindowCounts:
    """Counts of each turn of a batch in a half-open window. Counts of adjacent windows add up to those of the turn."""

    events: Ints
    output_tokens: Ints  # of these events
    uncounted: Bools  # there are such events, and their tokens were not counted
    first_output: Bools  # the first output event is in the window
    in_flight_ns: Ints
    ended_ok: Bools  # the turn ended well, and its end is in the window
    ended_tokens: Ints  # all output tokens of such a turn
    ended_uncounted: Bools  # these were not counted
    edge_tokens: Ints  # |output_tokens - ended_tokens| of a turn that crosses an end of the window, or failed


def touched(turns: TurnBatch, window: PhaseWindow) -> Bools:
    """Return the turns that have an instant in common with a window."""
    return (turns.numbers["closed_ns"].values >= window.start_ns) & (turns.begun_ns < _end_ns(window))


def within(turns: TurnBatch, window: PhaseWindow) -> WindowCounts:
    """Count each turn in a window. A turn that was not sent has no counts."""
    start_ns, end_ns = window.start_ns, _end_ns(window)
    sent, first, closed = (turns.numbers[name] for name in ("sent_ns", "first_ns", "closed_ns"))
    low, high = _events_between(turns, start_ns, end_ns)
    here = (high - low) * sent.known
    tokens, uncounted = _tokens_between(turns, low, high)
    ended_ok = turns.ok & sent.known & (start_ns <= closed.values) & (closed.values < end_ns)
    of_turn, unknown = _tokens(turns)
    ended_tokens = of_turn * ended_ok
    whole = ended_ok & (here > 0) & (here == turns.events)
    return WindowCounts(
        events=here,
        output_tokens=tokens,
        uncounted=uncounted,
        first_output=sent.known & first.known & (start_ns <= first.values) & (first.values < end_ns),
        in_flight_ns=(np.minimum(closed.values, end_ns) - np.maximum(sent.values, start_ns)).clip(min=0) * sent.known,
        ended_ok=ended_ok,
        ended_tokens=ended_tokens,
        ended_uncounted=ended_ok & unknown,
        edge_tokens=np.where(whole, 0, np.abs(tokens - ended_tokens)),
    )


def _end_ns(window: PhaseWindow) -> int:
    return int(_END_NS) if window.end_ns is None else window.end_ns


def _events_between(turns: TurnBatch, start_ns: int, end_ns: int) -> tuple[Ints, Ints]:
    """Return the range of the events of each turn inside a window, from 0. Only turns across its ends are searched."""
    low, high = np.zeros(len(turns), dtype=np.int64), turns.events.copy()
    rows = np.flatnonzero(turns.events)
    sent_ns = turns.numbers["sent_ns"].values[rows]
    first_ns = sent_ns + turns.at_ns[turns.starts[rows]]
    last_ns = sent_ns + turns.at_ns[turns.starts[rows] + turns.events[rows] - 1]
    for row in rows[(first_ns < start_ns) | (last_ns >= end_ns)].tolist():
        begin, sent = turns.starts[row], turns.numbers["sent_ns"].values[row]
        offsets = turns.at_ns[begin : begin + turns.events[row]]
        low[row] = np.searchsorted(offsets, start_ns - sent)
        high[row] = max(low[row], np.searchsorted(offsets, end_ns - sent))
    return low, high


def _tokens_between(turns: TurnBatch, low: Ints, high: Ints) -> tuple[Ints, Bools]:
    """Tokens of events low to high - 1, and whether they are unknown.

    As the server counted them, else the turn's tokens shared evenly in whole numbers.
    """
    output, events = turns.numbers["output_tokens"], np.maximum(turns.events, 1)
    tokens = output.values * high // events - output.values * low // events
    if turns.counted.any():
        upto = np.concatenate([[0], np.cumsum(turns.tokens)])
        tokens = np.where(turns.counted, upto[turns.starts + high] - upto[turns.starts + low], tokens)
    return np.where(high > low, tokens, 0), (high > low) & ~turns.counted & ~output.known


def _tokens(turns: TurnBatch) -> tuple[Ints, Bools]:
    """Output tokens of the whole turn, and whether they are unknown: the server's total, else the sum over its events."""
    output = turns.numbers["output_tokens"]
    if output.known.all():
        return output.values, ~output.known
    of_events = np.bincount(turns.turn, weights=turns.tokens, minlength=len(turns)).astype(np.int64)
    known = output.known | turns.counted | (turns.events == 0)
    return np.where(output.known, output.values, of_events), ~known
