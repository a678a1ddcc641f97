"""Start times of sessions: one seeded sequence, sharded across workers.

A process is drawn at unit rate. A schedule scales its time by the current rate, which is a settable rate times the scenario's
curve. Therefore the rate can change during the run, and arrival i stays the same
on any number of workers. The times of a trace are a process as well; its rate is the speed. Times are seconds since the start
of the load; no clock is read here.
"""

from collections.abc import Callable, Iterator
from itertools import count, islice
from math import inf

from msgspec import Struct

from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.load.rate_curves import ALWAYS_ONE, RateCurve
from inferload.workload.sessions import Sessions


def stripe(worker: int, workers: int) -> Iterator[int]:
    """Return the session indexes of worker k of n: k, k + n, k + 2n, ..."""
    if not 0 <= worker < workers:
        raise ValueError(f"worker {worker} of {workers}: worker numbers start at 0")
    return count(worker, workers)


def share(total: int, worker: int, workers: int) -> int:
    """Return the share of worker k of n in a total. Shares differ by at most 1 and sum to the total."""
    return total // workers + (worker < total % workers)


class Arrival(Struct, frozen=True):
    """Start of session `index` of the run, in seconds since the start of the load."""

    index: int
    due_s: float


class _RateChange(Struct, frozen=True):
    """Rate from `at_s` on, with the unit time and the integral of the curve at that time."""

    at_s: float
    unit: float
    area: float
    rate: float

    def unit_at(self, area: float) -> float:
        return self.unit + (area - self.area) * self.rate


class Schedule:
    """Arrivals of one worker, at a rate of all workers that may change at any time.

    `rate`: sessions per second, with a `curve` the factor on its rates, for a trace its speed. Use: call `peek()`, sleep
    until its `due_s` or a change of the rate, and take the arrival with `next()` when it is due. A change of the rate moves
    all arrivals that have not been taken. `sends`: predicate of the session indexes to include.
    """

    def __init__(
        self,
        units: Iterator[float],
        rate: float,
        worker: int = 0,
        workers: int = 1,
        curve: RateCurve = ALWAYS_ONE,
        *,
        sends: Callable[[int], bool] = lambda _index: True,
    ) -> None:
        self._units = units
        self._stripe = stripe(worker, workers)
        self._workers = workers
        self._curve = curve
        self._changes = [_RateChange(0.0, 0.0, 0.0, _checked(rate))]
        self._index = next(self._stripe)
        self._sends = sends
        self._unit = self._skip(worker + 1)
        self._skip_excluded()

    @property
    def rate(self) -> float:
        """Rate set last, of all workers."""
        return self._changes[-1].rate

    @property
    def exhausted(self) -> bool:
        """True if the process has ended, as that of a trace does."""
        return self._unit == inf

    def set_rate(self, at_s: float, rate: float) -> None:
        """Set the rate of all workers from `at_s` on; 0 pauses. ValueError if changes are not in order of time."""
        last = self._changes[-1]
        if at_s < last.at_s:
            raise ValueError(f"rate change at {at_s} s is before the last one at {last.at_s} s")
        area = self._curve.area(at_s)
        new = _RateChange(at_s, last.unit_at(area), area, _checked(rate))
        self._changes[-1:] = [new] if at_s == last.at_s else [last, new]

    def peek(self) -> Arrival | None:
        """Return the next arrival at the current rates; None while paused before it, or at the end."""
        due_s = self._due_s()
        return None if due_s is None else Arrival(self._index, due_s)

    def next(self) -> Arrival | None:
        """Take the next arrival; None while paused before it, or at the end."""
        arrival = self.peek()
        if arrival is not None:
            self._index = next(self._stripe)
            self._unit = self._skip(self._workers)
            self._skip_excluded()
        return arrival

    def _skip_excluded(self) -> None:
        while not (self.exhausted or self._sends(self._index)):
            self._index = next(self._stripe)
            self._unit = self._skip(self._workers)

    def _skip(self, steps: int) -> float:
        return next(islice(self._units, steps - 1, None), inf)

    def _due_s(self) -> float | None:
        """Return the time of the next arrival, by the last change of the rate before it."""
        while len(self._changes) > 1 and self._changes[1].unit < self._unit:
            del self._changes[0]
        here = self._changes[0]
        if self.exhausted or not here.rate:
            return None
        if self._curve is ALWAYS_ONE:  # areas are times: no rounding
            return here.at_s + (self._unit - here.unit) / here.rate
        due_s = self._curve.time_of(here.area + (self._unit - here.unit) / here.rate)
        return None if due_s is None else max(here.at_s, due_s)


def schedule_of(scenario: Scenario, sessions: Sessions, rate: float, worker: int = 0, workers: int = 1) -> Schedule:
    """Return the arrivals of worker k of n, with the initial rate of all workers; empty in a closed loop."""
    units = scenario.arrivals.unit_times(scenario.seed, sessions)
    curve = scenario.arrivals.rate_curve(scenario.phases.warmup_s) or ALWAYS_ONE
    return Schedule(units, rate, worker, workers, curve, sends=sessions.sends)


def _checked(rate: float) -> float:
    if not 0 <= rate < inf:
        raise ValueError(f"rate is {rate}; it must be finite and at least 0")
    return float(rate)
