"""Intervals, brackets and gauges as text: `not known` for what is not known."""

from collections.abc import Mapping
from typing import Any

from inferload.numbers import NOT_KNOWN, number, percent


def bracket(bounds: list[float | None] | None) -> str:
    """A quantile of a histogram: the bucket that it lies in."""
    if not bounds:
        return NOT_KNOWN
    low, high = bounds
    if high is None:
        return f"over {number(low)}"
    return f"{number(low)} to {number(high)}"


def interval_text(low: float | None, high: float | None) -> str:
    """An interval, an end that is not known as open."""
    if low is None and high is None:
        return "open"
    if low is None or high is None:
        return f"under {number(high)}" if low is None else f"over {number(low)}"
    return f"{number(low)} to {number(high)}"


def sureness(gate: Mapping[str, Any]) -> str:
    """The 95 % interval of a gate's value; empty where such a value has none."""
    if "low" not in gate:
        return ""
    low, high = gate["low"], gate.get("high")
    return "too short to tell" if low is None and high is None else interval_text(low, high)


def mean_max(gauge: Mapping[str, Any] | None, as_percent: bool = False) -> str:
    """A gauge's mean and highest value in one cell."""
    say = percent if as_percent else number
    if not gauge or gauge.get("mean") is None:
        return NOT_KNOWN
    return f"{say(gauge['mean'])} (max {say(gauge.get('max'))})"


def words(name: str) -> str:
    """A name of the code as words: `turns_per_s` is `turns per s`."""
    return name.replace("_", " ")
