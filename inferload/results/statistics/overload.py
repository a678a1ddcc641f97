"""Overload of an open loop: turns that arrive and do not end within the window, so that the number in flight grows.

Over a window, growth = turns planned - turns ended. At the start of a load the number in flight grows until the first turns end.
Growth is therefore measured from the instant at which the load has lasted as long as all but 1 % of the turns that ended in the
window.

The interval has one of two sources. If the number in flight grows, the server determines when turns end: the plan is known exactly,
and the standard error of the ends comes from ends per block of time (batch means, which include autocorrelation shorter than a
block). Otherwise turns end at the rate at which they arrive, and the growth is the difference of two numbers in flight, each with
the deviation of that number from its trend.

A time that is shorter than a few turns shows one generation of turns, and no rate of the server. It gives no decision. Pure maths.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np
from msgspec.structs import replace

from inferload.base.arrow import pc
from inferload.base.clock import NS_PER_S
from inferload.figures.turn_values import Read
from inferload.results.documents.figures_document import LEAST_SHARE, Growth, GrowthState
from inferload.results.statistics.distributions import t_quantile
from inferload.turns.record import Failure, PhaseWindow
from inferload.turns.sketch import Bools, Floats, Ints, rank

BLOCKS = 12
_LEAST_TURNS = 5.0
_LEAST_PART = 0.1  # of the window that must remain once the load has lasted long enough
_SETTLED = 0.99
TURN_TIMES = 3.0  # durations of a turn that a time must last for a decision
MATTERS = 0.15  # of the offered turns: with growth of this size in the interval, the server is not said to have kept up
_UNQUEUED = 4  # one in so many of the first turns does not wait, at up to four times the capacity
_SAMPLES = 120  # of the number in flight


def growth(planned_s: Floats, ended_s: Floats, lasts_s: float, loaded_s: float = 0.0) -> Growth | None:
    """Growth of the number of turns in flight over a window of constant load. Returns None if the window is empty.

    `planned_s`, `ended_s`: per turn, seconds since the window began; inf if the end was not seen. `loaded_s`: seconds
    for which the load had lasted when the window began.
    """
    if lasts_s <= 0:
        return None
    inside = (ended_s >= 0) & (ended_s < lasts_s)
    durations_s = ended_s[inside]
    durations_s -= planned_s[inside]  # in place, as below: of millions of turns
    durations_s.sort()
    result = _settled(planned_s, ended_s, lasts_s, loaded_s, durations_s)
    turn_s = _first_turns_s(planned_s, ended_s) if result.grew else _mean(durations_s)
    return result if result.lasts_s >= TURN_TIMES * turn_s else _short(result)


def _settled(planned_s: Floats, ended_s: Floats, lasts_s: float, loaded_s: float, durations_s: Floats) -> Growth:
    """Return the growth since the load has lasted as long as almost all turns; of the window, if there was none in it."""
    whole = _over(planned_s, ended_s, 0.0, lasts_s)
    if whole.state == "kept up":
        return whole
    # The longest turns would extend the start of the load to any length.
    longest_s = float(durations_s[rank(_SETTLED, len(durations_s)) - 1]) if len(durations_s) else float("inf")
    settled_s = longest_s - loaded_s
    if settled_s <= 0:
        return whole
    if settled_s > (1 - _LEAST_PART) * lasts_s:
        return _short(whole)
    later = _over(planned_s, ended_s, settled_s, lasts_s)
    return later if whole.grew or later.state == "kept up" else whole


def _short(result: Growth) -> Growth:
    """Return the growth of a time that is too short for a decision."""
    return replace(result, state="unsettled" if result.grew else "undecided")


def _first_turns_s(planned_s: Floats, ended_s: Floats) -> float:
    """Return the mean duration of the first quarter of the turns sent before any turn ended; infinite if none ended.

    Later turns of an overloaded server wait, and the longer, the longer the load lasts.
    """
    ended = np.isfinite(ended_s)
    first_s = np.sort(planned_s[planned_s <= ended_s.min(initial=np.inf)])
    early = ended & (planned_s <= first_s[len(first_s) // _UNQUEUED]) if len(first_s) else ended
    return _mean((ended_s - planned_s)[early]) if early.any() else float("inf")


def _mean(durations_s: Floats) -> float:
    return float(durations_s.mean()) if len(durations_s) else 0.0


@dataclass(frozen=True, slots=True)
class Ends:
    """Plan and end of each turn on one clock, in 18 bytes per turn. `given_up`: turns whose end was not seen."""

    planned_ns: Ints
    closed_ns: Ints
    given_up: Bools
    failed: Bools

    @classmethod
    def of(cls, read: Read, shifts_ns: Mapping[str, int]) -> "Ends":
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
    failed_s = closed_s[turns.failed]
    closed_s[turns.given_up] = np.inf
    result = growth(planned_s, closed_s, lasts_s, loaded_s)
    if result is None:
        return None
    failed = np.count_nonzero((failed_s >= lasts_s - result.lasts_s) & (failed_s < lasts_s))
    return replace(result, step=window.step, failed_per_s=failed / result.lasts_s)


def _over(planned_s: Floats, ended_s: Floats, start_s: float, end_s: float) -> Growth:
    """Growth from `start_s` to `end_s`, without regard to the start of the load."""
    lasts_s = end_s - start_s
    offered = int(np.count_nonzero((planned_s >= start_s) & (planned_s < end_s)))
    ends, _ = np.histogram(ended_s, bins=BLOCKS, range=(start_s, end_s))
    more = offered - int(ends.sum())
    half = t_quantile(BLOCKS - 1, 0.975) * sqrt(BLOCKS) * float(ends.std(ddof=1))
    state: GrowthState = "overloaded"
    if more < _LEAST_TURNS or more <= max(LEAST_SHARE * offered, half):
        half = _difference_of_numbers(planned_s, ended_s, start_s, end_s)
        state = "kept up" if more + half < max(_LEAST_TURNS, MATTERS * offered) else "undecided"
    counts = (offered, float(ends.sum()), more, more - half, more + half)
    offered_per_s, ended_per_s, growth_per_s, low_per_s, high_per_s = (count / lasts_s for count in counts)
    return Growth(lasts_s, offered_per_s, ended_per_s, growth_per_s, low_per_s, high_per_s, state)


def _difference_of_numbers(planned_s: Floats, ended_s: Floats, start_s: float, end_s: float) -> float:
    """Return half of the 95 % interval of the difference of two numbers in flight that deviate from a trend."""
    at_s = np.linspace(start_s, end_s, _SAMPLES)
    in_flight = _before(at_s, planned_s) - _before(at_s, ended_s)
    trend = np.polyval(np.polyfit(at_s, in_flight, 1), at_s)
    return 1.96 * sqrt(2) * float((in_flight - trend).std(ddof=2))


def _before(at_s: Floats, instants_s: Floats) -> Ints:
    """Return the number of instants before each of a few sorted times."""
    after = np.bincount(np.searchsorted(at_s, instants_s, side="right"), minlength=len(at_s))
    return np.cumsum(after)[: len(at_s)]
