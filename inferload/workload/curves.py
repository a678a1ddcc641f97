"""A rate that changes with time, made of pieces whose integrals are known: the rate, its integral, and the integral's inverse.

An arrival process of unit rate is stretched by such a curve: arrival i is due where the integral reaches its unit time
(Cinlar's inversion). Pure; times are seconds since the curve's beginning, areas are expected arrivals.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

FOREVER = math.inf


class Piece(Protocol):
    """A stretch of a curve; its times count from its own beginning."""

    @property
    def lasts_s(self) -> float: ...
    def rate(self, at_s: float) -> float: ...
    def area(self, at_s: float) -> float: ...
    def time_of(self, area: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Linear:
    """From one rate to another in a straight line; the same rate twice: flat."""

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
        """The root of area(t) = area that lies in the piece, in the form that loses no digits."""
        if not self.first and self.slope > 0:  # the same, but a product of two very small numbers would be 0
            return math.sqrt(2 * area / self.slope)
        return 2 * area / (self.first + math.sqrt(max(0.0, self.first**2 + 2 * self.slope * area)))


@dataclass(frozen=True, slots=True)
class Exponential:
    """From one rate to another, different one by the same factor in each second; both greater than 0."""

    lasts_s: float
    first: float
    last: float

    @property
    def growth(self) -> float:
        """ln(last / first) / length, per second."""
        return math.log(self.last / self.first) / self.lasts_s

    def rate(self, at_s: float) -> float:
        """first e^(growth t)."""
        return self.first * math.exp(self.growth * at_s)

    def area(self, at_s: float) -> float:
        """first (e^(growth t) - 1) / growth."""
        return self.first * math.expm1(self.growth * at_s) / self.growth

    def time_of(self, area: float) -> float:
        """ln(1 + growth area / first) / growth."""
        return math.log1p(max(-1.0 + 1e-16, self.growth * area / self.first)) / self.growth


@dataclass(frozen=True, slots=True)
class Sine:
    """A wave around a mean, for ever; the amplitude is not above the mean."""

    mean: float
    amplitude: float
    period_s: float
    peak_s: float

    @property
    def lasts_s(self) -> float:
        """It has no end."""
        return FOREVER

    def rate(self, at_s: float) -> float:
        """mean + amplitude cos(2 pi (t - peak) / period)."""
        return self.mean + self.amplitude * math.cos(math.tau * (at_s - self.peak_s) / self.period_s)

    def area(self, at_s: float) -> float:
        """mean t + amplitude period / 2 pi (sin(2 pi (t - peak) / period) + sin(2 pi peak / period))."""
        angle, begun = math.tau * (at_s - self.peak_s) / self.period_s, math.tau * self.peak_s / self.period_s
        return self.mean * at_s + self.amplitude * self.period_s / math.tau * (math.sin(angle) + math.sin(begun))

    def time_of(self, area: float) -> float:
        """By halving: the wave is never further from its mean line than amplitude period / pi."""
        off = self.amplitude * self.period_s / math.pi
        low, high = max(0.0, (area - off) / self.mean), (area + off) / self.mean
        while low < (middle := (low + high) / 2) < high:
            low, high = (middle, high) if self.area(middle) < area else (low, middle)
        return high


def flat(lasts_s: float, rate: float) -> Linear:
    """One rate for a while."""
    return Linear(lasts_s, rate, rate)


class Curve:
    """Pieces one after the other; the last one lasts for ever."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = [piece for piece in pieces if piece.lasts_s > 0]
        if not self._pieces or self._pieces[-1].lasts_s != FOREVER:
            raise ValueError("the last piece of a curve lasts for ever")
        ended = self._pieces[:-1]
        self._starts_s = [0.0, *accumulate(piece.lasts_s for piece in ended)]
        self._areas = [0.0, *accumulate(piece.area(piece.lasts_s) for piece in ended)]

    def rate(self, at_s: float) -> float:
        """The rate at a time."""
        place = self._place(at_s)
        return self._pieces[place].rate(at_s - self._starts_s[place])

    def area(self, at_s: float) -> float:
        """The integral of the rate from 0 to a time."""
        place = self._place(at_s)
        return self._areas[place] + self._pieces[place].area(at_s - self._starts_s[place])

    def time_of(self, area: float) -> float | None:
        """When the integral first reaches an area; None: never."""
        place = max(0, bisect_left(self._areas, area) - 1)
        piece, rest = self._pieces[place], area - self._areas[place]
        if rest <= 0:
            return self._starts_s[place]
        if place == len(self._pieces) - 1 and piece.area(1.0) <= 0:
            return None
        return self._starts_s[place] + min(piece.time_of(rest), piece.lasts_s)

    def after(self, lead_s: float) -> "Curve":
        """This curve later, behind a time of its first rate."""
        return Curve([flat(lead_s, self.rate(0.0)), *self._pieces])

    @property
    def highest(self) -> float:
        """The greatest rate that it comes to; a wave's at its crest."""
        return max(
            piece.mean + piece.amplitude
            if isinstance(piece, Sine)
            else max(piece.rate(0.0), piece.rate(piece.lasts_s) if piece.lasts_s < FOREVER else 0.0)
            for piece in self._pieces
        )

    def _place(self, at_s: float) -> int:
        return max(0, bisect_right(self._starts_s, at_s) - 1)


ALWAYS_ONE = Curve([flat(FOREVER, 1.0)])
