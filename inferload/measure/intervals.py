"""How sure a figure of one run is: intervals of a percentile and of a mean, from batches of turns that follow each other.

Turns are not independent: those that wait in one queue wait together. So the spread is taken between batches of time, and
comes out as an effective number of samples, the number of independent ones that would scatter as much. A percentile's interval is
one of order statistics at that number: the ranks that a Wilson score interval of the share below it has (Wilson 1927; with an
effective n as Korn and Graubard 1998 have it for surveys). Pure maths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt

import numpy as np
import numpy.typing as npt

from inferload.measure.sketch import rank

Floats = npt.NDArray[np.float64]

BATCHES = 20
_FEWEST = 10  # batches with values in them; with fewer nobody can tell how they scatter
_BEYOND = 10  # effective samples that must lie beyond a percentile for that end of its interval to be known
_Z = 1.959964  # of the normal distribution, two-sided 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """95 % of a figure. None: that end is open. `effective`: independent samples that would scatter as much."""

    low: float | None
    high: float | None
    effective: float


def quantile_interval(batches: Sequence[Floats], q: float) -> Interval | None:
    """Of the q quantile; None where batches are too few, or both ends would be open. `batches`: values by time, in order."""
    full = [batch for batch in batches if len(batch)]
    if len(full) < _FEWEST or not 0 < q < 1:
        return None
    values = np.sort(np.concatenate(full))
    count = len(values)
    limit = values[rank(q, count) - 1]
    below = [float(np.count_nonzero(batch <= limit)) for batch in full]
    spread, t = _spread(below, [float(len(batch)) for batch in full])
    effective = min(float(count), q * (1 - q) / spread**2) if spread > 0 else float(count)
    low_q, high_q = _wilson(q, effective, t)
    low = float(values[max(1, floor(count * low_q)) - 1]) if effective * q >= _BEYOND else None
    high = float(values[min(count, ceil(count * high_q) + 1) - 1]) if effective * (1 - q) >= _BEYOND else None
    return None if low is None and high is None else Interval(low, high, effective)


def mean_interval(batches: Sequence[Floats]) -> Interval | None:
    """Of the mean; None where batches are too few."""
    full = [batch for batch in batches if len(batch)]
    if len(full) < _FEWEST:
        return None
    values = np.concatenate(full)
    mean, variance = float(values.mean()), float(values.var())
    spread, t = _spread([float(batch.sum()) for batch in full], [float(len(batch)) for batch in full])
    spread = max(spread, sqrt(variance / len(values)))
    effective = variance / spread**2 if spread > 0 else float(len(values))
    return Interval(mean - t * spread, mean + t * spread, effective)


def _spread(sums: Sequence[float], counts: Sequence[float]) -> tuple[float, float]:
    """Standard error of sum / count, and the t that goes with it: of the batches, or of pairs of them, whichever is wider.

    Batches that still hang together are too short to count as independent; pairs of them then scatter more.
    """
    single = np.asarray(sums), np.asarray(counts)
    even = len(sums) // 2 * 2
    paired = tuple(values[:even].reshape(-1, 2).sum(axis=1) for values in single)
    found = [(_ratio_error(*batches), student_t(len(batches[0]) - 1)) for batches in (single, paired)]
    return max(found, key=lambda pair: pair[0] * pair[1])


def _ratio_error(sums: Floats, counts: Floats) -> float:
    """Standard error of a ratio of sums over batches, by linearisation (Cochran, Sampling Techniques, 6.4)."""
    batches, total = len(sums), float(counts.sum())
    residuals = sums - float(sums.sum()) / total * counts
    return sqrt(batches / (batches - 1) * float((residuals**2).sum())) / total


def student_t(freedom: int) -> float:
    """The two-sided 0.95 point of Student's t, to 0.1 % from 4 degrees on (Cornish and Fisher's expansion)."""
    z = _Z
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _wilson(share: float, count: float, z: float) -> tuple[float, float]:
    """Wilson's score interval of a share."""
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return centre - half, centre + half
