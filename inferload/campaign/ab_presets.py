"""Presets of `inferload ab`: questions on what is between clients and servers, each with its load, sides and control runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from inferload.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class Control:
    """Further run of each pair: of the server of a side, with these changes of the scenario. It is no side of the comparison."""

    side: str
    set: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Preset:
    """A question. `sides`: names that the two sides must have, empty: any; `pages_of`: side whose metrics page all runs read.

    `control`: suffix of the controls of the sides in `controlled`, empty: of all; `set`: their changes of the scenario.
    """

    scenario: str
    pairs: int
    text: str
    control: str
    sides: tuple[str, ...] = ()
    controlled: tuple[str, ...] = ()
    set: tuple[str, ...] = ()
    pages_of: str = ""

    def controls(self, sides: Sequence[str]) -> dict[str, Control]:
        """Return the controls of these sides by their names."""
        return {f"{side}-{self.control}": Control(side, self.set) for side in self.controlled or sides}

    def check(self, name: str, sides: Mapping[str, str]) -> None:
        """Raise UsageError if the preset, by its name, does not compare these sides."""
        if self.sides and (*sides,) != self.sides:
            words = " ".join(f"{side}=URL" for side in self.sides)
            raise UsageError(f"--preset {name}: has the sides {', '.join(sides)}; write them as {words}")
        if len(sides) != 2:
            raise UsageError(
                f"--preset {name}: compares two sides, not {len(sides)}; leave {', '.join([*sides][2:])} out"
            )


GATEWAY, ROUTER = "gateway", "router"
PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        GATEWAY: Preset(
            scenario="gateway",
            pairs=6,
            text="what a proxy or gateway adds and changes; sides direct=URL through=URL",
            control="again",
            sides=("direct", "through"),
            controlled=("direct",),
            pages_of="direct",
        ),
        ROUTER: Preset(
            scenario="router",
            pairs=6,
            text="hits and spread of two routers or policies, and their TTFT with and without reuse",
            control="no-reuse",
            set=("cache.isolate=turn",),
        ),
    }
)
