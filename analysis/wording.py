"""Numbers as people read them: three significant digits, units apart, and `not known` for what is not known."""

import math
from collections.abc import Mapping
from typing import Any

NOT_KNOWN = "not known"


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits, thousands apart; whole numbers whole."""
    if value is None or not math.isfinite(value):
        return NOT_KNOWN
    if value == 0:
        return "0"
    if float(value).is_integer() or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(float(f"{value:.{digits}g}")))))
    if decimals > 5:
        return f"{value:.2g}"
    return f"{value:,.{decimals}f}"


def percent(share: float | None) -> str:
    """A share of 1 as a percentage; what is close to all or nothing is not rounded to all or nothing."""
    if share is None or not math.isfinite(share):
        return NOT_KNOWN
    shown = share * 100
    if shown in (0, 100):
        return f"{shown:.0f} %"
    if shown < 0.01:
        return "under 0.01 %"
    if 99.995 < shown < 100:
        return "over 99.99 %"
    return f"{shown:.2f} %" if shown < 1 or shown > 99 else f"{shown:.1f} %"


def duration(seconds: float | None) -> str:
    """Seconds as minutes and hours where they are many."""
    if seconds is None:
        return NOT_KNOWN
    if seconds < 120:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours} h" if hours else "", f"{minutes} min" if minutes else "", f"{rest} s" if rest else ""]
    return " ".join(part for part in parts if part)


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
