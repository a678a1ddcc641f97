"""SLO limits of the classes of a scenario."""

from inferload.figures.limits.slo import Slo
from inferload.scenario import scenario as scenarios


def slo_of(scenario: scenarios.Scenario, class_name: str) -> Slo | None:
    """Return the SLO limits of a class; None if it has none. In an open loop, times count from the planned instant."""
    limits = scenario.slo_of(class_name).limits
    return Slo(limits, from_plan=scenario.open_loop) if limits else None


class Slos(dict[str, Slo | None]):
    """SLO limits by class; those of a class that a task names during the run are added at its first turn."""

    def __init__(self, scenario: scenarios.Scenario) -> None:
        super().__init__()
        self._scenario = scenario

    def __missing__(self, class_name: str) -> Slo | None:
        self[class_name] = slo = slo_of(self._scenario, class_name)
        return slo
