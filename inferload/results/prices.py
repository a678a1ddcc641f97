"""Prices as options and in manifests, and the cost of output tokens and good turns. An unknown price gives an unknown cost.

Costs have the currency of the price. The whole cost of the GPUs is assigned to the output tokens, or to the good turns: use
one of the two, never their sum.
"""

import argparse
import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from inferload.base.errors import UsageError, instead

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
        return structs.replace(other, **_known(self))

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


_FLAGS = {"gpu_hour": "--gpu-hour-price", "gpus": "--gpus", "cached_ratio": "--cached-price-ratio"}


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cost", "with a price, report the cost per million output tokens and good turns")
    add = group.add_argument
    add("--gpu-hour-price", type=float, metavar="PRICE", help="of one GPU for one hour, in any currency")
    add("--gpus", type=int, metavar="N", help="number of paid GPUs (default: as many as the variant needs)")
    ratio = "price of a cached over an uncached prompt token, for example 0.1"
    add("--cached-price-ratio", type=float, metavar="R", help=ratio)


def from_options(arguments: argparse.Namespace) -> Prices:
    """Return the given prices; UsageError for an invalid price."""
    return _checked({key: getattr(arguments, flag[2:].replace("-", "_")) for key, flag in _FLAGS.items()}, _FLAGS)


def from_document(document: Any, where: str) -> Prices:
    """Return the prices of a manifest or a file; UsageError names `where`."""
    if document is None:
        return UNPRICED
    if not isinstance(document, Mapping):
        raise UsageError(f"{where}: is {document!r}; write keys such as {{gpu_hour: 2.5}}")
    values = {str(key): value for key, value in document.items()}
    if unknown := sorted(values.keys() - _FLAGS.keys()):
        raise UsageError(f"{where}: unknown key {unknown[0]}; {instead(unknown[0], _FLAGS)}")
    return _checked(values, {key: f"{where}: {key}" for key in _FLAGS})


def to_document(prices: Prices) -> dict[str, Any] | None:
    """Return the entry of a manifest; None without a price."""
    return _known(prices) or None


def to_argv(named: Prices) -> list[str]:
    """Return the options for these prices."""
    return [word for key, value in _known(named).items() for word in (_FLAGS[key], str(value))]


def _known(prices: Prices) -> dict[str, Any]:
    return {key: value for key, value in structs.asdict(prices).items() if value is not None}


def _checked(values: dict[str, Any], names: Mapping[str, str]) -> Prices:
    for key, value in values.items():
        kind = int if key == "gpus" else (int, float)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
            raise UsageError(f"{names[key]}: is {value!r}, not a {'whole ' if kind is int else ''}number")
        price: dict[str, Any] = {key: value}
        try:
            Prices(**price)
        except ValueError as error:
            raise UsageError(f"{names[key]}: {error}") from error
    return Prices(**values)
