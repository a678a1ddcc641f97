"""One load of a search: its runs, the attainment of each condition, and whether it meets the SLO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log
from typing import Literal

from inferload.campaign.attainment import attainment
from inferload.campaign.attainment.attainment import ConditionResult
from inferload.campaign.attainment.slo import Condition
from inferload.campaign.attainment.window import Window
from inferload.results.statistics.overload import Growth

State = Literal["holds", "breaks", "overloaded", "undecided", "invalid", "failed"]
BROKEN = ("breaks", "overloaded")


@dataclass(frozen=True, slots=True)
class Look:
    """One run at one load. `windows` is empty if the run failed; `cause` is the reason, or the reason of an invalid run.

    `spent_s`: time of the run, warm-up included. `remarks`: doubts about a measurement that may be used.
    """

    level: float
    windows: tuple[Window, ...]
    spent_s: float
    invalid: bool = False
    cause: str | None = None
    runs: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Point:
    """A load, judged by all its runs together."""

    level: float
    state: State
    held: tuple[ConditionResult, ...]
    growth: Growth | None
    measured_s: float
    spent_s: float
    looks: int
    turns: int
    causes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    turns_per_s: float | None = None
    goodput_turns_per_s: float | None = None

    @property
    def margin(self) -> float | None:
        """Least margin of all conditions; None if the load has no steady attainment."""
        margins = [condition.margin for condition in self.held if condition.count and isfinite(condition.margin)]
        return min(margins) if margins and self.state in ("holds", "breaks", "undecided") else None


def judge(conditions: Sequence[Condition], looks: Sequence[Look], alpha: float, closed_loop: bool) -> Point:
    """Judge all runs at one load together. `alpha`: error of each verdict. In a closed loop turns in flight cannot grow."""
    windows = [window for look in looks if not look.invalid for window in look.windows]
    growths = [] if closed_loop else [window.growth for window in windows]
    overloaded = [growth for growth in growths if growth is not None and growth.state == "overloaded"]
    tail = alpha / len(conditions)
    held = tuple(attainment.judge(condition, number, windows, tail) for number, condition in enumerate(conditions))
    state: State = "overloaded" if overloaded else _state(held)
    if not windows:
        held, state = (), "invalid" if any(look.invalid for look in looks) else "failed"
    measured_s = sum(window.lasts_s for window in windows)
    return Point(
        level=looks[0].level,
        state=state,
        held=held,
        growth=max((growth for growth in growths if growth), key=lambda growth: growth.share, default=None),
        measured_s=measured_s,
        spent_s=sum(look.spent_s for look in looks),
        looks=len(looks),
        turns=sum(window.turns for window in windows),
        causes=tuple(look.cause for look in looks if look.cause),
        remarks=tuple(dict.fromkeys(remark for look in looks for remark in look.remarks)),
        runs=tuple(run for look in looks for run in look.runs),
        turns_per_s=sum(window.turns_per_s * window.lasts_s for window in windows) / measured_s if windows else None,
        goodput_turns_per_s=_goodput(windows, measured_s),
    )


def _state(held: Sequence[ConditionResult]) -> State:
    verdicts = {condition.verdict for condition in held}
    if "breaks" in verdicts:
        return "breaks"
    return "holds" if verdicts == {"holds"} else "undecided"


def _goodput(windows: Sequence[Window], measured_s: float) -> float | None:
    good = [window.good for window in windows if window.good is not None]
    return sum(good) / measured_s if windows and len(good) == len(windows) else None


@dataclass(frozen=True, slots=True)
class Bounds:
    """Highest load that holds and lowest that does not; None if there is none yet."""

    low: float | None
    high: float | None

    @property
    def contradict(self) -> bool:
        """True if a load that holds is above one that does not: attainment does not decrease with load."""
        return self.low is not None and self.high is not None and self.low >= self.high

    @property
    def width(self) -> float:
        """Log of the ratio of the bounds."""
        return log(self.high / self.low) if self.low and self.high else float("inf")


def bounds(points: Sequence[Point]) -> Bounds:
    """Bounds from all decided loads."""
    return Bounds(
        max((point.level for point in points if point.state == "holds"), default=None),
        min((point.level for point in points if point.state in BROKEN), default=None),
    )
