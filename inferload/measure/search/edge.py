"""Where the SLO is lost, by all windows near to it together: an estimate with an interval, narrower than any two loads can be.

Each condition has a curve of its own: the logit of the share that keeps the limit, or the log of the mean, is taken to be a
line over the log of the load, close to where it crosses. The line is the quasi-likelihood fit of the windows, weighted by
their values and by nearness; a window counts by its share itself, so that one in which few turns broke the limit is not
overrated. The error is a jackknife over the windows: each had random choices of its own, however much the turns inside one
have in common. The SLO is lost where the first condition is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np
import numpy.typing as npt

from inferload.measure.search.attainment import student_t
from inferload.measure.search.judged import Point
from inferload.measure.search.wanted import Condition

Floats = npt.NDArray[np.float64]

NEAR = 0.15  # log of a distance: what is farther from the crossing says little of the curve there
LEAST_SLOPE = 3.0  # fall of the margin over the log of the load, whatever few windows seem to say
LEAST_WINDOWS = 7  # near the crossing; with fewer the jackknife is a guess
_EACH_SIDE = 2  # of them at least
_COUNTS = 0.1  # weight by nearness from which on a window is near
_STEPS, _FAR, _STEP = 40, 0.1, 1e-7


@dataclass(frozen=True, slots=True)
class Edge:
    """The load at which the SLO is lost: estimate and interval."""

    at: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Log of the ratio of its ends."""
        return log(self.high / self.low)


@dataclass(frozen=True, slots=True)
class _Windows:
    """One condition: logs of the loads, shares (or means over the limit), numbers of values."""

    logs: Floats
    values: Floats
    counts: Floats

    def without(self, number: int) -> _Windows:
        keep = np.arange(len(self.logs)) != number
        return _Windows(self.logs[keep], self.values[keep], self.counts[keep])

    def near(self, centre: float) -> Floats:
        found: Floats = np.exp(-(((self.logs - centre) / NEAR) ** 2) / 2)
        return found


def edge(conditions: Sequence[Condition], points: Sequence[Point], alpha: float) -> Edge | None:
    """From every steady load below the lowest that diverged; None where they do not show it. `alpha`: of both sides.

    The truth is the least crossing, so it lies below one of the lower ends only if that one is wrong, and above one of the
    upper ends if any is: there the error is shared.
    """
    diverged = min((point.level for point in points if point.state == "diverged"), default=float("inf"))
    steady = [p for p in points if p.level < diverged and p.state not in ("invalid", "failed")]
    found = []
    for number, condition in enumerate(conditions):
        seen = _windows(steady, number, condition)
        if seen is None:
            return None
        if float(np.min(_margins(condition, seen))) > 0:
            continue  # kept in every window: it is lost later than another, or not seen
        one = _one(condition, seen, alpha / 2, alpha / 2 / len(conditions))
        if one is None:
            return None
        found.append(one)
    if not found:
        return None
    return Edge(min(one.at for one in found), min(one.low for one in found), min(one.high for one in found))


def _windows(points: Sequence[Point], number: int, condition: Condition) -> _Windows | None:
    """None where turns failed that a mean leaves out: its line would not show what they cost."""
    rows = []
    for point in points:
        held = point.held[number]
        if condition.share is None and held.failed:
            return None
        rows += [(log(point.level), value, float(count)) for value, count in held.parts if count]
    if len(rows) < LEAST_WINDOWS:
        return None
    logs, values, counts = np.array(rows, dtype=np.float64).T
    return _Windows(logs, values if condition.share is not None else values / condition.limit, counts)


def _margins(condition: Condition, seen: _Windows) -> Floats:
    """Above 0 where a window keeps the condition."""
    return seen.values - condition.share if condition.share is not None else 1 - seen.values


def _one(condition: Condition, seen: _Windows, below: float, above: float) -> Edge | None:
    """One condition's crossing with the one-sided errors of its ends."""
    at = _crossing(condition, seen, float(np.median(seen.logs)))
    if at is None:
        return None
    near = seen.near(at)
    close = seen.logs[near >= _COUNTS]
    if len(close) < LEAST_WINDOWS or min(np.sum(close < at), np.sum(close > at)) < _EACH_SIDE:
        return None
    others = [_crossing(condition, seen.without(int(number)), at) for number in np.flatnonzero(near >= _COUNTS / 10)]
    known = np.array([one for one in others if one is not None])
    if len(known) < len(others):
        return None
    error = sqrt((len(known) - 1) / len(known) * float(np.sum((known - known.mean()) ** 2)))
    weights = near * seen.counts
    freedom = max(1, int(weights.sum() ** 2 / np.sum(weights**2)) - 2)
    return Edge(exp(at), exp(at - student_t(below, freedom) * error), exp(at + student_t(above, freedom) * error))


def _crossing(condition: Condition, seen: _Windows, start: float) -> float | None:
    """Log of the load at which the line is at the limit: Newton's steps, the weights by nearness moving along; None: no end."""
    share = condition.share
    limit = 0.0 if share is None else log(share / (1 - share))
    at, slope = start, -LEAST_SLOPE
    for _ in range(_STEPS):
        away = seen.logs - at
        margin = np.clip(slope * away, -12, 12)
        if share is None:
            fitted = np.exp(-margin)
            spread, rest = fitted, fitted - seen.values
        else:
            fitted = 1 / (1 + np.exp(-(margin + limit)))
            spread, rest = fitted * (1 - fitted), seen.values - fitted
        weights = seen.near(at) * seen.counts
        heavy, pull = weights * spread, weights * rest
        flat, mixed, steep = heavy.sum(), (heavy * away).sum(), (heavy * away**2).sum()
        size = flat * steep - mixed**2
        if not size > 1e-12 * flat**2:
            return None
        rise = (steep * pull.sum() - mixed * (pull * away).sum()) / size
        turn = (flat * (pull * away).sum() - mixed * pull.sum()) / size
        slope = min(slope + float(np.clip(turn, -2, 2)), -LEAST_SLOPE)
        move = float(np.clip(-rise / slope, -_FAR, _FAR))
        at += move
        if abs(move) < _STEP and abs(turn) < 1e-4:
            return at
        if abs(at - start) > 3:
            return None
    return at if abs(move) < 1e-3 else None
