"""A window of load from the table of a run's turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from inferload.measure.arrow import pa, pc
from inferload.measure.clock import NS_PER_S
from inferload.measure.exact import values_by_turn
from inferload.measure.search.seen import Bools, Floats, Samples, Window
from inferload.measure.search.wanted import FAILED, Condition

Ints = npt.NDArray[np.int64]


def window(
    turns: pa.Table,
    shifts_ns: Mapping[str, int],
    lasts_s: float,
    conditions: Sequence[Condition],
    dropped: int = 0,
) -> Window:
    """The measure phase. `shifts_ns`: for each worker, what to add to its instants so that they count from the window's start.

    A turn that failed, or was given up, kept no limit: it stands as an infinite value in every condition. So does each
    `dropped` session, as one turn, since more are not known; when they were dropped is not known either.
    """
    begun_s, closed_s = (_instants_s(turns, shifts_ns, name) for name in ("planned_ns", "closed_ns"))
    failure = pc.fill_null(turns["failure"], "")
    failed = np.asarray(pc.not_equal(failure, "").to_numpy(zero_copy_only=False), dtype=bool)
    given_up = np.asarray(pc.equal(failure, "unfinished").to_numpy(zero_copy_only=False), dtype=bool)
    inside = (begun_s >= 0) & (begun_s < lasts_s)
    good = (closed_s >= 0) & (closed_s < lasts_s) & ~failed
    samples = []
    dropped_s = (np.arange(dropped) + 0.5) * lasts_s / max(1, dropped)
    for condition in conditions:
        if condition.measure == FAILED:
            counts = np.where(failed[inside], np.inf, 0.0)
            samples.append(_with_lost(begun_s[inside], counts, dropped_s))
            continue
        values, rows = values_by_turn(turns, condition.measure)
        good &= _kept(condition, values, rows, len(good))
        counted = (inside & ~failed)[rows]
        values, rows = values[counted], rows[counted]
        lost_s = np.concatenate([begun_s[inside & failed], dropped_s])
        samples.append(_with_lost(begun_s[rows], values, lost_s))
    ended_s = np.where(given_up, np.inf, closed_s)
    # A turn by itself neither keeps nor breaks the limit of a mean.
    told = any(condition.share is not None for condition in conditions)
    return Window(lasts_s, tuple(samples), begun_s, ended_s, int(good.sum()) if told else None, ~failed)


def _with_lost(at_s: Floats, values: Floats, lost_s: Floats) -> Samples:
    """Values, and an infinite one at each instant at which something was lost."""
    return Samples(np.concatenate([at_s, lost_s]), np.concatenate([values, np.full(len(lost_s), np.inf)]))


def _kept(condition: Condition, values: Floats, rows: Ints, turns: int) -> Bools:
    """Which turns kept the limit by themselves: so large a share of their own values as the condition wants of all."""
    if condition.share is None:
        return np.ones(turns, dtype=bool)
    has = np.bincount(rows, minlength=turns)
    within = np.bincount(rows[values <= condition.limit], minlength=turns)
    kept: Bools = within >= condition.share * has
    return kept


def _instants_s(turns: pa.Table, shifts_ns: Mapping[str, int], name: str) -> Floats:
    workers = turns["worker"].to_pylist()
    shifts = np.array([shifts_ns[worker] for worker in workers], dtype=np.int64)
    found: Floats = (turns[name].to_numpy().astype(np.int64) + shifts) / NS_PER_S
    return found
