"""Bracketing: the next load of a search, and its end.

A search doubles or halves the load from a guess until one load meets the SLO and another does not, bisects between them on
the log of the load, and then measures the two loads around the estimate, `precision` apart, until both are decided. Loads
lie on a grid with two steps per `precision`, so that runs near each other are runs of the same load.

Each verdict has an error. The errors of all runs add up to at most `alpha`: a run spends it in proportion to its part of the
time budget, and never more than is left. The interval from the highest load that holds to the lowest that does not therefore
contains the truth with probability 1 - alpha, if attainment falls with load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from typing import Literal

import numpy as np

from inferload.campaign.attainment.point import Bounds, Look, Point, bounds, judge
from inferload.campaign.attainment.slo import Condition

Why = Literal["resolved", "budget", "contradiction", "all break", "all hold", "client", "failures"]

_REACH = 1024.0  # greatest ratio of a load and the guess
_FAILURES = 3  # consecutive failed runs that end a search
_TRIES = 2  # runs of a load whose run failed or was not valid


@dataclass(frozen=True, slots=True)
class Settings:
    """Conditions and limits of a search. `window_s`: measure phase of a run. `lead_s`: other time of a run."""

    conditions: tuple[Condition, ...]
    guess: float
    budget_s: float
    window_s: float
    lead_s: float
    precision: float = 0.15
    alpha: float = 0.05
    whole: bool = False  # closed loop: loads are users, whole numbers
    looks: int | None = None  # of a plain sweep, whose runs share the error alike; None: a search

    @property
    def look_s(self) -> float:
        """Time of one run."""
        return self.window_s + self.lead_s

    @property
    def step(self) -> float:
        """Ratio of neighbouring loads of the grid."""
        return sqrt(1 + self.precision)

    def spent(self, spent_s: float) -> float:
        """Error that a run of this duration may spend."""
        return self.alpha / self.looks if self.looks else self.alpha * min(1.0, spent_s / self.budget_s)

    def index(self, level: float) -> float:
        """Position of a load on the grid."""
        return log(level / self.guess) / log(self.step)

    def level(self, index: int) -> float:
        """Load at a position of the grid."""
        level = self.guess * self.step**index
        return float(max(1, round(level))) if self.whole else float(f"{level:.4g}")


@dataclass(frozen=True, slots=True)
class Ended:
    """Reason why the search is over."""

    why: Why


# A load and the number of the run to its result.
Measure = Callable[[float, int], Look]


def points_of(settings: Settings, looks: Sequence[Look]) -> list[Point]:
    """Judge all runs, one point per load, in the order in which the loads were first tried.

    A point is judged at the error of its latest run.
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
        point = judge(settings.conditions, together, alpha, settings.whole)
        points[look.level] = point if before is None else replace(point, alpha=point.alpha + before.alpha)
    return list(points.values())


def next_load(settings: Settings, looks: Sequence[Look], points: Sequence[Point]) -> float | Ended:
    """Return the load of the next run, or the end of the search."""
    sure = bounds(points)
    if sure.contradict:
        return Ended("contradiction")
    if pinned(settings, sure):
        return Ended("resolved")
    if len(looks) >= _FAILURES and all(not look.windows and not look.invalid for look in looks[-_FAILURES:]):
        return Ended("failures")
    if sum(look.spent_s for look in looks) + settings.look_s > settings.budget_s * (1 + 1e-9):
        return Ended("budget")
    again = next((p.level for p in points if p.state in ("invalid", "failed") and p.looks < _TRIES), None)
    if again is not None:
        return again
    likely = bracket(points)
    if likely.low is not None and likely.high is not None:
        if _wide(settings, likely):
            return _between(settings, likely.low, likely.high)
        return _ends(settings, points, sure)
    return _outward(settings, points, likely)


def pinned(settings: Settings, sure: Bounds) -> bool:
    """Return True if the two decided loads are within `precision` of each other."""
    if sure.low is None or sure.high is None:
        return settings.whole and sure.high is not None and sure.high <= 1
    return not _wide(settings, sure)


def _wide(settings: Settings, between: Bounds) -> bool:
    assert between.low is not None
    assert between.high is not None
    if settings.whole and between.high - between.low <= 1:
        return False
    return between.width > log(1 + settings.precision) + 1e-3  # levels are rounded to four digits


