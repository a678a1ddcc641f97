"""Formatting of numbers, shares, times and lists, and parsing of times. No I/O.

Prose and latencies have three significant digits, those with an interval as many as that supports. Other table cells, and a value
beside a limit, have four.
"""

import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from inferload.base.errors import UsageError

NOT_KNOWN = "not known"
NOT_MEASURED = "not measured"
_DIGITS = 3
_DIGITS_OF_A_CELL = 4
_LONG_MS, _SHORT_MS = 10_000.0, 1_000.0  # from which the longest, or the shortest, of some times is in seconds
_MOST_DECIMALS = 6
_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"(?:\d+(?:\.\d+)?\s*(?:h|min|m|s)\s*)+|\d+(?:\.\d+)?")


def number(value: float | None, digits: int = _DIGITS, unknown: str = NOT_KNOWN) -> str:
    """Format a number with `digits` significant digits and commas between thousands; a whole number with all its digits."""
    if value is None or not math.isfinite(value):
        return unknown
    if value == 0:
        return "0"
    if float(value).is_integer() or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    decimals = digits - 1 - math.floor(math.log10(abs(float(f"{value:.{digits}g}"))))
    return f"{value:.2g}" if decimals > _MOST_DECIMALS else _stripped(f"{value:.{decimals}f}")


def dashed(value: float | None) -> str:
    """Format a number of a line on the terminal or of a list; a dash if not known."""
    return number(value, unknown="-")


def short(value: float | None) -> str:
    """Format a number for a table cell or beside a limit; a dash if not known."""
    return number(value, _DIGITS_OF_A_CELL, unknown="-")


def time_unit(values_ms: Iterable[float | None]) -> tuple[str, float]:
    """Return the unit in which times that stand together are printed, and its factor.

    Seconds if one of them has 10 s or more, or each (but 0) 1 s or more.
    """
    known = [float(f"{value:.{_DIGITS}g}") for value in values_ms if value and math.isfinite(value)]
    in_s = bool(known) and (max(known) >= _LONG_MS or min(known) >= _SHORT_MS)
    return ("s", 1e-3) if in_s else ("ms", 1.0)


def supported(value: float, low: float | None, high: float | None) -> str:
    """Format a value with its interval: to the second digit of the width, with two or three digits, and not outside of it."""
    if low is not None and high is not None and value and low < high:
        last = math.floor(math.log10(high - low)) - 1
        if math.floor(math.log10(abs(value))) - last < _DIGITS - 1 and low <= float(f"{value:.2g}") <= high:
            return number(value, 2)
    return number(value)


def apart(value: float, limit: float) -> str:
    """Format a number beside its limit, with as many more digits as tell them apart: 9.996 beside 10, but 9.5 beside 10."""
    return number(value, next((n for n in range(_DIGITS, 16) if number(value, n) != number(limit, n)), _DIGITS))


def whole(value: float | None) -> int | None:
    """Round a count; None stays None."""
    return None if value is None else round(value)


def percent(share: float | None, unknown: str = NOT_KNOWN, limit: float | None = None) -> str:
    """Format a share of 1 as a percentage. It is not rounded to 0, to 1, or to the limit that it is held against."""
    if share is None or not math.isfinite(share):
        return unknown
    if limit is not None and share != limit and percent(share) == percent(limit):
        return f"{apart(100 * share, 100 * limit)} %"
    value = share * 100
    if 0 < value < 0.01:
        return "under 0.01 %"
    if 99.99 < value < 100:
        return "over 99.99 %"
    decimals = 2 if value < 1 or 99 < value < 100 else 1
    return f"{_stripped(f'{value:,.{decimals}f}')} %"


def _stripped(text: str) -> str:
    """Remove zeros at the end of a fraction."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def plural(count: int, word: str) -> str:
    return with_noun(f"{count:,}", word)


def with_noun(formatted: str, word: str) -> str:
    """Append a noun, singular after `1`, to a formatted number or range."""
    return f"{formatted} {word}" if formatted == "1" else f"{formatted} {word}s"


def listed(names: Sequence[str]) -> str:
    """Join words with commas and `and`; `none` if there are none."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "none"


def spread(values: Sequence[float]) -> str:
    """Format equal values as one number, others as their mean with minimum and maximum."""
    low, high = min(values), max(values)
    if low == high:
        return number(low)
    return f"{number(sum(values) / len(values))} ({number(low)} to {number(high)})"


def duration(value_s: float | None) -> str:
    """Format a duration: in seconds up to two minutes, then in hours, minutes and whole seconds."""
    if value_s is None or value_s < 120:
        return NOT_KNOWN if value_s is None else f"{number(value_s)} s"
    minutes, seconds = divmod(round(value_s), 60)
    hours, minutes = divmod(minutes, 60)
    return " ".join(f"{amount:,} {unit}" for amount, unit in [(hours, "h"), (minutes, "min"), (seconds, "s")] if amount)


def exact(value_s: float) -> str:
    """Format a number with all its digits up to millionths, without commas, as a file has it: such as seconds since 1970."""
    return _stripped(f"{value_s:.6f}")


def clock(value_s: float) -> str:
    """Format an elapsed time as 1:05 or 1:01:05."""
    minutes, seconds = divmod(int(value_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def time_of_day(wall_s: float) -> str:
    """Format a wall time as 13:28:35 in this machine's time zone, as logs and the live view have it."""
    return datetime.fromtimestamp(wall_s).strftime("%H:%M:%S")


def seconds_of(option: str, text: str, least: float = 1.0) -> float:
    """Parse a duration such as 90, 90s, 30m, 1.5h or 1h30m. UsageError names the option."""
    value_s = math.nan
    if _TIME.fullmatch(text.strip()):
        parts = re.findall(r"([\d.]+)\s*(h|min|m|s)?", text)
        value_s = sum(float(amount) * _UNITS_S[unit or "s"] for amount, unit in parts)
    if not least <= value_s < math.inf:
        raise UsageError(f"{option} {text}: not a time from {least:g} s on; write it as 90s, 30m or 2h")
    return value_s
