"""Zipf's law of popularity: choice k of n, counted from 1, has the weight 1 / k ** exponent.

G. K. Zipf, Human Behavior and the Principle of Least Effort (1949). Of requests: L. Breslau and others, Web Caching and Zipf-like
Distributions: Evidence and Implications, INFOCOM 1999, which finds another exponent in each trace.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from random import Random

from inferload.base.numbers import percent


class Zipf:
    """Draws of `count` choices, from 0; choice 0 is drawn most often. An exponent of 0 draws all equally often."""

    def __init__(self, count: int, exponent: float) -> None:
        self._sums = [*accumulate((rank + 1) ** -exponent for rank in range(count))]

    def draw(self, rng: Random) -> int:
        """Draw a choice. Takes one random number."""
        return min(bisect_right(self._sums, rng.random() * self._sums[-1]), len(self._sums) - 1)

    @property
    def shares(self) -> Sequence[float]:
        """Probability of each choice."""
        lower = [0.0, *self._sums]
        return [(high - low) / self._sums[-1] for low, high in zip(lower, self._sums, strict=False)]

    def in_words(self) -> str:
        """Return the part of a line of the plan."""
        return f"the most frequent one is {percent(self.shares[0])} of all draws"


@lru_cache(maxsize=16)
def zipf(count: int, exponent: float) -> Zipf:
    """Return the law for a number of choices; sources of several classes share it."""
    return Zipf(count, exponent)
