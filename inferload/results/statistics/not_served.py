"""Turns not served of two sides: Fisher's exact test over their planned turns, and over runs that did not serve their load.

The test treats turns as independent. Failures that come together (a server that answers nothing for some seconds) are fewer
independent events than turns, so that equal sides with such failures differ more often than the level states. Pure maths.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LEVEL = 0.01  # of turns: two-sided, as all tests of a comparison
LEAST_MORE = 3  # turns beyond the share of the baseline; fewer are no finding, however few were planned
LEVEL_OF_RUNS = 0.05  # one-sided: a run is a single event, of which a comparison has few


@dataclass(frozen=True, slots=True)
class NotServed:
    """Turns of a side that were not served, among its planned ones; all may be sums over runs.

    `failed`, `unfinished`, `dropped`: the parts of `count`, None if unknown; a dropped session counts as one turn.
    """

    count: int
    planned: int
    failed: int | None = None
    unfinished: int | None = None
    dropped: int | None = None


def of_counts(
    ok_and_sent: tuple[int, int], dropped: int | None, failed: int | None, unfinished: int | None
) -> NotServed:
    """Return the turns that failed, did not end, or were planned and not sent. Unknown `dropped` count as none."""
    ok, sent = ok_and_sent
    late = dropped or 0
    return NotServed(sent - ok + late, sent + late, failed, unfinished, dropped)


def total(parts: Iterable[int | None]) -> int | None:
    """Return the sum; None if a part is unknown."""
    known = [*parts]
    return None if None in known else sum(part for part in known if part is not None)


def p_more(baseline: NotServed, candidate: NotServed) -> float | None:
    """Two-sided p of Fisher's exact test; None without LEAST_MORE turns of the candidate beyond the baseline's share."""
    if not baseline.planned or not candidate.planned:
        return None
    beyond = candidate.count - candidate.planned * baseline.count / baseline.planned
    if beyond < LEAST_MORE:
        return None
    counts, chances = _chances(baseline.count, baseline.planned, candidate.count, candidate.planned)
    # Equal chances differ by rounding.
    return float(chances[chances <= (1 + 1e-7) * chances[counts == candidate.count]].sum())


def is_more(p: float | None) -> bool:
    """Return True if `p_more` says that more turns of the candidate were not served."""
    return p is not None and p < LEVEL


def more_runs(baseline: tuple[int, int], candidate: tuple[int, int]) -> bool:
    """Return True if more runs of the candidate did not serve their load: all, and none of the baseline, or by Fisher's test.

    Both sides: runs that did not serve their load, and all runs. The first condition decides where so few runs have no test.
    """
    (before, of_before), (after, of_after) = baseline, candidate
    if not of_before or not after:
        return False
    if after == of_after and not before:
        return True
    counts, chances = _chances(before, of_before, after, of_after)
    return bool(chances[counts >= after].sum() < LEVEL_OF_RUNS)


def _chances(
    before: int, of_before: int, after: int, of_after: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the counts that the second side can have, given the sum of both, and the hypergeometric chance of each."""
    total = before + after
    counts = np.arange(max(0, total - of_before), min(total, of_after) + 1)
    fewer, others = counts[:-1], total - counts[1:]
    steps = np.log((of_after - fewer) * (others + 1)) - np.log((fewer + 1) * (of_before - others))
    logs = np.concatenate([np.zeros(1), np.cumsum(steps)])
    weights = np.exp(logs - logs.max())
    return counts, weights / weights.sum()
