"""Cost of output tokens and good turns, from given prices. Pure maths; an unknown price gives an unknown cost.

Costs have the currency of the price. The whole cost of the GPUs is assigned to the output tokens, or to the good turns: use
one of the two, never their sum.
"""

import math

from msgspec import Struct

_PER = 1e6
_SECONDS_PER_HOUR = 3600.0


class Prices(Struct, frozen=True):
    """Prices. `gpu_hour`: of one GPU for one hour. `cached_ratio`: price of a cached over an uncached prompt token.

    ValueError for a price below 0, fewer GPUs than 1, a ratio outside 0 to 1.
    """

    gpu_hour: float | None = None
    gpus: int | None = None
    cached_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.gpu_hour is not None and not 0 <= self.gpu_hour < math.inf:
            raise ValueError(f"is {self.gpu_hour:g}, must be 0 or more")
        if self.gpus is not None and self.gpus < 1:
            raise ValueError(f"is {self.gpus}, must be 1 or more")
        if self.cached_ratio is not None and not 0 <= self.cached_ratio <= 1:
            raise ValueError(f"is {self.cached_ratio:g}, must be 0 to 1")

    def over(self, other: "Prices") -> "Prices":
        """Return these prices, with `other` for unknown ones."""
        return Prices(
            other.gpu_hour if self.gpu_hour is None else self.gpu_hour,
            other.gpus if self.gpus is None else self.gpus,
            other.cached_ratio if self.cached_ratio is None else self.cached_ratio,
        )

    @property
    def per_s(self) -> float | None:
        """Cost of the server per second; None if price or number of GPUs is unknown."""
        if self.gpu_hour is None or self.gpus is None:
            return None
        return self.gpu_hour * self.gpus / _SECONDS_PER_HOUR


UNPRICED = Prices()


def per_million(prices: Prices, rate_per_s: float | None) -> float | None:
    """Cost of a million units at a rate; None if price or rate is unknown, or the rate is 0."""
    per_s = prices.per_s
    return None if per_s is None or not rate_per_s else per_s / rate_per_s * _PER


def prompt_price_share(prices: Prices, input_tokens: float | None, cached_tokens: float | None) -> float | None:
    """Cost of prompts as a share of their cost without a cache: (uncached + r cached) / all.

    1: nothing was cached; r: everything was cached. None if ratio or counts are unknown.
    """
    ratio = prices.cached_ratio
    if ratio is None or not input_tokens or cached_tokens is None:
        return None
    return (input_tokens - cached_tokens + ratio * cached_tokens) / input_tokens
