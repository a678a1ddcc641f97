"""Bracketing: the next load of a search, and its end.

A search doubles or halves the load from a guess until one load meets the SLO and another does not, bisects between them on
the log of the load, and then measures the two loads around the middle, `precision` apart, until both are decided.

The error of `alpha` is divided equally among the runs that fit in the budget. The interval from the highest load that holds to
the lowest that does not therefore contains the truth with probability 1 - alpha, if the attainment of each condition falls
with load.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, exp, floor, inf, log, sqrt
from typing import cast

from inferload.campaign.attainment.point import Bounds, Look, bounds, by_monotony, judge
from inferload.campaign.attainment.slo import Condition
from inferload.results.documents.search_document import Point, Why

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
    looks: int | None = None  # of a plain sweep; None: a search

    @property
    def look_s(self) -> float:
        return self.window_s + self.lead_s

    @property
    def most_looks(self) -> int:
        """Number of runs that share the error."""
        return self.looks or max(1, int(self.budget_s / self.look_s + 1e-9))

    @property
    def step(self) -> float:
        """Ratio of a load that is decided in the end and the middle between both."""
        return sqrt(1 + self.precision)

    def level(self, load: float) -> float:
        return float(max(1, round(load))) if self.whole else float(f"{load:.4g}")


# A load and the number of the run to its result: a look of each tier.
Measure = Callable[[float, int], Sequence[Look]]


def points_of(settings: Settings, looks: Sequence[Look]) -> list[Point]:
    """Judge all runs, one point per load, in the order in which the loads were first tried."""
    return by_monotony(_points_alone(settings, looks))


def _points_alone(settings: Settings, looks: Sequence[Look]) -> list[Point]:
    """Judge each load by its own runs."""
    by_level: dict[float, list[Look]] = {}
    for look in looks:
        by_level.setdefault(look.level, []).append(look)
    alpha = settings.alpha / settings.most_looks
    return [judge(settings.conditions, together, alpha, settings.whole) for together in by_level.values()]


def next_load(settings: Settings, looks: Sequence[Look], points: Sequence[Point]) -> float | Why:
    """Return the load of the next run, or why the search ends."""
    sure = bounds(points)
    if sure.contradict:
        return "contradiction"
    if pinned(settings, sure):
        return "resolved"
    if len(looks) >= _FAILURES and all(not look.windows and not look.invalid for look in looks[-_FAILURES:]):
        return "failures"
    spent_s = sum(look.spent_s for look in looks)
    if len(looks) >= settings.most_looks or spent_s + settings.look_s > settings.budget_s * (1 + 1e-9):
        return "budget"
    again = next((p.level for p in points if p.verdict in ("invalid", "failed") and p.looks < _TRIES), None)
    if again is not None:
        return again
    likely = bracket(points)
    if likely.low is None or likely.high is None:
        return _outward(settings, points, likely)
    if _wide(settings, likely, settings.step):
        return _between(settings, likely.low, likely.high)
    return _undecided_end(settings, points, likely.low, likely.high)


def pinned(settings: Settings, sure: Bounds) -> bool:
    """Return True if the two decided loads are within `precision` of each other."""
    if sure.low is None or sure.high is None:
        return settings.whole and sure.high is not None and sure.high <= 1
    return not _wide(settings, sure, 1 + settings.precision)


def _wide(settings: Settings, between: Bounds, ratio: float) -> bool:
    assert between.low is not None
    assert between.high is not None
    if settings.whole and between.high - between.low <= 1:
        return False
    return between.width > log(ratio) + 1e-3  # levels are rounded to four digits


def _outward(settings: Settings, points: Sequence[Point], likely: Bounds) -> float | Why:
    """Double or halve the load, or bisect towards a load that the client could not measure."""
    useless = [point.level for point in points if point.verdict in ("invalid", "failed")]
    tried = [point.level for point in points]
    if likely.high is not None or (likely.low is None and useless):
        down = settings.level(min(tried) / 2)
        if min(tried) <= settings.guess / _REACH or down == min(tried):
            return "client" if likely.high is None else "all break"
        return down
    if likely.low is None:
        return settings.level(settings.guess)
    ceiling = min((level for level in useless if level > likely.low), default=None)
    if ceiling is None:
        up = settings.level(2 * max(tried))
        return up if up <= settings.guess * _REACH else "all hold"
    if not _wide(settings, Bounds(likely.low, ceiling), 1 + settings.precision):
        return "client"
    return _between(settings, likely.low, ceiling)


def _between(settings: Settings, low: float, high: float) -> float:
    """Middle of two loads, and none of the two."""
    middle = settings.level(sqrt(low * high))
    return middle if low < middle < high else low + 1


def _undecided_end(settings: Settings, points: Sequence[Point], low: float, high: float) -> float:
    """Return the load with fewer runs of those around the middle of two others that are not decided yet."""
    tried = {point.level: point for point in points}
    for ends in (_ends(settings, sqrt(low * high)), (low, high)):
        undecided = [level for level in ends if level not in tried or tried[level].verdict == "undecided"]
        if undecided:
            break
    return min(undecided or (low, high), key=lambda level: tried[level].looks if level in tried else 0)


def _ends(settings: Settings, middle: float) -> tuple[float, float]:
    """Return the two loads around a middle that are `precision` apart; whole loads are at most that far apart, or neighbours."""
    below, above = settings.level(middle / settings.step), settings.level(middle * settings.step)
    if settings.whole:
        while _wide(settings, Bounds(below, above), 1 + settings.precision):
            below, above = (below + 1, above) if middle / below > above / middle else (below, above - 1)
    return below, above


def bracket(points: Sequence[Point]) -> Bounds:
    """Neighbouring loads between which the monotone fit of the margins loses the SLO; None where no load was tried.

    The fit is of the loads below the lowest overloaded one, falls with the load, and is weighted by turns.
    """
    lost = min((point.level for point in points if point.verdict == "overloaded"), default=None)
    steady = [point for point in points if point.margin is not None and (lost is None or point.level < lost)]
    steady.sort(key=lambda point: point.level)
    # Margin, turns, loads: neighbours that rise are pooled (Ayer et al. 1955).
    blocks: list[tuple[float, int, int]] = []
    for point in steady:
        margin, turns, loads = cast(float, point.margin), max(1, point.turns), 1
        while blocks and blocks[-1][0] <= margin:
            before, of, more = blocks.pop()
            margin, turns, loads = (before * of + margin * turns) / (of + turns), of + turns, loads + more
        blocks.append((margin, turns, loads))
    met = sum(loads for margin, _, loads in blocks if margin >= 0)
    return Bounds(steady[met - 1].level if met else None, steady[met].level if met < len(steady) else lost)


def search(
    tiers: Sequence[Settings], measure: Measure, looks: Sequence[Sequence[Look]] = ()
) -> tuple[list[Sequence[Look]], list[Why]]:
    """Search for the highest load of each of several SLOs with common runs, and return the looks of each run and why each ended.

    `looks`: runs of a resumed search, each with a look of each tier. Each interval has the error of a search by itself. Of the
    loads that tiers ask for, the next is one with the fewest runs, then one that most tiers can use, then that of the tier with
    the widest interval: a tier that stays undecided does not hold back the others, and a budget that ends leaves none far behind.
    """
    done = list(looks)
    points = [
        {point.level: point for point in _points_alone(settings, [each[number] for each in done])}
        for number, settings in enumerate(tiers)
    ]
    while True:
        ended, asked = [], []
        for number, settings in enumerate(tiers):
            judged = by_monotony(list(points[number].values()))
            load = next_load(settings, [each[number] for each in done], judged)
            if isinstance(load, str):
                ended.append(load)
            else:
                ends = _ends_asked(settings, judged, load) if len(tiers) > 1 else [_End(load, load, load)]
                asked.append((ends, bounds(judged).width, bracket(judged).width))
        if not asked:
            return done, ended
        runs, all_ends, order = Counter(each[0].level for each in done), [ends for ends, *_ in asked], []
        for (first, *_), *widths in asked:
            used = sum(any(end.least <= first.best <= end.most for end in ends) for ends in all_ends)
            order.append((-runs[first.best], used, *widths, first.best))
        *_, load = max(order)
        done.append(measure(load, len(done)))
        for number, settings in enumerate(tiers):  # only the load of the last run is judged again
            here = [each[number] for each in done if each[number].level == done[-1][number].level]
            (points[number][here[0].level],) = _points_alone(settings, here)


@dataclass(frozen=True, slots=True)
class _End:
    """Loads of which any can be an end of the interval of a tier, and the best of them."""

    least: float
    best: float
    most: float


def _ends_asked(settings: Settings, points: Sequence[Point], load: float) -> list[_End]:
    """Return the open ends around the crossing that the points of a tier suggest, that with the fewest runs first.

    An end is at most `precision` from the other one, if that is decided. Without a crossing, or with loads that the client could
    not measure, only the next load of a search for this tier alone.
    """
    sure, likely, tried = bounds(points), bracket(points), {point.level: point for point in points}
    low, high, crossing = sure.low or 0.0, sure.high or inf, _crossing(points, likely)
    alone = [_End(load, load, load)]
    if crossing is None or not low < crossing < high or any(point.verdict in ("invalid", "failed") for point in points):
        return alone
    near, reach = sqrt(settings.step), 1 + settings.precision  # within `near` of the crossing loads are hard to decide
    ends = []
    if low * reach < crossing * near:
        best = high / reach if high * near <= crossing * reach else crossing / settings.step
        ends.append(_end(settings, points, best, crossing / near))
    if high > crossing * reach / near:
        best = low * reach if low * reach >= crossing * near else crossing * settings.step
        ends.append(_end(settings, points, best, crossing * near))
    ends = [end for end in ends if end.best not in tried or tried[end.best].verdict == "undecided"]
    up = likely.high is None  # beyond all loads that were tried, else from below
    ends.sort(key=lambda end: (tried[end.best].looks if end.best in tried else 0, -end.best if up else end.best))
    return ends or alone


def _end(settings: Settings, points: Sequence[Point], best: float, nearest: float) -> _End:
    """Return an end, at a load that was tried if there is one between the best and the nearest to the crossing."""
    inwards = ceil(best - 1e-9) if best < nearest else floor(best + 1e-9)
    best = float(max(1, inwards)) if settings.whole else settings.level(best)
    least, most = sorted((best, nearest))
    tried = [point.level for point in points if point.verdict == "undecided" and least <= point.level <= most]
    return _End(least, min(tried, key=lambda level: abs(level - best), default=best), most)


def _crossing(points: Sequence[Point], between: Bounds) -> float | None:
    """Return the load at which the first condition is lost, on the line through the two points next to it; None if not known.

    Without a load that misses the SLO, or one that meets it, it is at most four times beyond the loads that were tried.
    """
    judged = sorted((point for point in points if point.conditions), key=lambda point: point.level)
    low = [point for point in judged if between.low is not None and point.level <= between.low]
    high = [point for point in judged if between.high is not None and point.level >= between.high]
    pair = [low[-1], high[0]] if low and high else (low[-2:] if between.high is None else high[:2])
    if len(pair) < 2:
        return None
    (at, to), found = (log(point.level) for point in pair), []
    for first, second in zip(*(point.conditions for point in pair), strict=True):
        if first.surplus is not None and second.surplus is not None and first.surplus > second.surplus:
            found.append(at + (to - at) * first.surplus / (first.surplus - second.surplus))
    if not found:
        return None
    inside = low and high
    least, most = (at, to) if inside else (judged[0].level, judged[-1].level)
    crossing = exp(min(found))
    return min(max(crossing, exp(least)), exp(most)) if inside else min(max(crossing, least / 4), 4 * most)
