"""When sessions start: one seeded global sequence, of which each worker takes its stripe.

A process is drawn once at unit rate, one arrival per unit of time on average; a schedule stretches its time by the
rate that holds: one that was set by hand, times a curve that the scenario plans. So the rate may change while it runs, and
arrival i is still the same arrival, on any number of workers. A trace's own times are a process too: its rate is its speed.
No clock is read here: times are seconds since the load began.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from math import inf
from random import Random

from inferload.scenario.schema.rate_curves import ALWAYS_ONE, RateCurve


def constant(rng: Random, burstiness: float) -> Iterator[float]:
    """Unit times 0.5, 1.5, 2.5, ...: any stretch of n whole intervals from the start holds exactly n arrivals."""
    return (number + 0.5 for number in count())


def poisson(rng: Random, burstiness: float) -> Iterator[float]:
    """Unit times with independent exponential gaps of mean 1: many callers who know nothing of each other."""
    at = 0.0
    while True:
        at += rng.expovariate(1.0)
        yield at


def gamma(rng: Random, burstiness: float) -> Iterator[float]:
    """Unit times with independent gamma gaps of mean 1 and shape `burstiness`: 1 is Poisson, less comes in bursts."""
    at = 0.0
    while True:
        at += rng.gammavariate(burstiness, 1 / burstiness)
        yield at


# Each takes the run's random numbers and a shape, which only a gamma process has.
PROCESSES: Mapping[str, Callable[[Random, float], Iterator[float]]] = {
    "constant": constant,
    "poisson": poisson,
    "gamma": gamma,
}


def unit_process(kind: str, seed: int, burstiness: float = 1.0) -> Iterator[float]:
    """The cumulative unit times of arrivals 0, 1, 2, ...: the same in every worker of a run."""
    return PROCESSES[kind](Random(f"{seed}/arrivals"), burstiness)


def stripe(worker: int, workers: int) -> Iterator[int]:
    """The session indexes of worker k of n: k, k + n, k + 2n, ...; a closed loop takes them as its users become free."""
    if not 0 <= worker < workers:
        raise ValueError(f"worker {worker} of {workers}: workers count from 0")
    return count(worker, workers)


def share(total: int, worker: int, workers: int) -> int:
    """Worker k of n's part of a number of things; all parts together are the number, and differ by at most one."""
    return total // workers + (worker < total % workers)


@dataclass(frozen=True, slots=True)
class Arrival:
    """Session `index` of the whole run is due at `due_s` since the load began."""

    index: int
    due_s: float


@dataclass(frozen=True, slots=True)
class _Stretch:
    """From `at_s` on, when the unit process stands at `unit` and the curve's integral at `area`, the rate is `rate`."""

    at_s: float
    unit: float
    area: float
    rate: float

    def unit_at(self, area: float) -> float:
        return self.unit + (area - self.area) * self.rate


class Schedule:
    """This worker's arrivals, their times stretched by a rate of the whole fleet that may change at any time.

    `rate`: sessions per second; where a `curve` is given, a factor on its rates; of a trace's times, its speed.
    Use: look at `peek()`, sleep until its `due_s` or until somebody changes the rate, and take it with `next()` when it
    is due. What is taken is never re-timed; what is only looked at is. `wanted`: arrivals that it leaves out pass unseen.
    """

    def __init__(
        self,
        units: Iterator[float],
        rate: float,
        worker: int = 0,
        workers: int = 1,
        curve: RateCurve = ALWAYS_ONE,
        *,
        wanted: Callable[[int], bool] = lambda _index: True,
    ) -> None:
        self._units = units
        self._stripe = stripe(worker, workers)
        self._workers = workers
        self._curve = curve
        self._stretches = [_Stretch(0.0, 0.0, 0.0, _checked(rate))]
        self._index = next(self._stripe)
        self._wanted = wanted
        self._unit = self._skip(worker + 1)
        self._to_wanted()

    @property
    def rate(self) -> float:
        """The rate that was set last, of the whole fleet."""
        return self._stretches[-1].rate

    @property
    def exhausted(self) -> bool:
        """Whether the process has ended: a trace does, and then nothing more arrives whatever the rate."""
        return self._unit == inf

    def set_rate(self, at_s: float, rate: float) -> None:
        """From `at_s` on the whole fleet goes by this rate; 0 pauses. Changes come in order of time."""
        last = self._stretches[-1]
        if at_s < last.at_s:
            raise ValueError(f"rate change at {at_s} s is before the last one at {last.at_s} s")
        area = self._curve.area(at_s)
        new = _Stretch(at_s, last.unit_at(area), area, _checked(rate))
        self._stretches[-1:] = [new] if at_s == last.at_s else [last, new]

    def peek(self) -> Arrival | None:
        """The next arrival of this worker as the rates stand now; None while paused before it, or once there is none."""
        due_s = self._due_s()
        return None if due_s is None else Arrival(self._index, due_s)

    def next(self) -> Arrival | None:
        """Take the next arrival of this worker; None (and nothing taken) while paused before it, or once there is none."""
        arrival = self.peek()
        if arrival is not None:
            self._index = next(self._stripe)
            self._unit = self._skip(self._workers)
            self._to_wanted()
        return arrival

    def _to_wanted(self) -> None:
        while not (self.exhausted or self._wanted(self._index)):
            self._index = next(self._stripe)
            self._unit = self._skip(self._workers)

    def _skip(self, steps: int) -> float:
        return next(islice(self._units, steps - 1, None), inf)

    def _due_s(self) -> float | None:
        """When the rates bring the unit process to this worker's next arrival: in the last stretch that begins before it."""
        while len(self._stretches) > 1 and self._stretches[1].unit < self._unit:
            del self._stretches[0]
        here = self._stretches[0]
        if self.exhausted or not here.rate:
            return None
        if self._curve is ALWAYS_ONE:  # areas are times then: no rounding on the way
            return here.at_s + (self._unit - here.unit) / here.rate
        due_s = self._curve.time_of(here.area + (self._unit - here.unit) / here.rate)
        return None if due_s is None else max(here.at_s, due_s)


def _checked(rate: float) -> float:
    if not 0 <= rate < inf:
        raise ValueError(f"the rate is {rate}; a rate is finite and not negative")
    return float(rate)
