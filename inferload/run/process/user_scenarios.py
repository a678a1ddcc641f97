"""Combination of a locustfile's user classes: the scenario that they run together, or their own tasks."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from inferload.base.errors import UsageError
from inferload.scenario import scenario as scenarios
from inferload.scenario.overrides import Override
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.tasks import NAME, named
from inferload.scenario.schema.workloads import Mix

# Parts that scenarios of one run share: there is one client, one cache and one scraper.
_SHARED = ("request", "cache", "server")


class ScenarioClass(Struct, frozen=True):
    """A user class that runs a scenario. `weight`: its part of the users."""

    name: str
    scenario: str
    weight: float


class LoadedScenario(Struct, frozen=True):
    """A scenario with the changes of --set. `digest`: without these changes."""

    scenario: Scenario
    digest: str


class Program(Struct, frozen=True):
    """The classes that run scenarios. `tasks`: other classes send turns from tasks of their own.

    `name`: of runs without a scenario. `default_option`: the default of --scenario; if the option has this value, the classes
    select their scenarios.
    """

    scenario_classes: tuple[ScenarioClass, ...] = ()
    tasks: bool = False
    default_option: str = ""
    name: str = NAME

    @property
    def default(self) -> str:
        """Name of the scenario of all classes; "" if there are several, or none."""
        names = {member.scenario for member in self.scenario_classes}
        return names.pop() if len(names) == 1 else ""

    def scenario_of(self, option: str) -> str:
        """Return the scenario's name for a value of --scenario; "" if the classes have several, or none."""
        return self.default if option in ("", self.default_option) else option

    def read(self, name: str, settings: Sequence[Override] = ()) -> LoadedScenario:
        """Read the scenario of a run. `name`: value of --scenario. UsageError if the classes do not fit the scenario."""
        scenario = self.load(name, settings)
        return LoadedScenario(scenario, (self.load(name) if settings else scenario).digest)

    def load(self, name: str, settings: Sequence[Override] = ()) -> Scenario:
        """Read the scenario of a run with the changes of --set; UsageError if the classes do not fit it."""
        name = self.scenario_of(name)
        if name:
            scenario = self._loaded(name, settings)
            self.check(name, scenario)
            return scenario
        if not self.scenario_classes:
            return scenarios.from_text(named(self.name), "tasks", settings)
        changes = {setting.key: setting.value for setting in settings}
        return self._together().changed(changes, "--set") if changes else self._together()

    def _loaded(self, name: str, settings: Sequence[Override] = ()) -> Scenario:
        """Read one file; an error names its user class."""
        try:
            return scenarios.load(name, settings)
        except UsageError as error:
            member = next((member for member in self.scenario_classes if member.scenario == name), None)
            if member is None or name == self.default_option:
                raise
            raise UsageError(f"{member.name}: {error}") from error

    def check(self, name: str, scenario: Scenario) -> None:
        """Raise UsageError if the classes cannot run a scenario. `name`: value of --scenario."""
        names = ", ".join(member.name for member in self.scenario_classes)
        if len({member.scenario for member in self.scenario_classes}) > 1:
            raise UsageError(f"--scenario {name}: {names} run different scenarios; leave it out, or name one class")
        if scenario.of_tasks and self.scenario_classes:
            raise UsageError(f"--scenario {name}: it is for turns of tasks, and {names} runs sessions; name another")
        if self.tasks and not self.scenario_classes and not scenario.of_tasks:
            raise UsageError(
                f"--scenario {name}: no class of the locustfile runs a scenario; leave it out, or derive one from ScenarioUser"
            )

    def _together(self) -> Scenario:
        """Return a mix of the scenarios, whose classes have the names of the user classes."""
        parts = [self._loaded(member.scenario) for member in self.scenario_classes]
        first, first_class = parts[0], self.scenario_classes[0]
        for member, part in zip(self.scenario_classes, parts, strict=True):
            if part.open_loop or part.arrivals.load_profile is not None or part.phases.counted:
                kind = "a closed loop of a fixed number of users that ends by time"
                raise UsageError(f"{member.name}: scenario {member.scenario} beside another must be {kind}")
            if isinstance(part.workload, Mix) or part.of_tasks:
                kind = part.workload.kind
                raise UsageError(
                    f"{member.name}: scenario {member.scenario} is of kind {kind}, which cannot be combined with another"
                )
            for key in _SHARED:
                if getattr(part, key) != getattr(first, key):
                    raise UsageError(
                        f"{member.name}: {key} of scenario {member.scenario} differs from that of {first_class.scenario} "
                        f"({first_class.name}), and a run has one {key}; make them equal"
                    )
        document = first.as_data()
        document |= {
            "name": "-".join(part.name for part in parts)[:64],
            "workload": {"kind": "mix", "classes": self._classes(parts)},
            "phases": _phases(parts),
            "gates": [*dict.fromkeys(gate for part in parts for gate in part.gates)],
            "abort_on": [*dict.fromkeys(condition for part in parts for condition in part.abort_on)],
        }
        users = [part.arrivals.locust_users for part in parts]
        document["arrivals"] |= {
            "users": sum(part.users for part in users),
            "spawn_per_s": sum(part.spawn_per_s for part in users),
        }
        return scenarios.from_data(document, ", ".join(member.scenario for member in self.scenario_classes))

    def _classes(self, parts: Sequence[Scenario]) -> list[dict[str, Any]]:
        total = sum(member.weight for member in self.scenario_classes)
        return [
            {
                "name": member.name[:32],
                "share": member.weight / total,
                "workload": part.as_data()["workload"],
                "slo": part.as_data()["slo"],
            }
            for member, part in zip(self.scenario_classes, parts, strict=True)
        ]


def _phases(parts: Sequence[Scenario]) -> dict[str, Any]:
    measure_s = [part.phases.measure_s for part in parts]
    phases: dict[str, Any] = parts[0].as_data()["phases"]
    return phases | {
        "warmup_s": max(part.phases.warmup_s for part in parts),
        "measure_s": None if None in measure_s else max(length_s or 0.0 for length_s in measure_s),
        "drain_s": max(part.phases.drain_s for part in parts),
    }
