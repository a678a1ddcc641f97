"""Options and manifest entries for prices."""

import argparse
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from inferload.base.errors import UsageError
from inferload.results.cost import UNPRICED, Prices

_FLAGS = {"gpu_hour": "--gpu-hour-price", "gpus": "--gpus", "cached_ratio": "--cached-price-ratio"}


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cost", "with a price, report the cost per million output tokens and good turns")
    add = group.add_argument
    add("--gpu-hour-price", type=float, metavar="PRICE", help="of one GPU for one hour, in any currency")
    add("--gpus", type=int, metavar="N", help="number of paid GPUs (default: as many as the variant needs)")
    add(
        "--cached-price-ratio",
        type=float,
        metavar="R",
        help="price of a cached over an uncached prompt token, for example 0.1",
    )


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
        raise UsageError(f"{where}: unknown key {unknown[0]}; known are {', '.join(_FLAGS)}")
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
