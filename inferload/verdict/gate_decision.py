"""Answer of a gate on an estimated value: by its confidence interval, or by the value where it is far from the limit. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from inferload.numbers import duration
from inferload.statistics.intervals import Interval
from inferload.verdict.gate import Gate

Answer = Literal["pass", "fail", "inconclusive"]
# Factors between value and limit that decide a gate without regard to its interval, on either side: FAR if BEYOND effective
# samples lie beyond the percentile towards the limit, so that it is not the extreme of a few samples; VERY_FAR in any case.
FAR, BEYOND = 3.0, 1.5
VERY_FAR = 10.0


def answer(gate: Gate, value: float | None, interval: Interval | None) -> Answer:
    """Compare the interval, or the value without one or far from the limit, with the limit."""
    holds = gate.holds(value)
    if value is None or interval is None or _far_from_limit(gate, value, interval.effective):
        return "pass" if holds else "fail"
    ends = [end for end in (interval.low, interval.high) if end is not None]
    # An open end is beyond every limit.
    if _is_open(gate, value, interval) or any(gate.holds(end) != holds for end in ends):
        return "inconclusive"
    return "pass" if holds else "fail"


def _is_open(gate: Gate, value: float | None, interval: Interval) -> bool:
    """Return True if the end of an interval towards the limit is open."""
    return interval.low is None if (gate.sign[0] == ">") == gate.holds(value) else interval.high is None


def _far_from_limit(gate: Gate, value: float, effective: float) -> bool:
    """Return True if the value alone decides. `effective`: number of samples; half of them are on each side of a mean."""
    low, high = sorted((abs(value), abs(gate.limit)))
    if value * gate.limit < 0 or low == high:
        return False
    q = 0.5 if gate.q is None else gate.q
    beyond = effective * (1 - q if gate.limit > value else q)
    return high >= (FAR if beyond >= BEYOND else VERY_FAR) * low


def missing(gate: Gate, value: float | None, interval: Interval, summary: Mapping[str, Any]) -> str:
    """Return what an undecided gate lacks, and the remedy."""
    if not _is_open(gate, value, interval):
        return "the limit is within the interval: measure for longer to narrow it"
    part = summary if gate.selector is None else summary["by_class"][gate.selector]
    turns, window_s = part["turns"]["ok"], summary["window_s"]
    needed, needed_s = (_rounded_up(known * interval.times) for known in (turns, window_s))
    return f"{turns:,} of about {needed:,.0f} turns needed: measure for about {duration(needed_s)}"


def _rounded_up(value: float) -> float:
    """Round an estimate up to two significant digits."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1) if value > 0 else 1.0
    return math.ceil(value / step) * step
