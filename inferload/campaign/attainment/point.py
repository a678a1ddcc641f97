"""One load of a search: its runs, the attainment of each condition, and whether it meets the SLO."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from msgspec.structs import replace

from inferload.campaign.attainment import attainment
from inferload.campaign.attainment.slo import Condition
from inferload.campaign.attainment.window import Window
from inferload.results.documents.search_document import ConditionResult, Point, State, Verdict

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


def judge(conditions: Sequence[Condition], looks: Sequence[Look], alpha: float, closed_loop: bool) -> Point:
    """Judge all runs at one load together. `alpha`: error of each verdict. In a closed loop turns in flight cannot grow."""
    windows = [window for look in looks if not look.invalid for window in look.windows]
    growths = [] if closed_loop else [window.growth for window in windows]
    held: tuple[ConditionResult, ...] = ()
    verdict: State
    if not windows:
        verdict = "invalid" if any(look.invalid for look in looks) else "failed"
    elif any(growth is not None and growth.state == "overloaded" for growth in growths):
        verdict = "overloaded"
    else:
        tail = alpha / len(conditions)
        held = tuple(attainment.judge(condition, number, windows, tail) for number, condition in enumerate(conditions))
        verdict = _verdict(held)
    measured_s = sum(window.lasts_s for window in windows)
    return Point(
        level=looks[0].level,
        verdict=verdict,
        conditions=held,
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


def _verdict(held: Sequence[ConditionResult]) -> Verdict:
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
        max((point.level for point in points if point.verdict == "holds"), default=None),
        min((point.level for point in points if point.verdict in BROKEN), default=None),
    )


def by_monotony(points: Sequence[Point]) -> list[Point]:
    """Decide loads of which each condition holds there or at a higher load, as its attainment falls with load.

    A limit of failures that is met at a high load, with many turns, needs no long measurement at lower ones. A condition that
    holds above a load at which it breaks, or that is overloaded, does not fall with load, and decides no other load.
    """
    above: dict[str, float] = {}  # highest load at which a condition holds
    broken: set[str] = set()
    for point in sorted(points, key=lambda point: point.level):
        if point.verdict == "overloaded":
            break
        verdicts = {each.condition: each.verdict for each in point.conditions}
        broken |= {name for name, verdict in verdicts.items() if verdict == "breaks"}
        above |= {name: point.level for name, verdict in verdicts.items() if verdict == "holds" and name not in broken}
    return [
        replace(point, verdict="holds")
        if point.verdict == "undecided"
        and point.conditions
        and all(each.verdict == "holds" or above.get(each.condition, 0.0) > point.level for each in point.conditions)
        else point
        for point in points
    ]
