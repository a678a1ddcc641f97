"""Answer of a gate on an estimated value: by its confidence interval, else by its distance from the limit. No I/O."""

import math
from collections.abc import Sequence

from msgspec import Struct

from inferload.base.numbers import duration, number
from inferload.figures.limits.gate import Gate
from inferload.results.documents.summary_document import Results
from inferload.results.documents.verdict_document import Answer, Ground
from inferload.results.statistics.intervals import Interval

# Factors between value and limit that decide a gate without an interval, each with the number of effective samples that must
# lie beyond the percentile towards the limit, so that the value is not the extreme of a few. Below the limit more are needed,
# because slow samples are the rare ones.
BELOW = ((3.0, 3.0), (10.0, 1.5))
ABOVE = ((3.0, 1.5), (10.0, 0.0))
_MEAN_AS_Q = 0.95  # few slow samples move a mean as they move this percentile


class Decision(Struct, frozen=True):
    """Answer of a gate. `note`: what the ground is, or what is missing; None if the interval says it."""

    answer: Answer
    ground: Ground
    note: str | None = None


def decide(gate: Gate, value: float | None, interval: Interval | None, largest: float | None) -> Decision:
    """Compare interval or value with the limit. `largest`: largest sample of the measure, None if not known."""
    answer: Answer = "pass" if gate.holds(value) else "fail"
    if value is None or interval is None:
        return Decision(answer, "value")
    if not _contains_limit(gate, value, interval):
        return Decision(answer, "interval")
    if note := _distance(gate, value, interval.effective, largest):
        return Decision(answer, "distance", note)
    return Decision("inconclusive", "interval")


def _contains_limit(gate: Gate, value: float, interval: Interval) -> bool:
    """Return True if the interval contains the limit; an open end is beyond every limit."""
    ends = [end for end in (interval.low, interval.high) if end is not None]
    return _is_open(gate, value, interval) or any(gate.holds(end) != gate.holds(value) for end in ends)


def _is_open(gate: Gate, value: float, interval: Interval) -> bool:
    """Return True if the end of an interval towards the limit is open."""
    return interval.low is None if (gate.sign[0] == ">") == gate.holds(value) else interval.high is None


def _distance(gate: Gate, value: float, effective: float, largest: float | None) -> str:
    """Return how far the value is from the limit if that decides; empty if it does not.

    Below the limit, slow samples that a short run did not meet can be above it. The value then decides only if there are enough
    samples to meet some, and none is above the limit.
    """
    if gate.limit > value:
        beyond = effective * (1 - (_MEAN_AS_Q if gate.q is None else gate.q))
        far = _is_far(BELOW, gate.limit, value, beyond) and largest is not None and largest <= gate.limit
        return f"{_times(gate.limit, value)}below the limit, and no sample is above it" if far else ""
    beyond = effective * (0.5 if gate.q is None else gate.q)
    far = value > gate.limit >= 0 and _is_far(ABOVE, value, gate.limit, beyond)
    return f"{_times(value, gate.limit)}above the limit" if far else ""


def _is_far(rules: Sequence[tuple[float, float]], high: float, low: float, beyond: float) -> bool:
    return any(high >= factor * low and beyond >= needed for factor, needed in rules)


def _times(high: float, low: float) -> str:
    return f"{number(high / low)} times " if low > 0 else ""


def missing(gate: Gate, value: float, interval: Interval, results: Results) -> str:
    """Return what an undecided gate lacks, and the remedy.

    The number of turns is a lower bound: a longer run can show that its turns depend on each other for longer.
    """
    if not _is_open(gate, value, interval):
        return "the limit is within the interval: measure for longer to narrow it"
    part = results if gate.selector is None else results.by_class[gate.selector]
    turns, window_s = part.turns.ok, results.window_s or 0.0
    needed, needed_s = (_rounded_up(known * interval.times) for known in (turns, window_s))
    return f"{turns:,} turns, at least {needed:,.0f} needed: measure for {duration(needed_s)} or longer"


def _rounded_up(value: float) -> float:
    """Round an estimate up to two significant digits."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1) if value > 0 else 1.0
    return math.ceil(value / step) * step
