"""Messages to and from the program that makes the runs of a campaign on a virtual clock."""

from typing import Any

from msgspec import Struct


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
