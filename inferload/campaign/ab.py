"""Comparison of running servers: pairs of runs under the same schedule, interleaved, in a folder that can be resumed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from inferload.base.errors import UsageError, instead
from inferload.campaign import pairs
from inferload.campaign.pairs import MAX_PAIRS
from inferload.client.connection.target import Target
from inferload.figures.turn_figures import TTFT
from inferload.scenario import overrides
from inferload.scenario import scenario as scenarios
from inferload.scenario.files import catalog, typed_yaml
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.base import ScenarioPart, Whole, optional
from inferload.scenario.schema.fields import Gates, Name, Primary

PLAN = "ab.yaml"
DEFAULT_PAIRS = 8
PRESET_PAIRS = 6  # the fewest whose sign flips can reject


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


class AbPlan(ScenarioPart):
    """Content of ab.yaml. Header values, which may be secret, are not stored."""

    schema_: Literal[1] = Field(alias="schema", description="version of this file format: 1")
    sides: Mapping[Name, str] = Field(
        description="URLs of the servers by name, the baseline first; on a virtual clock variants, or options of the simulator"
    )
    scenario: str = Field(description="bundled name or path of the scenario")
    pairs: Annotated[int, Field(strict=True, ge=1, le=MAX_PAIRS)] = Field(description="pairs of runs")
    seed: Whole = optional(0, "seed for the seeds of the runs and the order of the sides")
    primary: Primary = optional(
        "", f"measure of the verdict, as in a gate; empty: the first of turns in require, else mean({TTFT.key})"
    )
    require: Gates = optional((), "limits, as gates, beyond which a side is not named the best")
    preset: str = optional("", "name of the preset, whose control runs each pair has; empty: none")
    options: Mapping[str, Any] = optional({}, "options of each run, by name")
    digest: str = optional("", "SHA-256 of the scenario, which must not change")

    @model_validator(mode="after")
    def _two_sides(self) -> "AbPlan":
        if len(self.sides) < 2:
            raise ValueError(f"sides: {', '.join(self.sides) or 'none'}; give a baseline and at least one other server")
        if self.preset and self.preset not in PRESETS:
            raise ValueError(f"preset {self.preset}: not known; {instead(self.preset, PRESETS)}")
        return self

    @property
    def controls(self) -> Mapping[str, str]:
        """Sides of the control runs of each pair, by the names of these."""
        return PRESETS[self.preset].controls(self.sides) if self.preset else {}

    def options_of(self, run: "AbRun") -> dict[str, Any]:
        """Return the options of a run: those of all, with its own changes of the scenario and its own metrics pages."""
        pages = [page.partition("=") for page in self.options.get("metrics_url", [])]
        shared = ["".join(page) for page in pages if page[0] not in self.sides]
        urls = [*(url for side, _, url in pages if side == run.side), *shared]
        for side in PRESETS[self.preset].sides[:1] if self.preset and self.options.get("clock") != "virtual" else ():
            urls = urls or [Target.parse(self.sides[side]).metrics_url]
        return {**self.options, "set": self._settings(run.set), "metrics_url": urls}

    def _settings(self, more: Sequence[str]) -> list[str]:
        """Return the changes of the scenario with those of a control, which replace others of the same key."""
        keys = {each.partition("=")[0] for each in more}
        return [*(each for each in self.options.get("set", []) if each.partition("=")[0] not in keys), *more]

    def load(self, *more: str) -> Scenario:
        """Load the scenario with its changes. Raise UsageError if it has changed since the start, or has no end."""
        scenario = scenarios.load(self.scenario, overrides.parse_settings(self._settings(more)))
        if self.digest and not more and scenario.digest != self.digest:
            raise UsageError(f"scenario {self.scenario}: changed since the start; undo the change, or start anew")
        if not scenario.ends_by_itself:
            raise UsageError(f"scenario {self.scenario}: has no end; give --duration, as 60s")
        return scenario


@dataclass(frozen=True, slots=True)
class AbRun:
    """Run of a side. `folder`: below that of the comparison, in that of the side; `set`: changes of the scenario, of a control."""

    side: str
    url: str
    seed: int
    folder: str
    set: tuple[str, ...] = ()


def planned(plan: AbPlan) -> list[AbRun]:
    """Return all runs in order: pair by pair, the sides of a pair in a drawn order."""
    of = {**{side: side for side in plan.sides}, **plan.controls}
    changes = dict.fromkeys(plan.controls, PRESETS[plan.preset].set if plan.preset else ())
    return [
        AbRun(of[name], plan.sides[of[name]], pair.seed, f"{name}/{pair.number:03d}", changes.get(name, ()))
        for pair in pairs.drawn(f"{plan.seed}/ab", plan.pairs, list(of))
        for name in pair.order
    ]


def read(folder: Path) -> AbPlan:
    """Read the plan of a folder. Raise UsageError if there is none."""
    if not (folder / PLAN).is_file():
        raise UsageError(f"--resume {folder}: contains no comparison of servers; give the folder of inferload ab")
    return typed_yaml.from_text(catalog.read(folder / PLAN, ""), str(folder / PLAN), AbPlan)


def sides_of(words: list[str]) -> dict[str, str]:
    """Parse `NAME=URL` words. Raise UsageError for a malformed or repeated one."""
    sides: dict[str, str] = {}
    for word in words:
        name, sign, url = word.partition("=")
        if not sign or not url or "/" in name or ":" in name:
            raise UsageError(f"{word}: write a side as NAME=URL, such as A=http://server:8000")
        if name in sides:
            raise UsageError(f"{word}: side {name} is given twice; rename one")
        sides[name] = url
    return sides
