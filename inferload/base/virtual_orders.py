"""Simulated servers in memory, and messages to and from the program that makes the runs of a campaign against them."""

import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from msgspec import Struct

from inferload.base.errors import UsageError


class Ordered(Struct, frozen=True, kw_only=True):
    """A run. `argv`: options of `locust`; `log`: file of its output; `report`: of the run directory to report on, "" for none.

    `empties_cache`: the server's prefix cache is emptied before it.
    """

    argv: list[str]
    log: str
    report: str = ""
    empties_cache: bool = False


class Order(Struct, frozen=True, kw_only=True):
    """A start of a server, and its runs in order. `options`: of the simulator; `facts`: of its variant and prices."""

    options: list[str]
    facts: dict[str, Any]
    seed: int
    runs: list[Ordered]


class Made(Struct, frozen=True, kw_only=True):
    """A run that ended. `took_s`: real time with its report."""

    exit_code: int
    took_s: float


def server_of(variant: str, options: Sequence[str], facts: Mapping[str, Any], seed: int) -> Any:
    """Start a simulated server in memory: a variant, or options of the simulator. Raise UsageError for bad ones.

    `facts`: as in `Deployment`, of the variant that the options are of.
    """
    return simulator()(variant, options, facts, seed)


@cache
def simulator() -> Any:
    """Return the function that starts a simulated server, of another package, after its imports."""
    found = [entry for entry in entry_points(group="inferload.servers") if entry.name == "simulator"]
    if not found:
        raise UsageError("--clock virtual: the simulator is not installed; pip install --force-reinstall inferload")
    return found[0].load()


def options_of(text: str) -> list[str]:
    """Return the words of `--simulator`. Raise UsageError for open quotes."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--simulator {text!r}: {error}; close the quotes") from error
