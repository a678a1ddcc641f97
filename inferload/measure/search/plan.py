"""Which load to try next, and when to stop: doubling or halving from a guess, then where it is not known yet.

A load's verdict has an error of its own; the errors of all looks add up to at most `alpha`, each look spending it in
proportion to the part of the time budget that it takes, and never more than is left.
So the interval from the highest load that holds to the lowest that
does not covers the truth with probability 1 - alpha, as long as attainment falls with load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, floor, log
from typing import Literal

import numpy as np

from inferload.measure.search import isotonic
from inferload.measure.search.edge import Edge, edge
from inferload.measure.search.judged import BROKEN, Bounds, Look, Point, bounds, fitted, judge
from inferload.measure.search.wanted import Condition

Why = Literal["resolved", "budget", "contradiction", "all break", "all hold", "client", "failures"]

_REACH = 1024.0  # times the guess, and one part of it: nothing is searched for beyond
_NEAR = 0.45  # of half the wanted width: a load so near to an undecided one is that one again
_LEAN = 0.8  # of half the wanted width, to each side of the crossing: there a look decides the most
_DECIDED = 3.0  # margins over their standard errors at which a look decides
_WIDEST = 0.4  # log of the farthest that a look goes from the crossing for the sake of being decided
_FAILURES = 3  # points that failed one after the other: something else is wrong
_TRIES = 2  # a run that failed, or was not valid, is made so many times
_WIDE = 0.12  # log of a distance: where nothing nearer to the crossing was tried, the crossing itself is


@dataclass(frozen=True, slots=True)
class Settings:
    """What is searched for and what may be spent. `window_s`: measured in one look; `lead_s`: what a look costs beside it."""

    conditions: tuple[Condition, ...]
    guess: float
    budget_s: float
    window_s: float
    lead_s: float
    precision: float = 0.15
    alpha: float = 0.05
    whole: bool = False  # loads are whole numbers (users)
    looks: int | None = None  # of a sweep, which share the error alike; None: a search

    @property
    def look_s(self) -> float:
        """Time that one look takes."""
        return self.window_s + self.lead_s

    def spent(self, spent_s: float) -> float:
        """The error that a look may spend which took so long."""
        return self.alpha / self.looks if self.looks else self.alpha * min(1.0, spent_s / self.budget_s)


@dataclass(frozen=True, slots=True)
class Ended:
    """Why the search is over."""

    why: Why


# One load, to be held for so many seconds: what it showed.
Measure = Callable[[float, int], Look]


def points_of(settings: Settings, looks: Sequence[Look]) -> list[Point]:
    """What all looks come to, a point for each load, in the order in which they were first tried.

    Verdicts stand as they fell: a load that was decided by its first look is decided.
    """
    by_level: dict[float, list[Look]] = {}
    points: dict[float, Point] = {}
    left = settings.alpha
    for look in looks:
        together = by_level.setdefault(look.level, [])
        together.append(look)
        before = points.get(look.level)
        alpha = min(left, settings.spent(look.spent_s))
        left = max(0.0, left - alpha)
        point = judge(settings.conditions, together, alpha)
        points[look.level] = point if before is None else replace(point, alpha=point.alpha + before.alpha)
    return list(points.values())


def next_load(settings: Settings, looks: Sequence[Look], points: Sequence[Point]) -> float | Ended:
    """The load to look at now."""
    sure = bounds(points)
    if sure.contradict:
        return Ended("contradiction")
    if pinned(settings, sure) or narrow(settings, edge_of(settings, points)):
        return Ended("resolved")
    if len(looks) >= _FAILURES and all(not look.windows and not look.invalid for look in looks[-_FAILURES:]):
        return Ended("failures")
    if sum(look.spent_s for look in looks) + settings.look_s > settings.budget_s * (1 + 1e-9):
        return Ended("budget")
    again = next((p.level for p in points if p.state in ("invalid", "failed") and p.looks < _TRIES), None)
    if again is not None:
        return again
    wanted = _wanted(settings, points, sure)
    if isinstance(wanted, Ended):
        return wanted
    return _rounded(settings, wanted, points, sure)


def pinned(settings: Settings, sure: Bounds) -> bool:
    """Whether the two sure loads are as near to each other as was asked for."""
    if sure.low is None or sure.high is None:
        return settings.whole and sure.high is not None and sure.high <= 1
    if settings.whole and sure.high - sure.low <= 1:
        return True
    return sure.width <= log(1 + settings.precision) + 1e-9


def _wanted(settings: Settings, points: Sequence[Point], sure: Bounds) -> float | Ended:
    """The next load as a number; an end where it lies beyond all reach."""
    low, high = _likely(points, sure)
    useless = [point.level for point in points if point.state in ("invalid", "failed")]
    if low is not None and high is not None:
        return _between(settings, points, Bounds(low, high), sure)
    tried = [point.level for point in points]
    if high is not None or (low is None and useless):
        least = 1.0 if settings.whole else settings.guess / _REACH
        return max(least, min(tried) / 2) if min(tried) > least else Ended("client" if high is None else "all break")
    if low is None:
        return settings.guess
    ceiling = min((level for level in useless if level > low), default=None)
    if ceiling is None:
        return max(tried) * 2 if max(tried) * 2 <= settings.guess * _REACH else Ended("all hold")
    near = log(ceiling / low) <= log(1 + settings.precision) or (settings.whole and ceiling - low <= 1)
    return Ended("client") if near else exp((log(low) + log(ceiling)) / 2)


def _likely(points: Sequence[Point], sure: Bounds) -> tuple[float | None, float | None]:
    """The sure bounds; where one is missing, what an undecided load makes likely."""
    low, high = sure.low, sure.high
    open_ones = [(point.level, point.margin) for point in points if point.state == "undecided"]
    if low is None:
        low = max((at for at, m in open_ones if m is not None and m > 0 and (high is None or at < high)), default=None)
    if high is None:
        high = min((at for at, m in open_ones if m is not None and m <= 0 and (low is None or at > low)), default=None)
    return low, high


def _between(settings: Settings, points: Sequence[Point], likely: Bounds, sure: Bounds) -> float:
    """At the crossing where nothing near to it was tried; else beside it, on the side of which less is sure."""
    assert likely.low is not None
    assert likely.high is not None
    low, high, found = log(likely.low), log(likely.high), crossing(points)
    centre = min(max(log(found), low), high) if found is not None else (low + high) / 2
    if min(abs(log(point.level) - centre) for point in points if point.held) > _WIDE:
        quarter = (high - low) / 4
        return exp(min(max(centre, low + quarter), high - quarter))
    left = centre - log(sure.low) if sure.low is not None else float("inf")
    right = log(sure.high) - centre if sure.high is not None else float("inf")
    room = left if left > right else right
    away = _decidable(settings, points, centre, -1 if left > right else 1, both=min(left, right) > _side(settings))
    return exp(centre + (-1 if left > right else 1) * min(away, room - 0.4 * min(_side(settings), room)))


def _side(settings: Settings) -> float:
    """Half of the wanted width, as a log."""
    return log(1 + settings.precision) / 2


def _decidable(settings: Settings, points: Sequence[Point], centre: float, side: int, both: bool) -> float:
    """Log distance from the crossing of the nearest load that the time left can decide; half of that time, for both sides.

    A margin m with looks of weight w each is decided once m^2 times their weights is about the square of a t quantile. Where
    a load was tried m and w are its own, else m is taken from the line through all margins and w from the nearest load.
    """
    left = (settings.budget_s - sum(point.spent_s for point in points)) / settings.look_s / (2 if both else 1)
    given = fitted(points)
    logs, margins, weights = (np.asarray(one, dtype=np.float64) for one in (given.levels, given.margins, given.weights))
    slope = max(-isotonic.line(np.log(logs), margins, weights, centre=centre)[0], isotonic.LEAST_SLOPE)
    known = [point for point in points if point.held]
    away = _LEAN * _side(settings)
    while away < _WIDEST:
        at = centre + side * away
        nearest = min(known, key=lambda point: abs(log(point.level) - at))
        each = max(0.1, nearest.weight / nearest.looks)
        margin, done = slope * away, 0
        if nearest.state == "undecided" and abs(log(nearest.level) - at) <= _NEAR * _side(settings):
            margin, done = max(1e-3, -side * (nearest.margin or 0.0)), nearest.looks
        if (_DECIDED / margin) ** 2 / each - done <= max(1.0, left):
            break
        away *= 1.12
    return away


def _rounded(settings: Settings, wanted: float, points: Sequence[Point], sure: Bounds) -> float:
    """A load that can be set: near an undecided one that one, else with four digits, or a whole number."""
    reach = _NEAR * log(1 + settings.precision) / 2
    near = [p.level for p in points if p.state == "undecided" and abs(log(p.level / wanted)) <= reach]
    if near:
        return min(near, key=lambda level: abs(log(level / wanted)))
    if not settings.whole:
        return float(f"{wanted:.4g}")
    low, high = sure.low or 0.0, sure.high
    users = max(1.0, float(round(wanted)))
    if high is not None:
        users = min(users, ceil(high) - 1.0)
    return max(users, floor(low) + 1.0)


def crossing(points: Sequence[Point]) -> float | None:
    """Where the isotonic fit of all points loses the SLO, inside of what is sure; None where it does not."""
    given = fitted(points)
    if not given.levels:
        return None
    return isotonic.crossing(given.levels, given.margins, given.weights, given.errors)


def edge_of(settings: Settings, points: Sequence[Point]) -> Edge | None:
    """Where all windows together say that the SLO is lost; None where they do not, or where what is sure says otherwise."""
    sure, found = bounds(points), edge(settings.conditions, points, settings.alpha / 2)
    if found is None or sure.contradict:
        return None
    beside = (sure.low is not None and found.high < sure.low) or (sure.high is not None and found.low > sure.high)
    return None if beside else found


def narrow(settings: Settings, found: Edge | None) -> bool:
    """Whether an interval is as narrow as was asked for."""
    return found is not None and found.width <= log(1 + settings.precision)


def search(settings: Settings, measure: Measure, looks: Sequence[Look] = ()) -> tuple[list[Look], Ended]:
    """Look until there is an answer or no time left. `measure`: a load and the number of the look. Looks so far count."""
    done = list(looks)
    while True:
        wanted = next_load(settings, done, points_of(settings, done))
        if isinstance(wanted, Ended):
            return done, wanted
        done.append(measure(wanted, len(done)))


__all__ = [
    "BROKEN",
    "Ended",
    "Measure",
    "Settings",
    "crossing",
    "edge_of",
    "narrow",
    "next_load",
    "pinned",
    "points_of",
    "search",
]
