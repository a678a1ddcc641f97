"""Prices on a command line and in a manifest."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from inferload.errors import UsageError
from inferload.results.cost import Prices

_FLAGS = {"gpu_hour": "--gpu-hour-price", "gpus": "--gpus", "cached_ratio": "--cached-price-ratio"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The three options."""
    group = parser.add_argument_group("cost", "with a price, what a million output tokens and good turns cost is said")
    add = group.add_argument
    add("--gpu-hour-price", type=float, metavar="PRICE", help="of one GPU for one hour, in any currency")
    add("--gpus", type=int, metavar="N", help="how many are paid for (default: as many as the variant needs)")
    add(
        "--cached-price-ratio",
        type=float,
        metavar="R",
        help="price of a cached prompt token over an uncached one's: 0.1",
    )


def from_options(arguments: argparse.Namespace) -> Prices:
    """What was named; UsageError for what no price can be."""
    return _checked({key: getattr(arguments, flag[2:].replace("-", "_")) for key, flag in _FLAGS.items()}, _FLAGS)


def from_document(document: Mapping[str, Any] | None, where: str) -> Prices:
    """Of a manifest or a file; UsageError names `where` it is wrong."""
    if document is not None and not isinstance(document, Mapping):
        raise UsageError(f"{where}: is {document!r}; write keys such as {{gpu_hour: 2.5}}")
    said = {str(key): value for key, value in (document or {}).items()}
    if unknown := sorted(said.keys() - _FLAGS.keys()):
        raise UsageError(f"{where}: unknown key {unknown[0]}; known are {', '.join(_FLAGS)}")
    return _checked(said, {key: f"{where}: {key}" for key in _FLAGS})


def to_document(prices: Prices) -> dict[str, Any] | None:
    """For a manifest; None where nothing is named."""
    named = {key: value for key, value in asdict(prices).items() if value is not None}
    return named or None


def to_argv(named: Prices) -> list[str]:
    """As options."""
    return [word for key, value in (to_document(named) or {}).items() for word in (_FLAGS[key], str(value))]


def _checked(said: Mapping[str, Any], names: Mapping[str, str]) -> Prices:
    for key, value in said.items():
        kind = int if key == "gpus" else (int, float)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
            raise UsageError(f"{names[key]}: is {value!r}, not a {'whole ' if kind is int else ''}number")
        one: dict[str, Any] = {key: value}
        try:
            Prices(**one)
        except ValueError as error:
            raise UsageError(f"{names[key]}: {error}") from error
    return Prices(**said)
