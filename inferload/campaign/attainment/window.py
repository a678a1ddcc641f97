"""Turns of one measure window: values of each condition with their instants, and the start and end of every turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from inferload.base.arrow import pa, pc
from inferload.base.clock import NS_PER_S
from inferload.campaign.attainment.slo import FAILED, Condition
from inferload.figures.turn_figures import BY_KEY
from inferload.figures.turn_values import coded, values_by_turn
from inferload.results.documents.figures_document import Growth
from inferload.results.statistics import overload
from inferload.turns.sketch import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Samples:
    """Values of one condition's measure; instants in seconds since the window began. inf: a turn that failed or was dropped."""

    at_s: Floats
    value: Floats


@dataclass(frozen=True, slots=True)
class Window:
    """One stretch of steady load. `samples`: one entry per condition, of turns planned inside the window.

    `begun_s`, `ended_s`: plan and end of all turns, warm-up and drain included, in seconds since the window began; inf if
    the end was not seen. `good`: turns that ended well inside the window and met every limit of a single turn, None if
    unknown. `ok`: turns that ended well; None: all that ended.
    """

    lasts_s: float
    samples: tuple[Samples, ...]
    begun_s: Floats
    ended_s: Floats
    good: int | None = None
    ok: Bools | None = None

    @property
    def turns(self) -> int:
        """Turns that were planned inside the window."""
        return int(np.sum((self.begun_s >= 0) & (self.begun_s < self.lasts_s)))

    @property
    def turns_per_s(self) -> float:
        """Turns that ended well inside the window, per second."""
        well = np.isfinite(self.ended_s) if self.ok is None else np.isfinite(self.ended_s) & self.ok
        return float(np.sum(well & (self.ended_s >= 0) & (self.ended_s < self.lasts_s))) / self.lasts_s

    def in_flight(self, slices: int) -> Floats:
        """Mean number of turns in flight in each of `slices` slices of equal time."""
        edges_s = np.linspace(0, self.lasts_s, slices + 1)
        turn_seconds = np.diff(_elapsed_s(self.begun_s, edges_s) - _elapsed_s(self.ended_s, edges_s))
        means: Floats = np.round(turn_seconds / (self.lasts_s / slices), 6)  # a constant number has no rounding noise
        return means

    @property
    def growth(self) -> Growth | None:
        """Growth of the number of turns in flight."""
        loaded_s = max(0.0, -float(np.min(self.begun_s, initial=0.0)))
        return overload.growth(self.begun_s, self.ended_s, self.lasts_s, loaded_s)


def _elapsed_s(instants_s: Floats, at_s: Floats) -> Floats:
    """Sum of the times since each earlier instant."""
    ordered = np.sort(instants_s[np.isfinite(instants_s)])
    earlier = np.searchsorted(ordered, at_s)
    summed: Floats = earlier * at_s - np.concatenate([[0.0], np.cumsum(ordered)])[earlier]
    return summed


def columns(conditions: Sequence[Condition]) -> list[str]:
    """Return the columns of the turns that `of_turns` needs."""
    of_measures = [BY_KEY[condition.measure].columns for condition in conditions if condition.measure != FAILED]
    return [*dict.fromkeys(("worker", "planned_ns", "closed_ns", "failure", *chain(*of_measures)))]


def of_turns(
    turns: pa.Table,
    shifts_ns: Mapping[str, int],
    lasts_s: float,
    conditions: Sequence[Condition],
    dropped: int = 0,
) -> Window:
    """Measure phase of a run. `shifts_ns`: per worker, offset that makes its instants count from the start of the window.

    A turn that failed or was not finished met no limit: its value is infinite in every condition that does not leave it out.
    The same holds for each `dropped` session, counted as one turn and spread evenly over the window, since its instant is not
    known.
    """
    begun_s, closed_s = (_instants_s(turns, shifts_ns, name) for name in ("planned_ns", "closed_ns"))
    failure = pc.fill_null(turns["failure"], "")
    unserved = np.asarray(pc.not_equal(failure, "").to_numpy(zero_copy_only=False), dtype=bool)
    given_up = np.asarray(pc.equal(failure, "unfinished").to_numpy(zero_copy_only=False), dtype=bool)
    inside = (begun_s >= 0) & (begun_s < lasts_s)
    good = (closed_s >= 0) & (closed_s < lasts_s) & ~unserved
    samples = []
    dropped_s = (np.arange(dropped) + 0.5) * lasts_s / max(1, dropped)
    for condition in conditions:
        if condition.measure == FAILED:
            counts = np.where(unserved[inside], np.inf, 0.0)
            samples.append(_with_lost(begun_s[inside], counts, dropped_s))
            continue
        values, rows = values_by_turn(turns, condition.measure)
        good &= _met(condition, values, rows, len(good))
        counted = (inside & ~unserved)[rows]
        values, rows = values[counted], rows[counted]
        lost_s = np.zeros(0) if condition.of_ended else np.concatenate([begun_s[inside & unserved], dropped_s])
        samples.append(_with_lost(begun_s[rows], values, lost_s))
    ended_s = np.where(given_up, np.inf, closed_s)
    by_turn = any(one.share is not None and one.measure != FAILED for one in conditions)  # a turn cannot meet a mean
    return Window(lasts_s, tuple(samples), begun_s, ended_s, int(good.sum()) if by_turn else None, ~unserved)


def _with_lost(at_s: Floats, values: Floats, lost_s: Floats) -> Samples:
    """Values, and an infinite value at each instant of a lost turn."""
    return Samples(np.concatenate([at_s, lost_s]), np.concatenate([values, np.full(len(lost_s), np.inf)]))


def _met(condition: Condition, values: Floats, rows: Ints, turns: int) -> Bools:
    """Turns that meet the limit by themselves: the condition's share of their own values is within it."""
    if condition.share is None:
        return np.ones(turns, dtype=bool)
    has = np.bincount(rows, minlength=turns)
    within = np.bincount(rows[values <= condition.limit], minlength=turns)
    met: Bools = within >= condition.share * has
    return met


def _instants_s(turns: pa.Table, shifts_ns: Mapping[str, int], name: str) -> Floats:
    workers: dict[str | None, int] = {}
    worker = coded(turns["worker"].combine_chunks(), workers)
    shifts = np.array([shifts_ns[str(of)] for of in workers], dtype=np.int64)
    instants_s: Floats = (turns[name].to_numpy().astype(np.int64) + shifts[worker]) / NS_PER_S
    return instants_s
