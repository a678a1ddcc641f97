"""Program of a locustfile's user classes: the scenario that they play together, or their own tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferload.errors import UsageError
from inferload.scenario import scenario as scenarios
from inferload.scenario.overrides import Override
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema import tasks
from inferload.scenario.schema.arrivals import Closed
from inferload.scenario.schema.workloads import Mix

# What scenarios of one run have in common: there is one client, one cache and one scraper.
_IN_COMMON = ("request", "cache", "server")


@dataclass(frozen=True, slots=True)
class ScenarioClass:
    """A class that plays a scenario. `weight`: its part of the users."""

    name: str
    scenario: str
    weight: float


@dataclass(frozen=True, slots=True)
class LoadedScenario:
    """A scenario as it was read, with the changes of --set, and its digest without these."""

    scenario: Scenario
    digest: str


@dataclass(frozen=True, slots=True)
class Program:
    """The classes that play scenarios, and whether others send turns by tasks of their own.

    `offered`: the default of --scenario, which stands for what the classes that take part ask for.
    """

    scenario_classes: tuple[ScenarioClass, ...] = ()
    tasks: bool = False
    offered: str = ""

    @property
    def default(self) -> str:
        """The scenario's name where there is one for all; "" for several, and for tasks."""
        names = {one.scenario for one in self.scenario_classes}
        return names.pop() if len(names) == 1 else ""

    def named(self, name: str) -> str:
        """The scenario that is meant; "" for none, and for several."""
        return self.default if name in ("", self.offered) else name

    def read(self, name: str, settings: Sequence[Override] = ()) -> LoadedScenario:
        """Read the scenario of a run. `name`: of --scenario, "" for what the classes ask for; UsageError if they do not fit."""
        scenario = self.load(name, settings)
        return LoadedScenario(scenario, (self.load(name) if settings else scenario).digest)

    def load(self, name: str, settings: Sequence[Override] = ()) -> Scenario:
        """Read the scenario of a run, edited by --set; UsageError if the classes do not fit it."""
        name = self.named(name)
        if name:
            scenario = self._loaded(name, settings)
            self._check(name, scenario)
            return scenario
        if not self.scenario_classes:
            return scenarios.from_text(tasks.SCENARIO, "tasks", settings)
        changes = {each.key: each.value for each in settings}
        return self._together().changed(changes, "--set") if changes else self._together()

    def _loaded(self, name: str, settings: Sequence[Override] = ()) -> Scenario:
        """Read one file; an error names the class that plays it."""
        try:
            return scenarios.load(name, settings)
        except UsageError as error:
            player = next((player for player in self.scenario_classes if player.scenario == name), None)
            if player is None or name == self.offered:
                raise
            raise UsageError(f"{player.name}: {error}") from error

    def _check(self, name: str, scenario: Scenario) -> None:
        who = ", ".join(one.name for one in self.scenario_classes)
        if len({one.scenario for one in self.scenario_classes}) > 1:
            raise UsageError(f"--scenario {name}: {who} play scenarios of their own; leave it out, or name one class")
        if scenario.of_tasks and self.scenario_classes:
            raise UsageError(
                f"--scenario {name}: tasks of a locustfile send its turns, and {who} plays sessions; name another"
            )
        if self.tasks and not self.scenario_classes and not scenario.of_tasks:
            raise UsageError(
                f"--scenario {name}: no class of the locustfile plays a scenario; leave it out, or derive one from ScenarioUser"
            )

    def _together(self) -> Scenario:
        """One scenario of several: a mix whose classes have the names of the user classes."""
        parts = [self._loaded(player.scenario) for player in self.scenario_classes]
        first, named = parts[0], self.scenario_classes[0]
        for player, part in zip(self.scenario_classes, parts, strict=True):
            if not isinstance(part.arrivals, Closed) or part.arrivals.profile is not None or part.phases.counted:
                what = "a closed loop of a fixed number of users that ends by time"
                raise UsageError(f"{player.name}: scenario {player.scenario} beside another must be {what}")
            if isinstance(part.workload, Mix) or part.of_tasks:
                kind = part.workload.kind
                raise UsageError(
                    f"{player.name}: scenario {player.scenario} is of kind {kind}, which cannot stand beside another"
                )
            for key in _IN_COMMON:
                if getattr(part, key) != getattr(first, key):
                    raise UsageError(
                        f"{player.name}: {key} of scenario {player.scenario} differs from that of {named.scenario} "
                        f"({named.name}), and one run has one; make them equal"
                    )
        document = first.as_data()
        document |= {
            "name": "-".join(part.name for part in parts)[:64],
            "workload": {"kind": "mix", "classes": self._classes(parts)},
            "phases": _phases(parts),
            "gates": [*dict.fromkeys(gate for part in parts for gate in part.gates)],
            "abort_on": [*dict.fromkeys(condition for part in parts for condition in part.abort_on)],
        }
        closed = [part.arrivals for part in parts if isinstance(part.arrivals, Closed)]
        document["arrivals"] |= {
            "users": sum(one.users for one in closed),
            "spawn_per_s": sum(one.spawn_per_s for one in closed),
        }
        return scenarios.from_data(document, ", ".join(one.scenario for one in self.scenario_classes))

    def _classes(self, parts: Sequence[Scenario]) -> list[dict[str, Any]]:
        total = sum(one.weight for one in self.scenario_classes)
        return [
            {
                "name": player.name[:32],
                "share": player.weight / total,
                "workload": part.as_data()["workload"],
                "slo": part.as_data()["slo"],
            }
            for player, part in zip(self.scenario_classes, parts, strict=True)
        ]


def _phases(parts: Sequence[Scenario]) -> dict[str, Any]:
    """The longest of each."""
    measure_s = [part.phases.measure_s for part in parts]
    phases: dict[str, Any] = parts[0].as_data()["phases"]
    return phases | {
        "warmup_s": max(part.phases.warmup_s for part in parts),
        "measure_s": None if None in measure_s else max(one or 0.0 for one in measure_s),
        "drain_s": max(part.phases.drain_s for part in parts),
    }
