"""Confidence intervals of a percentile, a mean and a share in one run, from batches of consecutive turns.

Turns that wait in one queue are not independent. The spread is therefore taken between batches of time and expressed as an
effective number of samples: the number of independent samples with the same spread. A percentile's interval has the ranks of
the interval of the share below it, at the effective number. Pure maths.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, sqrt
from statistics import NormalDist

import numpy as np

from inferload.results.statistics.distributions import TAIL, beta_quantile, t_quantile
from inferload.turns.sketch import Floats, rank

BATCHES = 20
_RELAXATIONS = 5  # relaxation times that a batch should last
_FITTING = 16  # such batches; with fewer, intervals do not have their stated coverage
_FEWEST = 10  # batches with values; with fewer, their spread is unknown
_BEYOND = 10  # effective samples beyond a percentile that the end of its interval needs


@dataclass(frozen=True, slots=True)
class Interval:
    """95 % interval. None: the end is open; both: the run is too short. `effective`: effective number of samples.

    `times`: how many times as long the run must be for two ends, estimated from this run; 1 if it has both.
    """

    low: float | None
    high: float | None
    effective: float
    times: float = 1.0

    def widened(self, error: float) -> "Interval":
        """Return the interval if its ends are known up to a relative error."""
        low = None if self.low is None else self.low - error * abs(self.low)
        high = None if self.high is None else self.high + error * abs(self.high)
        return replace(self, low=low, high=high)


def quantile_interval(slices: Sequence[Floats], q: float) -> Interval | None:
    """Interval of the q quantile. None without values; both ends are open if the run is too short.

    `slices`: values in SLICES parts of equal time, in order; a part may be empty.
    """
    values = np.concatenate([np.zeros(0), *slices])
    count = len(values)
    if not count or not 0 < q < 1:
        return None

    def value_at(at: int) -> float:
        values.partition(at - 1)  # faster than to sort all for a few ranks
        return float(values[at - 1])

    limit = value_at(rank(q, count))
    below = np.array([np.count_nonzero(part <= limit) for part in slices], dtype=np.float64)
    return quantile_of_counts(below, _counts(slices), q, value_at)


def quantile_of_counts(below: Floats, counts: Floats, q: float, value_at: Callable[[int], float]) -> Interval:
    """Return `quantile_interval` from numbers of values. `below`: up to the q quantile, per slice. `value_at`: by rank from 1."""
    count = int(counts.sum())
    error, freedom, times = _error(below, counts)
    effective = min(float(count), q * (1 - q) / error**2) if error > 0 else float(count)
    times = max(times, _BEYOND / (effective * min(q, 1 - q)))
    if freedom is None:
        return Interval(None, None, effective, times)
    low_q, high_q = share_interval(q, effective, freedom, (TAIL, TAIL))
    low = value_at(max(1, floor(count * low_q))) if effective * q >= _BEYOND else None
    high = value_at(min(count, ceil(count * high_q) + 1)) if effective * (1 - q) >= _BEYOND else None
    return Interval(low, high, effective, times)


def share_of_counts(part: Floats, counts: Floats) -> Interval:
    """Interval of a share. `part`, `counts`: its numerator and denominator in slices, which are not all 0; ends as above."""
    count, share = float(counts.sum()), float(part.sum()) / float(counts.sum())
    error, freedom, times = _error(part, counts)
    effective = min(count, share * (1 - share) / error**2) if error > 0 else count
    if freedom is None:
        return Interval(None, None, effective, times)
    return Interval(*share_interval(share, effective, freedom, (TAIL, TAIL)), effective)


def mean_interval(slices: Sequence[Floats]) -> Interval | None:
    """Interval of the mean; None and open ends as in `quantile_interval`. `slices`: as there."""
    values = np.concatenate([np.zeros(0), *slices])
    if not len(values):
        return None
    sums = np.array([float(part.sum()) for part in slices])
    return mean_of_sums(sums, _counts(slices), float(values.mean()), float(values.var()))


def mean_of_sums(sums: Floats, counts: Floats, mean: float, variance: float) -> Interval:
    """Return `mean_interval` from the sum of each slice, and mean and variance of all values."""
    count = float(counts.sum())
    error, freedom, times = _error(sums, counts)
    error = max(error, sqrt(variance / count))
    effective = variance / error**2 if error > 0 else count
    if not freedom:
        return Interval(None, None, effective, times)
    half = t_quantile(freedom, 1 - TAIL) * error
    return Interval(mean - half, mean + half, effective)


def share_interval(
    share: float, effective: float, freedom: int, tails: tuple[float, float], exact: bool = False
) -> tuple[float, float]:
    """Interval of a share of `effective` independent values, corrected for `freedom` (Korn and Graubard 1998).

    `freedom`: degrees of freedom of the variance that `effective` comes from. `tails`: error below and above. The interval
    is that of Jeffreys, which covers the share as often as stated on average, or with `exact` that of Clopper and Pearson,
    which covers every share at least as often.
    """
    if freedom < 1 or not effective > 0 or min(tails) <= 0:
        return 0.0, 1.0
    below, above = (effective * (NormalDist().inv_cdf(tail) / t_quantile(freedom, tail)) ** 2 for tail in tails)
    inner, outer = (0.0, 1.0) if exact else (0.5, 0.5)
    low = beta_quantile(share * below + inner, (1 - share) * below + outer, tails[0]) if share > 0 else 0.0
    high = beta_quantile(share * above + outer, (1 - share) * above + inner, 1 - tails[1]) if share < 1 else 1.0
    return low, high


def _counts(slices: Sequence[Floats]) -> Floats:
    return np.array([len(part) for part in slices], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Spread:
    """Standard error of a ratio of sums with its degrees of freedom. `fitting`: number of independent batches."""

    error: float
    freedom: int
    fitting: float


def spread(sums: Floats, counts: Floats) -> Spread:
    """Standard error of sum / count over consecutive slices.

    The error is that of batches or of pairs of batches, the one with the wider interval: correlated batches are too short
    to count as independent. If batches last less than five relaxation times, the error by the autocovariances of the slices
    is a third candidate.
    """
    rests = sums - float(sums.sum()) / float(counts.sum()) * counts
    _, long_run = autocovariance([rests])
    alone = sqrt(len(rests) * long_run) / float(counts.sum())
    fitting = fitting_batches([rests])
    errors = [(alone, max(4, int(fitting) - 1))] if fitting < BATCHES else []
    for batches in (BATCHES, BATCHES // 2):
        parts = [(np.array([part.sum() for part in np.array_split(values, batches)])) for values in (sums, counts)]
        full = parts[1] > 0
        if np.count_nonzero(full) >= min(_FEWEST, batches):
            errors.append((_ratio_error(parts[0][full], parts[1][full]), int(np.count_nonzero(full)) - 1))
    error, freedom = max(errors, key=lambda pair: pair[0] * t_quantile(pair[1], 1 - TAIL), default=(alone, 0))
    return Spread(error, freedom, fitting)


def fitting_batches(series: Sequence[Floats]) -> float:
    """Number of independent batches in series of equal slices."""
    return sum(len(values) for values in series) / (_RELAXATIONS * relaxation(series))


def _error(sums: Floats, counts: Floats) -> tuple[float, int | None, float]:
    """Standard error and degrees of freedom of sum / count, and how many times as long the run must be for an interval.

    Freedom is None if the run is too short.
    """
    result = spread(sums, counts)
    times = max(1.0, _FITTING / result.fitting, BATCHES / np.count_nonzero(counts))
    return result.error, result.freedom if times == 1.0 else None, times


def _ratio_error(sums: Floats, counts: Floats) -> float:
    """Standard error of a ratio of sums over batches with values, by linearisation (Cochran, Sampling Techniques, 6.4)."""
    batches, total = len(sums), float(counts.sum())
    residuals = sums - float(sums.sum()) / total * counts
    return sqrt(batches / (batches - 1) * float((residuals**2).sum())) / total


def relaxation(series: Sequence[Floats]) -> float:
    """Relaxation time of series of one quantity, in steps: half of the integrated autocorrelation time."""
    variance, long_run = autocovariance(series)
    return max(0.5, long_run / variance / 2) if variance > 0 else 0.5


def autocovariance(series: Sequence[Floats]) -> tuple[float, float]:
    """Return (variance, long-run variance) per step of series with a common mean, by Geyer's initial monotone sequence.

    C. J. Geyer, Practical Markov chain Monte Carlo, Statistical Science 7 (1992).
    """
    together = np.concatenate(series)
    mean = float(together.mean())
    count = len(together)
    most = min(len(values) for values in series)
    gamma = np.zeros(most)
    for values in series:
        gamma += _products(values - mean)[:most]
    gamma /= count
    pairs = gamma[: most - most % 2].reshape(-1, 2).sum(axis=1)
    stop = np.argmax(pairs <= 0) if bool((pairs <= 0).any()) else len(pairs)
    monotone = np.minimum.accumulate(pairs[:stop])
    return float(gamma[0]), max(float(gamma[0]) * 1e-12, float(2 * monotone.sum() - gamma[0]))


def _products(centred: Floats) -> Floats:
    """Sums of products at each lag, by the Fourier transform."""
    size = 1 << (2 * len(centred) - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    sums: Floats = np.fft.irfft(spectrum * np.conj(spectrum), size)[: len(centred)]
    return sums
