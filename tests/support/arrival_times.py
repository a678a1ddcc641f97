"""Start times of the arrival processes at unit rate."""

from collections.abc import Callable, Iterator, Mapping

from inferload.scenario.schema.load.arrivals import ConstantRate, Gamma, Poisson, Rated

PROCESSES: Mapping[str, Callable[[float], Rated]] = {
    "constant": lambda _burstiness: ConstantRate(kind="constant", sessions_per_s=1.0),
    "poisson": lambda _burstiness: Poisson(kind="poisson", sessions_per_s=1.0),
    "gamma": lambda burstiness: Gamma(kind="gamma", sessions_per_s=1.0, burstiness=burstiness),
}


class NoRecords:
    """Sessions without recorded start times."""

    origin = ""

    def arrivals_s(self) -> Iterator[float]:
        """Fail: a process has no use for recorded times."""
        raise AssertionError("a process read recorded times")


def unit_process(kind: str, seed: int, burstiness: float = 1.0) -> Iterator[float]:
    """Return the times of a run with this seed. Only `gamma` uses the burstiness."""
    return PROCESSES[kind](burstiness).unit_times(seed, NoRecords())
