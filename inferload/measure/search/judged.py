"""One load that was tried: what it did, what each condition came to, and whether it holds the SLO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, log
from typing import Literal

import numpy as np

from inferload.measure.search import attainment, divergence
from inferload.measure.search.attainment import Held
from inferload.measure.search.divergence import Growth
from inferload.measure.search.seen import Window, lasting_s
from inferload.measure.search.wanted import Condition

State = Literal["holds", "breaks", "diverged", "undecided", "invalid", "failed"]
BROKEN = ("breaks", "diverged")
DIVERGENCE_PART = 0.2  # of a look's error is for the test of growth, the rest for the conditions
EARLY = (0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85)  # parts of a window after which it is looked whether turns pile up
# A load that diverged has no attainment; in the fit it stands as one whose margin is lost for certain.
_LOST_MARGIN, _LOST_WEIGHT, _LOST_ERROR = -3.0, 0.1, 1.0
_MOST_MARGIN = 4.0  # beyond that the fit's line would only follow the clearest points
_GRID = 161


@dataclass(frozen=True, slots=True)
class Look:
    """What a runner brings back of one load. `windows` is empty where the run failed; `cause` says why, or why not valid.

    `spent_s`: time that it took, warm-up included. `ended_early`: somebody saw it diverge and stopped it. `remarks`: what is
    doubtful in a measurement that may be used.
    """

    level: float
    windows: tuple[Window, ...]
    spent_s: float
    ended_early: bool = False
    invalid: bool = False
    cause: str | None = None
    runs: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Point:
    """A load and what became of it, all looks at it together."""

    level: float
    state: State
    held: tuple[Held, ...]
    growth: Growth | None
    measured_s: float
    spent_s: float
    looks: int
    turns: int
    alpha: float  # error that was spent on it, one-sided
    causes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    ended_early: bool = False
    turns_per_s: float | None = None
    turn_mean_s: float | None = None
    goodput_turns_per_s: float | None = None

    @property
    def decided(self) -> bool:
        """Whether it need not be looked at again."""
        return self.state != "undecided"

    @property
    def margin(self) -> float | None:
        """The least margin of all conditions, kept within what a fit can use; None where nothing is known."""
        if self.state == "diverged":
            return _LOST_MARGIN
        margins = [max(-_MOST_MARGIN, min(_MOST_MARGIN, one.margin)) for one in self.held if one.count]
        return min(margins) if margins and self.state not in ("invalid", "failed") else None

    @property
    def weight(self) -> float:
        """1 / variance of the margin, of the condition with the least."""
        known = [one for one in self.held if one.count]
        worst = min(known, key=lambda one: one.margin, default=None)
        return max(worst.weight, 1e-6) if worst is not None else 1e-6


def judge(conditions: Sequence[Condition], looks: Sequence[Look], alpha: float) -> Point:
    """All looks at one load together. `alpha`: the error that may be spent on it now, one-sided."""
    level = looks[0].level
    good = [look for look in looks if look.windows and not look.invalid]
    windows = [window for look in good for window in look.windows]
    common = {
        "level": level,
        "measured_s": lasting_s(windows),
        "spent_s": sum(look.spent_s for look in looks),
        "looks": len(looks),
        "turns": sum(window.turns for window in windows),
        "alpha": alpha,
        "causes": tuple(look.cause for look in looks if look.cause),
        "remarks": tuple(dict.fromkeys(remark for look in looks for remark in look.remarks)),
        "runs": tuple(run for look in looks for run in look.runs),
        "ended_early": any(look.ended_early for look in looks),
    }
    if not windows:
        state: State = "invalid" if any(look.invalid for look in looks) else "failed"
        return Point(state=state, held=(), growth=None, **common)  # type: ignore[arg-type]
    grown = [grows(window, DIVERGENCE_PART / 2 * alpha / len(windows)) for window in windows]
    worst = max(grown, key=lambda one: (one.diverged, one.per_s))
    if any(look.ended_early for look in good):
        worst = replace(worst, diverged=True)
    rest = (1 - DIVERGENCE_PART) * alpha
    # A load that breaks is wrongly called one that holds only if its broken condition is: the error is not shared there.
    errors = attainment.Errors(holds=rest, breaks=rest / len(conditions))
    held = tuple(attainment.held(one, number, windows, errors) for number, one in enumerate(conditions))
    return replace(
        Point(state=_state(worst, held), held=held, growth=worst, **common),  # type: ignore[arg-type]
        turns_per_s=_mean([(window.turns_per_s, window.lasts_s) for window in windows]),
        turn_mean_s=_mean([(window.turn_mean_s, window.turns) for window in windows]),
        goodput_turns_per_s=_mean([(_per_s(window.good, window.lasts_s), window.lasts_s) for window in windows]),
    )


def _mean(weighted: Sequence[tuple[float | None, float]]) -> float | None:
    """Weighted mean; None where one of the values is not known."""
    total = sum(weight for _, weight in weighted)
    known = [value * weight for value, weight in weighted if value is not None]
    return sum(known) / total if len(known) == len(weighted) and total > 0 else None


def _per_s(count: int | None, lasts_s: float) -> float | None:
    return None if count is None else count / lasts_s


def grows(window: Window, alpha: float) -> Growth:
    """The test of growth over a window."""
    in_flight = window.in_flight(np.linspace(0, window.lasts_s, _GRID))
    return divergence.growth(in_flight, window.lasts_s, window.turns / window.lasts_s, alpha)


def early_alpha(alpha: float) -> float:
    """The error of one of the looks at EARLY, of what may be spent on the whole look at a load."""
    return DIVERGENCE_PART / 2 * alpha / len(EARLY)


def _state(grown: Growth, held: Sequence[Held]) -> State:
    if grown.diverged:
        return "diverged"
    verdicts = {one.verdict for one in held}
    if "breaks" in verdicts:
        return "breaks"
    return "holds" if verdicts == {"holds"} else "undecided"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is sure so far: the highest load that holds and the lowest that does not; None where there is none yet."""

    low: float | None
    high: float | None

    @property
    def contradict(self) -> bool:
        """A load that holds above one that does not: the curve does not simply fall."""
        return self.low is not None and self.high is not None and self.low >= self.high

    @property
    def width(self) -> float:
        """Log of their ratio."""
        return log(self.high / self.low) if self.low and self.high else float("inf")


def bounds(points: Sequence[Point]) -> Bounds:
    """From all that was decided."""
    return Bounds(
        max((point.level for point in points if point.state == "holds"), default=None),
        min((point.level for point in points if point.state in BROKEN), default=None),
    )


@dataclass(frozen=True, slots=True)
class Guessed:
    """Points as a fit takes them."""

    levels: list[float] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)


def fitted(points: Sequence[Point]) -> Guessed:
    """The points that say anything, in order of load.

    They weigh as many turns as they have: the effective number is itself uncertain, and smaller where luck was bad, so
    that with it the crossing would come out too low.
    """
    found = Guessed()
    for point in sorted(points, key=lambda one: one.level):
        margin = point.margin
        if margin is not None and isfinite(margin):
            found.levels.append(point.level)
            found.margins.append(margin)
            found.weights.append(point.turns * (_LOST_WEIGHT if point.state == "diverged" else 1.0))
            found.errors.append(_LOST_ERROR if point.state == "diverged" else point.weight**-0.5)
    return found
