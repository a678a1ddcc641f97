"""Overload of an open loop: turns that arrive and do not end within the window, so that the number in flight grows.

Over a window, growth = turns planned - turns ended. The plan is known exactly; the count of ends is random, and its standard
error comes from ends per block of time (batch means, which include autocorrelation shorter than a block). At the start of a
load the number in flight grows until the first turns end. Growth is therefore measured from the instant at which the load has
lasted as long as all but 1 % of the turns that ended in the window. Pure maths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt

from inferload.measure.arrow import pc
from inferload.measure.clock import NS_PER_S
from inferload.measure.columns import Read
from inferload.measure.record import Failure, PhaseWindow
from inferload.measure.sketch import rank

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

BLOCKS = 12
LEAST_SHARE = 0.05  # of the offered turns: smaller growth is not distinguished from fluctuation
_LEAST_TURNS = 5.0
_LEAST_PART = 0.1  # of the window that must remain once the load has lasted long enough
_SETTLED = 0.99

State = Literal["kept up", "overloaded", "unsettled"]


@dataclass(frozen=True, slots=True)
class Growth:
    """Turns per second over `lasts_s` seconds. `low_per_s`, `high_per_s`: 95 % interval of the growth.

    `ended_per_s`: turns that ended in any way. `failed_per_s`: turns that failed.

    `state`: `unsettled` if the number in flight grew, but the window is too short, compared with a turn, to distinguish
    overload from the start of the load.
    """

    lasts_s: float
    offered_per_s: float
    ended_per_s: float
    growth_per_s: float
    low_per_s: float
    high_per_s: float
    state: State
    step: int | None = None  # number of the step, in a load with steps
    failed_per_s: float = 0.0
    kept_up_per_s: float | None = None  # of a load with steps: the highest rate offered by a step without growth

    @property
    def share(self) -> float:
        """Growth of the number in flight over the offered turns."""
        return self.growth_per_s / self.offered_per_s if self.offered_per_s else 0.0


def growth(planned_s: Floats, ended_s: Floats, lasts_s: float, loaded_s: float = 0.0) -> Growth | None:
    """Growth of the number of turns in flight over a window of constant load. Returns None if the window is empty.

    `planned_s`, `ended_s`: per turn, seconds since the window began; inf if the end was not seen. `loaded_s`: seconds
    for which the load had lasted when the window began.
    """
    if lasts_s <= 0:
        return None
    whole = _over(planned_s, ended_s, 0.0, lasts_s)
    if whole.state == "kept up":
        return whole
    settled_s = _settled_s(planned_s, ended_s, lasts_s) - loaded_s
    if settled_s <= 0:
        return whole
    if settled_s > (1 - _LEAST_PART) * lasts_s:
        return replace(whole, state="unsettled")
    return _over(planned_s, ended_s, settled_s, lasts_s)


@dataclass(frozen=True, slots=True)
class Ends:
    """Plan and end of each turn on one clock, in 18 bytes per turn. `given_up`: turns whose end was not seen."""

    planned_ns: Ints
    closed_ns: Ints
    given_up: Bools
    failed: Bools

    @classmethod
    def of(cls, read: Read, shifts_ns: Mapping[str, int]) -> Ends:
        """Return those of all turns. `shifts_ns`: per worker, offset from its instants to the common clock."""
        planned, closed = ([np.zeros(0, dtype=np.int64)] for _ in range(2))
        given_up, failed = ([np.zeros(0, dtype=np.bool_)] for _ in range(2))
        for turns in read(("worker", "planned_ns", "closed_ns", "failure")):
            shifts = np.array([shifts_ns[worker] for worker in turns["worker"].to_pylist()], dtype=np.int64)
            planned.append(turns["planned_ns"].to_numpy() + shifts)
            closed.append(turns["closed_ns"].to_numpy() + shifts)
            given_up.append(pc.fill_null(pc.equal(turns["failure"], Failure.UNFINISHED), False).to_numpy())
            failed.append(pc.is_valid(turns["failure"]).to_numpy() & ~given_up[-1])
        return cls(np.concatenate(planned), np.concatenate(closed), np.concatenate(given_up), np.concatenate(failed))


def growth_of_turns(turns: Ends, window: PhaseWindow, loaded_s: float = 0.0) -> Growth | None:
    """Return `growth` of turns on the clock of `window`."""
    if window.end_ns is None:
        return None
    planned_s, closed_s = ((at_ns - window.start_ns) / NS_PER_S for at_ns in (turns.planned_ns, turns.closed_ns))
    lasts_s = (window.end_ns - window.start_ns) / NS_PER_S
    result = growth(planned_s, np.where(turns.given_up, np.inf, closed_s), lasts_s, loaded_s)
    if result is None:
        return None
    failed_s = closed_s[turns.failed]
    failed = np.count_nonzero((failed_s >= lasts_s - result.lasts_s) & (failed_s < lasts_s))
    return replace(result, step=window.step, failed_per_s=failed / result.lasts_s)


def worst(steps: Sequence[Growth]) -> Growth | None:
    """Return the growth of the step with the largest share, with the highest rate that kept up."""
    largest = max(steps, key=lambda step: (step.state != "kept up", step.share), default=None)
    if largest is None or largest.step is None:
        return largest
    kept_up = (step.offered_per_s for step in steps if step.state == "kept up")
    return replace(largest, kept_up_per_s=max(kept_up, default=None))


def _settled_s(planned_s: Floats, ended_s: Floats, lasts_s: float) -> float:
    """99th percentile of the durations of the turns that ended in the window; infinite if none ended."""
    inside = (ended_s >= 0) & (ended_s < lasts_s)
    durations = np.sort((ended_s - planned_s)[inside])
    return float(durations[rank(_SETTLED, len(durations)) - 1]) if len(durations) else float("inf")


def _over(planned_s: Floats, ended_s: Floats, start_s: float, end_s: float) -> Growth:
    """Growth from `start_s` to `end_s`, without regard to the start of the load."""
    from scipy.special import stdtrit  # not at start-up: processes that generate load import this module

    lasts_s = end_s - start_s
    offered = int(np.count_nonzero((planned_s >= start_s) & (planned_s < end_s)))
    ends, _ = np.histogram(ended_s, bins=BLOCKS, range=(start_s, end_s))
    more = offered - int(ends.sum())
    half = float(stdtrit(BLOCKS - 1, 0.975)) * sqrt(BLOCKS) * float(ends.std(ddof=1))
    grew = more >= _LEAST_TURNS and more > LEAST_SHARE * offered and more > half
    return Growth(
        lasts_s,
        offered / lasts_s,
        float(ends.sum()) / lasts_s,
        more / lasts_s,
        (more - half) / lasts_s,
        (more + half) / lasts_s,
        "overloaded" if grew else "kept up",
    )
