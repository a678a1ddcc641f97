"""Numbers and lists as people read them."""

from collections.abc import Sequence


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
