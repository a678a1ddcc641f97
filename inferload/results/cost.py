"""What served tokens and good turns cost, from prices that somebody names. Pure; a price that is not named is no cost of 0.

Money has the unit of the price that was named. All that the GPUs cost is put on the output tokens, or on the good turns:
one of the two is to be looked at, never their sum.
"""

import math
from dataclasses import dataclass

_PER = 1e6
_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Prices:
    """What somebody pays. `gpu_hour`: for one GPU and hour; `cached_ratio`: a cached prompt token's price over an uncached one's.

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
        """These, and what they leave open from `other`."""
        return Prices(
            other.gpu_hour if self.gpu_hour is None else self.gpu_hour,
            other.gpus if self.gpus is None else self.gpus,
            other.cached_ratio if self.cached_ratio is None else self.cached_ratio,
        )

    @property
    def per_s(self) -> float | None:
        """What the server costs a second; None where price or number of GPUs is not named."""
        if self.gpu_hour is None or self.gpus is None:
            return None
        return self.gpu_hour * self.gpus / _SECONDS_PER_HOUR


UNPRICED = Prices()


def per_million(prices: Prices, rate_per_s: float | None) -> float | None:
    """Cost of a million of what is made at a rate; None where price or rate is not known, or nothing was made."""
    per_s = prices.per_s
    return None if per_s is None or not rate_per_s else per_s / rate_per_s * _PER


def prompt_price_share(prices: Prices, input_tokens: float | None, cached_tokens: float | None) -> float | None:
    """What prompts cost at the ratio of prices, as a share of the same prompts without a cache: (uncached + r cached) / all.

    1: nothing was cached; r: everything was. None where ratio or counts are not known.
    """
    ratio = prices.cached_ratio
    if ratio is None or not input_tokens or cached_tokens is None:
        return None
    return (input_tokens - cached_tokens + ratio * cached_tokens) / input_tokens