def _outward(settings: Settings, points: Sequence[Point], likely: Bounds) -> float | Ended:
    """Double or halve the load, or bisect towards a load that the client could not measure."""
    useless = [point.level for point in points if point.state in ("invalid", "failed")]
    tried = [point.level for point in points]
    doubling = round(log(2) / log(settings.step))
    if likely.high is not None or (likely.low is None and useless):
        lowest = round(settings.index(min(tried)))
        down = settings.level(lowest - doubling)
        if min(tried) <= settings.guess / _REACH or down == min(tried):
            return Ended("client" if likely.high is None else "all break")
        return down
    if likely.low is None:
        return settings.level(0)
    ceiling = min((level for level in useless if level > likely.low), default=None)
    if ceiling is None:
        up = settings.level(round(settings.index(max(tried))) + doubling)
        return up if up <= settings.guess * _REACH else Ended("all hold")
    if not _wide(settings, Bounds(likely.low, ceiling)):
        return Ended("client")
    return _between(settings, likely.low, ceiling)


def _between(settings: Settings, low: float, high: float) -> float:
    """Middle of two loads on the grid, and none of the two."""
    middle = settings.level(round((settings.index(low) + settings.index(high)) / 2))
    if low < middle < high:
        return middle
    return low + 1 if settings.whole else float(f"{sqrt(low * high):.4g}")


def _ends(settings: Settings, points: Sequence[Point], sure: Bounds) -> float:
    """Return an undecided load of those around the estimate, `precision` apart, and of those between: the one with fewest runs.

    The loads between would be decided last; they are measured because the estimate depends on them.
    """
    at = crossing(points)
    assert at is not None
    index = round(settings.index(at) - 1)
    below, above = settings.level(index), settings.level(index + 2)
    if settings.whole and above - below <= 1:
        below, above = max(1.0, float(int(at))), max(1.0, float(int(at))) + 1
    looks = {point.level: point.looks for point in points}
    candidates = [below] if sure.low is None or sure.low < below else []
    candidates += [above] if sure.high is None or sure.high > above else []
    candidates += [point.level for point in points if point.state == "undecided" and below < point.level < above]
    return min(candidates or [below, above], key=lambda level: looks.get(level, 0))


def bracket(points: Sequence[Point]) -> Bounds:
    """Neighbouring loads between which the monotone fit of the margins loses the SLO; None where no load was tried."""
    levels, fit = _falling(points)
    lost = min((point.level for point in points if point.state == "overloaded"), default=None)
    met = [level for level, margin in zip(levels, fit, strict=True) if margin >= 0]
    missed = [level for level, margin in zip(levels, fit, strict=True) if margin < 0]
    return Bounds(max(met, default=None), min(missed, default=lost))


def crossing(points: Sequence[Point]) -> float | None:
    """Estimate of the highest load that meets the SLO; None without a bracket.

    The margin is interpolated over the log of the load; an overloaded load has none, and the middle is the estimate.
    """
    likely = bracket(points)
    if likely.low is None or likely.high is None:
        return None
    levels, fit = _falling(points)
    margins = dict(zip(levels, fit, strict=True))
    above, below = margins[likely.low], margins.get(likely.high)
    part = 0.5 if below is None else above / (above - below)
    at = exp(log(likely.low) + part * log(likely.high / likely.low))
    sure = bounds(points)
    return at if sure.contradict else min(max(at, sure.low or 0.0), sure.high or float("inf"))


def _falling(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """Loads below the lowest overloaded one, and the falling fit of their margins, weighted by their turns."""
    from scipy.optimize import isotonic_regression

    lost = min((point.level for point in points if point.state == "overloaded"), default=float("inf"))
    steady = sorted((p for p in points if p.margin is not None and p.level < lost), key=lambda point: point.level)
    if not steady:
        return [], []
    weights = np.array([max(1, point.turns) for point in steady], dtype=np.float64)
    margins = np.array([point.margin for point in steady], dtype=np.float64)
    fit = isotonic_regression(margins, weights=weights, increasing=False)
    return [point.level for point in steady], [float(value) for value in fit.x]


def search(settings: Settings, measure: Measure, looks: Sequence[Look] = ()) -> tuple[list[Look], Ended]:
    """Measure loads until the search ends. `looks`: runs of a resumed search."""
    done = list(looks)
    while True:
        load = next_load(settings, done, points_of(settings, done))
        if isinstance(load, Ended):
            return done, load
        done.append(measure(load, len(done)))
