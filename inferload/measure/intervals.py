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

from inferload.measure.relaxation import autocovariance, relaxation
from inferload.measure.sketch import rank

Floats = npt.NDArray[np.float64]

BATCHES = 20
SLICES = 200  # of equal time: fine enough to see how long turns hang together
_RELAXATIONS = 5  # a batch should last so many relaxation times
_FITTING = 16  # such batches; with fewer even a wider interval errs too often
_FEWEST = 10  # batches with values in them; with fewer nobody can tell how they scatter
_BEYOND = 10  # effective samples that must lie beyond a percentile for that end of its interval to be known
_Z = 1.959964  # of the normal distribution, two-sided 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """95 % of a figure. None: that end is open; both: the run is too short to tell. `effective`: independent samples that
    would scatter as much."""

    low: float | None
    high: float | None
    effective: float


def quantile_interval(slices: Sequence[Floats], q: float) -> Interval | None:
    """Of the q quantile; None where there are no values, both ends open where the run is too short to tell.

    `slices`: values in SLICES parts of equal time, in order; a part may be empty.
    """
    values = np.sort(np.concatenate([np.zeros(0), *slices]))
    count = len(values)
    if not count or not 0 < q < 1:
        return None
    limit = values[rank(q, count) - 1]
    below = np.array([np.count_nonzero(one <= limit) for one in slices], dtype=np.float64)
    error, t = _error(below, _counts(slices))
    effective = min(float(count), q * (1 - q) / error**2) if error > 0 else float(count)
    if t is None:
        return Interval(None, None, effective)
    low_q, high_q = _wilson(q, effective, t)
    low = float(values[max(1, floor(count * low_q)) - 1]) if effective * q >= _BEYOND else None
    high = float(values[min(count, ceil(count * high_q) + 1) - 1]) if effective * (1 - q) >= _BEYOND else None
    return Interval(low, high, effective)


def order_interval(count: int, q: float) -> tuple[int | None, int | None]:
    """Ranks of the order statistics that hold the q quantile with at least 95 %, of `count` independent samples.

    By the binomial distribution of the number of samples below the quantile (David and Nagaraja, Order Statistics, 7.1),
    2.5 % at each end. An end that no sample reaches is None.
    """
    from scipy.special import bdtr

    below = bdtr(np.arange(count + 1, dtype=np.float64), count, q)  # P(at most k samples lie below the quantile)
    low = int(np.searchsorted(below, 0.025, side="right"))
    high = int(np.searchsorted(below, 0.975, side="left")) + 1
    return low or None, high if high <= count else None


def mean_interval(slices: Sequence[Floats]) -> Interval | None:
    """Of the mean; None where there are no values, both ends open where the run is too short to tell. `slices`: as above."""
    values = np.concatenate([np.zeros(0), *slices])
    if not len(values):
        return None
    mean, variance = float(values.mean()), float(values.var())
    error, t = _error(np.array([float(one.sum()) for one in slices]), _counts(slices))
    error = max(error, sqrt(variance / len(values)))
    effective = variance / error**2 if error > 0 else float(len(values))
    return Interval(None, None, effective) if t is None else Interval(mean - t * error, mean + t * error, effective)


def _counts(slices: Sequence[Floats]) -> Floats:
    return np.array([len(one) for one in slices], dtype=np.float64)


def _error(sums: Floats, counts: Floats) -> tuple[float, float | None]:
    """Standard error of sum / count over slices, and the t that goes with it; None: the run is too short to tell.

    It is that of batches or of pairs of them, whichever makes the interval wider: batches that still hang together are too
    short to count as independent. Where batches last less than five relaxation times the autocovariances of the slices
    have a say too; where far less, nothing is to be trusted.
    """
    rests = sums - float(sums.sum()) / float(counts.sum()) * counts
    _, long_run = autocovariance([rests])
    alone = sqrt(len(rests) * long_run) / float(counts.sum())
    fitting = len(rests) / (_RELAXATIONS * relaxation([rests]))
    found = [(alone, student_t(max(4, int(fitting) - 1)))] if fitting < BATCHES else []
    for batches in (BATCHES, BATCHES // 2):
        parts = [(np.array([part.sum() for part in np.array_split(one, batches)])) for one in (sums, counts)]
        full = parts[1] > 0
        if np.count_nonzero(full) >= min(_FEWEST, batches):
            found.append((_ratio_error(parts[0][full], parts[1][full]), student_t(int(np.count_nonzero(full)) - 1)))
    error, t = max(found, key=lambda pair: pair[0] * pair[1], default=(alone, 0.0))
    enough = fitting >= _FITTING and np.count_nonzero(counts) >= BATCHES
    return error, t if enough else None


def _ratio_error(sums: Floats, counts: Floats) -> float:
    """Standard error of a ratio of sums over batches with values, by linearisation (Cochran, Sampling Techniques, 6.4)."""
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
