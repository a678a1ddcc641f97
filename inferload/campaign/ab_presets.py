"""Presets of `inferload ab`: questions on what is between clients and servers, each with its load, sides and control runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from inferload.base.errors import UsageError

PAIRS = 6  # of a preset: the fewest whose sign flips can reject


@dataclass(frozen=True, slots=True)
class Preset:
    """A question. Its scenario has its name. `control`: suffix of the control runs; `set`: their changes of the scenario.

    `sides`: names that the two sides must have; the first one alone has a control, and all runs read its metrics page. Empty: any
    two sides, each with a control.
    """

    text: str
    control: str
    sides: tuple[str, ...] = ()
    set: tuple[str, ...] = ()

    def controls(self, sides: Iterable[str]) -> dict[str, str]:
        """Return the sides of the further runs of each pair, which are no sides of the comparison, by their names."""
        return {f"{side}-{self.control}": side for side in self.sides[:1] or sides}

    def check(self, name: str, sides: Mapping[str, str]) -> None:
        """Raise UsageError if the preset, by its name, does not compare these sides."""
        given = ", ".join(sides)
        if self.sides and (*sides,) != self.sides:
            words = " ".join(f"{side}=URL" for side in self.sides)
            raise UsageError(f"--preset {name}: has the sides {given}; write them as {words}")
        if len(sides) != 2:
            raise UsageError(f"--preset {name}: compares two sides, not {len(sides)} ({given}); leave the others out")
        if twice := [control for control in self.controls(sides) if control in sides]:
            raise UsageError(f"--preset {name}: {twice[0]} is the name of a control run; rename the side")


GATEWAY, ROUTER = "gateway", "router"
PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        GATEWAY: Preset(
            "what a proxy or gateway adds and changes; sides direct=URL through=URL", "again", ("direct", "through")
        ),
        ROUTER: Preset(
            "hits and spread of two routers or policies, and their TTFT with and without reuse",
            "no-reuse",
            set=("cache.isolate=turn", "cache.arm=cold"),
        ),
    }
)
