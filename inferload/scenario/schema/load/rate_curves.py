"""Piecewise-linear rate over time: the rate, its integral, and the integral's inverse.

Arrivals are drawn for a rate of 1 per second. Arrival i of the curve is due when the integral of the rate reaches the time of
arrival i in this drawing (inversion after Cinlar). Times are seconds since the start of the curve, areas are expected arrivals.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

from msgspec import Struct

FOREVER = math.inf


class Linear(Struct, frozen=True):
    """Linear piece of a curve. Its times count from its own start."""

    lasts_s: float
    first: float
    last: float

    @property
    def slope(self) -> float:
        """Change of the rate per second."""
        return 0.0 if self.first == self.last else (self.last - self.first) / self.lasts_s

    def rate(self, at_s: float) -> float:
        """first + slope t."""
        return self.first + self.slope * at_s

    def area(self, at_s: float) -> float:
        """first t + slope t^2 / 2."""
        return (self.first + self.slope * at_s / 2) * at_s

    def time_of(self, area: float) -> float:
        """Return the root of area(t) = area within the piece, in the form without cancellation."""
        if not self.first and self.slope > 0:  # the general form would underflow for very small numbers
            return math.sqrt(2 * area / self.slope)
        return 2 * area / (self.first + math.sqrt(max(0.0, self.first**2 + 2 * self.slope * area)))


def flat(lasts_s: float, rate: float) -> Linear:
    return Linear(lasts_s, rate, rate)


class RateCurve:
    """Consecutive linear pieces; the last one lasts forever."""

    def __init__(self, pieces: Iterable[Linear]) -> None:
        self._pieces = [piece for piece in pieces if piece.lasts_s > 0]
        if not self._pieces or self._pieces[-1].lasts_s != FOREVER:
            raise ValueError("the last piece of a curve must last forever")
        ended = self._pieces[:-1]
        self._starts_s = [0.0, *accumulate(piece.lasts_s for piece in ended)]
        self._areas = [0.0, *accumulate(piece.area(piece.lasts_s) for piece in ended)]

    def rate(self, at_s: float) -> float:
        number = self._number(at_s)
        return self._pieces[number].rate(at_s - self._starts_s[number])

    def area(self, at_s: float) -> float:
        """Return the integral of the rate from 0 to a time."""
        number = self._number(at_s)
        return self._areas[number] + self._pieces[number].area(at_s - self._starts_s[number])

    def time_of(self, area: float) -> float | None:
        """Return the time at which the integral first reaches an area; None if it never does."""
        number = max(0, bisect_left(self._areas, area) - 1)
        piece, rest = self._pieces[number], area - self._areas[number]
        if rest <= 0:
            return self._starts_s[number]
        if number == len(self._pieces) - 1 and piece.area(1.0) <= 0:
            return None
        return self._starts_s[number] + min(piece.time_of(rest), piece.lasts_s)

    def after(self, lead_s: float) -> "RateCurve":
        """Return this curve delayed by `lead_s`; its first rate holds until then."""
        return RateCurve([flat(lead_s, self.rate(0.0)), *self._pieces])

    @property
    def highest(self) -> float:
        return max(max(piece.first, piece.last) for piece in self._pieces)

    def _number(self, at_s: float) -> int:
        return max(0, bisect_right(self._starts_s, at_s) - 1)


ALWAYS_ONE = RateCurve([flat(FOREVER, 1.0)])
