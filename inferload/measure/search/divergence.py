"""Whether the turns in flight grow: above its capacity a server has no attainment, only a time until it breaks.

The slope of the turns in flight is the mean of their increments over blocks of equal length. Of a server that keeps up
increments cancel out; of one that does not they are independent around the part of the arrivals that is left behind. So a
t test of the increments is right where it matters and too careful elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

BLOCKS = 8
LEAST_SHARE = 0.02  # of the arrivals that must be left behind: less is not worth an early end
_LEAST_TURNS = 10.0  # and so many more in flight at the end than at the beginning


@dataclass(frozen=True, slots=True)
class Growth:
    """Turns in flight: their slope, its standard error, and the one-sided p of no growth."""

    per_s: float
    error_per_s: float
    share: float | None  # of the turns that arrive; None: none did
    p: float
    diverged: bool


def growth(in_flight: npt.NDArray[np.float64], lasts_s: float, turns_per_s: float, alpha: float) -> Growth:
    """From turns in flight at equal steps over a window, both ends included. `turns_per_s`: how fast turns arrive."""
    edges = in_flight[np.linspace(0, len(in_flight) - 1, BLOCKS + 1).round().astype(np.int64)]
    steps = np.diff(edges) / (lasts_s / BLOCKS)
    per_s, error = float(steps.mean()), float(steps.std(ddof=1)) / sqrt(BLOCKS)
    p = _p(per_s, error)
    share = per_s / turns_per_s if turns_per_s > 0 else None
    more = float(edges[-1] - edges[0])
    enough = more >= _LEAST_TURNS and more >= edges[0] / 2 and share is not None and share >= LEAST_SHARE
    return Growth(per_s, error, share, p, enough and p < alpha)


def _p(mean: float, error: float) -> float:
    if error == 0:
        return 0.0 if mean > 0 else 1.0
    from scipy import stats  # half a second: only where a search is made

    return float(stats.t.sf(mean / error, BLOCKS - 1))
