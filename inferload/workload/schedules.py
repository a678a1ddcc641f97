"""From a scenario to the schedule of its arrivals: which process, which curve."""

from collections.abc import Iterator

from inferload.workload.arrivalkinds import Closed, Gamma
from inferload.workload.arrivals import Schedule, unit_process
from inferload.workload.scenario import Scenario
from inferload.workload.sessions import Sessions


def units_of(scenario: Scenario, sessions: Sessions) -> Iterator[float]:
    """The unit times of an open loop's arrivals."""
    arrivals = scenario.arrivals
    return unit_process(arrivals.kind, scenario.seed, arrivals.burstiness if isinstance(arrivals, Gamma) else 1.0)


def schedule_of(scenario: Scenario, sessions: Sessions, rate: float, worker: int = 0, workers: int = 1) -> Schedule:
    """The arrivals of worker k of n in an open loop that begins at this rate (of the whole fleet)."""
    arrivals = scenario.arrivals
    if isinstance(arrivals, Closed):
        raise ValueError("a closed loop has no schedule")
    units, curve = units_of(scenario, sessions), arrivals.curve(scenario.phases.warmup_s)
    return Schedule(units, rate, worker, workers, curve, wanted=sessions.sends)
