"""Changes between two values: a percentage, or a factor where a percentage would hide the size. No I/O.

A ratio is candidate / baseline. A change to more than three times, or to less than a tenth, is a factor: `61 times` for +5,983 %,
and `1/61` for -98.36 %. Documents for programs have the change itself.
"""

from inferload.base.numbers import number

MOST, LEAST = 3.0, 0.1  # ratios between which a change is a percentage
UNCHANGED = 5e-4  # a smaller change is none
_DIGITS = 2  # of a factor


def is_factor(ratio: float) -> bool:
    """Return True for a change that is said as a factor. A value of 0 has no factor: it is a change of -100 %."""
    return ratio > MOST or 0 < ratio < LEAST


def signed(ratio: float, decimals: int = 2) -> str:
    """Format a change for a cell: `+18.72%`, `61 times` or `1/61`. `decimals`: of the percentage."""
    if not is_factor(ratio):
        return f"{ratio - 1:+z.{decimals}%}"
    return f"{_factor(ratio)} times" if ratio > 1 else _factor(ratio)


def interval(low: float, high: float) -> str:
    """Format the interval of a ratio, both ends in one form: `+6.9% to +13.6%`, `58 to 64 times` or `1/64 to 1/58`."""
    if not is_factor(low) and not is_factor(high):
        return f"{low - 1:+.1%} to {high - 1:+.1%}"
    return f"{_factor(low)} to {_factor(high)}" + (" times" if high > 1 else "")


def size(ratio: float) -> str:
    """Format a change without its direction: `18.7%`, or `a factor of 61`."""
    return f"a factor of {number(max(ratio, 1 / ratio), _DIGITS)}" if is_factor(ratio) else f"{abs(ratio - 1):.1%}"


def in_words(ratio: float, more: str = "higher", less: str = "lower", full: str = "high") -> str:
    """Format a change in words: `18.7% higher`, `61 times as high`, `lower by a factor of 61` or `unchanged`."""
    if abs(ratio - 1) < UNCHANGED:
        return "unchanged"
    if not is_factor(ratio):
        return f"{size(ratio)} {more if ratio > 1 else less}"
    return f"{signed(ratio)} as {full}" if ratio > 1 else f"{less} by {size(ratio)}"


def _factor(ratio: float) -> str:
    return number(ratio, _DIGITS) if ratio >= 1 else f"1/{number(1 / ratio, _DIGITS)}"
