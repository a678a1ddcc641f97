"""Numbers and lists as people read them, and times as people write them."""

import math
import re
from collections.abc import Sequence

from inferload.errors import UsageError

_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"(?:\d+(?:\.\d+)?\s*(?:h|min|m|s)\s*)+|\d+(?:\.\d+)?")


def listed(names: Sequence[str]) -> str:
    """Words with commas and an `and`; none where there are none."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "none"


def plural(count: int, word: str) -> str:
    """A count with its word."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def spread(values: Sequence[float]) -> str:
    """A constant as it is; else the mean, with the least and the greatest."""
    low, high = min(values), max(values)
    if low == high:
        return number(low)
    return f"{number(sum(values) / len(values))} ({number(low)} to {number(high)})"


def number(value: float) -> str:
    """Three significant digits, or all of a whole number."""
    if float(value).is_integer() or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def seconds(value_s: float) -> str:
    """Seconds up to two minutes, then minutes."""
    if value_s < 120:
        return f"{number(value_s)} s"
    minutes, seconds = divmod(round(value_s), 60)
    return f"{minutes:,} min {seconds} s" if seconds else f"{minutes:,} min"


def seconds_of(option: str, text: str, least: float = 1.0) -> float:
    """A time as people write it: 90, 90s, 30m, 1.5h, 1h30m. UsageError names the option."""
    value_s = math.nan
    if _TIME.fullmatch(text.strip()):
        parts = re.findall(r"([\d.]+)\s*(h|min|m|s)?", text)
        value_s = sum(float(amount) * _UNITS_S[unit or "s"] for amount, unit in parts)
    if not least <= value_s < math.inf:
        raise UsageError(f"{option} {text}: not a time from {least:g} s on; write it as 90s, 30m or 2h")
    return value_s
