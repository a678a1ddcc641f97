"""Time to recover after an event of a run: from turns that ended well and those that did not. Pure maths.

The seconds before the event are the reference. Forward windows `[t, t + width)` count the turns that ended well in them, and those
that did not. Their counts in the reference predict both, with the spread that it has itself; a window outside the prediction is a
change. The level is such that a run without a change shows one after about one event in a hundred.
"""

from collections.abc import Sequence
from math import floor, sqrt
from typing import Literal

import numpy as np
from msgspec import Struct

from inferload.turns.sketch import Bools, Floats

State = Literal["recovered", "not recovered", "no change seen", "too few turns to say", "load not steady"]

REFERENCE_S = (10.0, 30.0)  # least and most time before an event
BEGINS_S = 60.0  # after the event, within which its effect begins
HOLD_S = 5.0  # for which the windows must stay within the prediction
WIDTHS_S = (1.0, 2.0, 5.0)
_Z = 3.72  # of a tail of 1e-4
_STEPS = 5  # starts of windows per width


class EndedTurns(Struct, frozen=True):
    """Turns of a run, one entry each; instants in seconds. `good`: met the SLO, or ended well without one. `bad`: known not to.

    `lost`: failed or unfinished.
    """

    planned_s: Floats
    ended_s: Floats
    good: Bools
    bad: Bools
    lost: Bools


class Recovery(Struct, frozen=True):
    """Result of one event. `after_s`: from the event, None unless recovered; `within_s`: its resolution.

    `lost`: turns that failed or did not end, in flight at the event or planned after it, until the recovery or the end of what was
    looked at.
    """

    state: State
    lost: int
    after_s: float | None = None
    within_s: float | None = None


def recoveries(
    turns: EndedTurns, events_s: Sequence[float], untils_s: Sequence[float], steady_s: Sequence[tuple[float, float]]
) -> list[Recovery]:
    """Return the result of each event. `untils_s`: end of what is looked at for each; `steady_s`: spans of constant load.

    The reference of an event is up to 30 s before it, without the time until an earlier one had recovered. If less than 10 s are
    left, it is that of the earlier event: the state from before both. What begins after the next event is not of this one. A
    result is of one span only.
    """
    ends = np.sort(turns.ended_s[turns.good]), np.sort(turns.ended_s[turns.bad])
    results: list[Recovery] = []
    reference, free_s = (0.0, 0.0), 0.0
    for at_s, own_until_s, next_s in zip(events_s, untils_s, [*events_s[1:], *untils_s[-1:]], strict=True):
        span = next((span for span in steady_s if span[0] <= at_s < span[1]), None)
        state: State = "load not steady"
        until_s, after_s, width_s = own_until_s, None, 0.0
        if span is not None:
            own_s = max(free_s, at_s - REFERENCE_S[1], span[0])
            if at_s - own_s >= REFERENCE_S[0] or reference[0] < span[0]:
                reference = own_s, at_s
            until_s = min(own_until_s, span[1])
            state, after_s, width_s = _judged(ends, reference, at_s, min(at_s + BEGINS_S, next_s), until_s)
        changed = state in ("recovered", "not recovered")
        end_s = at_s + after_s if after_s is not None else until_s if changed else next_s
        free_s = max(free_s, end_s if changed else at_s)
        inside = turns.lost & (turns.ended_s >= at_s) & ((turns.planned_s if changed else turns.ended_s) < end_s)
        results.append(Recovery(state, int(inside.sum()), after_s, None if after_s is None else width_s))
    return results


def _judged(
    ends: tuple[Floats, Floats], reference: tuple[float, float], at_s: float, begins_s: float, until_s: float
) -> tuple[State, float | None, float]:
    from_s, to_s = reference
    lasts_s = to_s - from_s
    if lasts_s < REFERENCE_S[0]:
        return "too few turns to say", None, 0.0
    width_s, limits = 0.0, (0.0, 0.0)
    for width_s in WIDTHS_S:
        parts_s = np.arange(from_s, to_s - width_s, width_s)
        spreads = [_spread(_counts(each, parts_s, width_s)) for each in ends]
        totals = [float(_counts(each, np.array([from_s]), lasts_s)[0]) for each in ends]
        low, high = (_predicted(*of, width_s / lasts_s) for of in zip(totals, spreads, strict=True))
        limits = low[0], high[1]
        if limits[0] >= totals[0] * width_s / lasts_s / 2:  # half of the turns are missed
            break
    starts_s = np.arange(at_s, until_s - width_s, width_s / _STEPS)
    if limits[0] < 1 or not len(starts_s) or begins_s - width_s < at_s:  # a window without any turn would be no change
        return "too few turns to say", None, 0.0
    good, bad = (_counts(each, starts_s, width_s) for each in ends)
    outside = (good < limits[0]) | (bad > limits[1])
    first = int(np.argmax(outside)) if outside.any() else None
    if first is None or starts_s[first] > begins_s - width_s:
        return "no change seen", None, width_s
    hold = round(HOLD_S / width_s * _STEPS)
    since = np.arange(len(outside)) - np.maximum.accumulate(np.where(outside, np.arange(len(outside)), -1))
    held = np.flatnonzero((since > hold) & (np.arange(len(outside)) > first))
    if not len(held):
        return "not recovered", None, width_s
    start_s = float(starts_s[held[0] - hold])
    later = ends[0][np.searchsorted(ends[0], start_s) :]  # an outage ends with the first turn that ends well
    return "recovered", float(later[0] if len(later) else start_s) - at_s, width_s


def _counts(ends_s: Floats, starts_s: Floats, width_s: float) -> Floats:
    after, before = np.searchsorted(ends_s, starts_s + width_s), np.searchsorted(ends_s, starts_s)
    return np.asarray(after - before, dtype=np.float64)


def _spread(counts: Floats) -> float:
    """Return the variance of counts over that of independent turns; at least 1."""
    return 1.0 if len(counts) < 2 or not counts.any() else max(1.0, float(counts.var(ddof=1) / counts.mean()))


def _predicted(total: float, spread: float, ratio: float) -> tuple[float, float]:
    """Return the limits of a count, `ratio` as long as the reference with `total`, by roots, whose spread is one."""
    root, half = sqrt(total * ratio), _Z / 2 * sqrt(spread * (1 + ratio))
    return floor(max(0.0, root - half) ** 2), (root + half) ** 2
