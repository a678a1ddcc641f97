"""When sessions start: one seeded global sequence, of which each worker takes its stripe.

A process is drawn once at unit rate, one arrival per unit of time on average; a schedule stretches its time by the
rate that holds. So the rate may change while it runs, and arrival i is still the same arrival, on any number of
workers. No clock is read here: times are seconds since the load began.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random


def constant(rng: Random) -> Iterator[float]:
    """Unit times 0.5, 1.5, 2.5, ...: any stretch of n whole intervals from the start holds exactly n arrivals."""
    return (number + 0.5 for number in count())


def poisson(rng: Random) -> Iterator[float]:
    """Unit times with independent exponential gaps of mean 1: many callers who know nothing of each other."""
    at = 0.0
    while True:
        at += rng.expovariate(1.0)
        yield at


PROCESSES: Mapping[str, Callable[[Random], Iterator[float]]] = {"constant": constant, "poisson": poisson}


def unit_process(kind: str, seed: int) -> Iterator[float]:
    """The cumulative unit times of arrivals 0, 1, 2, ...: the same in every worker of a run."""
    return PROCESSES[kind](Random(f"{seed}/arrivals"))


def stripe(worker: int, workers: int) -> Iterator[int]:
    """The session indexes of worker k of n: k, k + n, k + 2n, ...; a closed loop takes them as its users become free."""
    if not 0 <= worker < workers:
        raise ValueError(f"worker {worker} of {workers}: workers count from 0")
    return count(worker, workers)


@dataclass(frozen=True, slots=True)
class Arrival:
    """Session `index` of the whole run is due at `due_s` since the load began."""

    index: int
    due_s: float


@dataclass(frozen=True, slots=True)
class _Stretch:
    """From `at_s` on, when the unit process stands at `unit`, the rate is `sessions_per_s`."""

    at_s: float
    unit: float
    sessions_per_s: float

    def unit_at(self, at_s: float) -> float:
        return self.unit + (at_s - self.at_s) * self.sessions_per_s


class Schedule:
    """This worker's arrivals, their times stretched by a rate of the whole fleet that may change at any time.

    Use: look at `peek()`, sleep until its `due_s` or until somebody changes the rate, and take it with `next()` when it
    is due. What is taken is never re-timed; what is only looked at is.
    """

    def __init__(self, units: Iterator[float], sessions_per_s: float, worker: int = 0, workers: int = 1) -> None:
        self._units = units
        self._stripe = stripe(worker, workers)
        self._workers = workers
        self._stretches = [_Stretch(0.0, 0.0, _checked(sessions_per_s))]
        self._index = next(self._stripe)
        self._unit = self._skip(worker + 1)

    @property
    def sessions_per_s(self) -> float:
        """The rate that was set last, of the whole fleet."""
        return self._stretches[-1].sessions_per_s

    def set_rate(self, at_s: float, sessions_per_s: float) -> None:
        """From `at_s` on the whole fleet starts so many sessions per second; 0 pauses. Changes come in order of time."""
        last = self._stretches[-1]
        if at_s < last.at_s:
            raise ValueError(f"rate change at {at_s} s is before the last one at {last.at_s} s")
        new = _Stretch(at_s, last.unit_at(at_s), _checked(sessions_per_s))
        self._stretches[-1:] = [new] if at_s == last.at_s else [last, new]

    def peek(self) -> Arrival | None:
        """The next arrival of this worker as the rates stand now; None while paused before it."""
        due_s = self._due_s()
        return None if due_s is None else Arrival(self._index, due_s)

    def next(self) -> Arrival | None:
        """Take the next arrival of this worker; None (and nothing taken) while paused before it."""
        arrival = self.peek()
        if arrival is not None:
            self._index = next(self._stripe)
            self._unit = self._skip(self._workers)
        return arrival

    def _skip(self, steps: int) -> float:
        for _ in range(steps - 1):
            next(self._units)
        return next(self._units)

    def _due_s(self) -> float | None:
        """When the rates bring the unit process to this worker's next arrival: in the last stretch that begins before it."""
        while len(self._stretches) > 1 and self._stretches[1].unit < self._unit:
            del self._stretches[0]
        here = self._stretches[0]
        return here.at_s + (self._unit - here.unit) / here.sessions_per_s if here.sessions_per_s else None


def _checked(sessions_per_s: float) -> float:
    if not 0 <= sessions_per_s < float("inf"):
        raise ValueError(f"sessions_per_s is {sessions_per_s}; a rate is finite and not negative")
    return float(sessions_per_s)
