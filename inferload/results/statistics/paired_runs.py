"""Statistics of pairs: one run of a baseline and one of a candidate under the same schedule, repeated.

The unit is the pair, because turns of one run are correlated. The statistic of a pair is the log of the ratio candidate /
baseline of one figure (a mean, a quantile, a rate), so that a change is a factor. Pure maths.

Two tests: a paired t-test, which assumes that the logs are normal, and the sign-flip test. If nothing differs between the sides,
the log of a pair is as likely to be x as -x, so that the sign-flip test rejects at most as often as its level states, for any
distribution of the logs (Fisher, The Design of Experiments, 1935, 21; Lehmann and Romano, Testing Statistical Hypotheses, 15.2).
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inferload.results.statistics.distributions import noncentral_t_beyond, t_cdf, t_quantile

ALPHA = 0.05
LEVEL = 1 - ALPHA
POWER = 0.8
FEWEST_FLIPS = 6  # pairs; with fewer the sign-flip test cannot reject at 0.05
OTHERS_ALONE = 0.01  # level of the other figures together if the primary one does not differ
MATTERS = 0.01  # change of pairs that do not vary: from this size on it is a difference
_ROUNDING = 1e-6  # range of log ratios that the rounding of figures explains
_EXACT = 13  # most pairs of which all sign flips are counted
_SAMPLED = 10_000  # sign flips of more pairs
# Mean of normal logs, in standard deviations, that both tests together detect with the power POWER, by pairs: a simulation, which
# the tests repeat. With more pairs the power differs from that of the t-test by 2 % at most.
_DETECTABLE_SDS = {6: 1.7855249322559, 7: 1.3503563713823, 8: 1.1993894086875, 9: 1.0953116279037}
_STEPS = 2**36  # of the search for a change


class MeanDifference(NamedTuple):
    """Mean of differences with its 95 % interval by t; ends are None with a single difference."""

    mean: float
    low: float | None
    high: float | None

    @property
    def separated(self) -> bool:
        """True if the interval does not contain 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def mean_difference(differences: Sequence[float]) -> MeanDifference | None:
    """Return the mean of differences of pairs; None without any."""
    count, centre = len(differences), float(np.mean(differences)) if differences else 0.0
    if count < 2:
        return MeanDifference(centre, None, None) if count else None
    half = t_quantile(count - 1, 0.5 + LEVEL / 2) * float(np.std(differences, ddof=1)) / sqrt(count)
    return MeanDifference(centre, centre - half, centre + half)


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect on one figure. None: too few pairs (an interval needs two, a p-value three)."""

    pairs: int
    ratio: float  # geometric mean of candidate / baseline
    low: float | None = None  # interval of the ratio, by t on the logs
    high: float | None = None
    p: float | None = None  # paired t, two-sided
    p_sign_flip: float | None = None  # exact, without the assumption that log ratios are normal
    flip_low: float | None = None  # interval of the ratio by sign flips; None with fewer pairs than FEWEST_FLIPS
    flip_high: float | None = None
    sd_log: float | None = None  # between pairs
    by_both: bool = False  # `p` and interval are those of both tests
    # False: all pairs have one ratio. `p` is then 0 or 1, by the size of the change, and is not printed
    varies: bool = True

    @property
    def detectable(self) -> float | None:
        """Smallest increase (0.1: 10 %) that this number of pairs detects with a power of 0.8; None: unknown."""
        if self.sd_log is None or self.p is None:
            return None
        return (detectable_by_both if self.by_both else detectable)(self.sd_log, self.pairs)

    def shown(self) -> "Effect":
        """Return the effect as it is printed: without p and interval if nothing varies, because no test applies."""
        if self.varies:
            return self
        return Effect(self.pairs, self.ratio, sd_log=self.sd_log, varies=False)

    @property
    def is_same(self) -> bool:
        """True for a change of MATTERS or more that is the same in every pair."""
        return not self.varies and p_of_equal(self.ratio) == 0.0

    def confirmed(self) -> "Effect":
        """Return the effect with the larger p of both tests and the interval that contains both, if sign flips can reject."""
        if self.p is None or self.p_sign_flip is None or self.flip_low is None or self.flip_high is None:
            return self
        low = self.flip_low if self.low is None else min(self.low, self.flip_low)
        high = self.flip_high if self.high is None else max(self.high, self.flip_high)
        return replace(self, p=max(self.p, self.p_sign_flip), low=low, high=high, by_both=True)


def effect(baseline: Sequence[float], candidate: Sequence[float]) -> Effect:
    """Effect of a candidate on one positive figure. Values with the same index are a pair. ValueError for other input."""
    if len(baseline) != len(candidate) or not baseline:
        raise ValueError(f"{len(baseline)} and {len(candidate)} values are no pairs")
    if min(*baseline, *candidate) <= 0:
        raise ValueError("ratios need positive values")
    logs = np.log(np.asarray(candidate, float) / np.asarray(baseline, float))
    pairs, mean = len(logs), float(logs.mean())
    if pairs < 2:
        return Effect(pairs, exp(mean))
    sd = float(logs.std(ddof=1))
    half = t_quantile(pairs - 1, 0.5 + LEVEL / 2) * sd / sqrt(pairs)
    if pairs < 3:
        return Effect(pairs, exp(mean), exp(mean - half), exp(mean + half), sd_log=sd)
    flips, varies = sign_flip_interval(logs.tolist()), is_varying(logs)
    return Effect(
        pairs=pairs,
        ratio=exp(mean),
        low=exp(mean - half),
        high=exp(mean + half),
        p=2 * t_cdf(pairs - 1, -abs(mean) / (sd / sqrt(pairs))) if varies else p_of_equal(exp(mean)),
        p_sign_flip=sign_flip(logs.tolist()),
        flip_low=None if flips is None else exp(flips[0]),
        flip_high=None if flips is None else exp(flips[1]),
        sd_log=sd,
        varies=varies,
    )


def is_varying(logs: npt.NDArray[np.float64]) -> bool:
    """Return True if logarithms differ by more than the rounding of figures."""
    return float(np.ptp(logs)) > _ROUNDING


def p_of_equal(ratio: float) -> float:
    """Return p of values that do not vary, for the corrections: 0 for a change of MATTERS or more, else 1."""
    return 0.0 if abs(ratio - 1) >= MATTERS - _ROUNDING else 1.0


def sign_flip(log_ratios: Sequence[float]) -> float:
    """Two-sided p of the sign-flip test on the mean.

    Exact for up to 13 pairs, sampled beyond. With n pairs p is at least 2 / 2^n: 0.0625 for 5, so 6 pairs are the fewest
    that can reject at 0.05.
    """
    logs = np.asarray(log_ratios, float)
    total = float(logs.sum())
    flipped = total - 2 * (_subsets(len(logs)) @ logs)
    return float(np.mean(np.abs(flipped) >= abs(total) - 1e-12 * np.abs(logs).sum()))


def sign_flip_interval(log_ratios: Sequence[float]) -> tuple[float, float] | None:
    """Interval of the mean that the sign-flip test does not reject at 0.05; None with fewer pairs than FEWEST_FLIPS.

    The flips of a subset reach the mean of all if the mean of the subset is beyond the tested value: the ends are order
    statistics of the means of all subsets (Hartigan, Using subsample values as typical values, 1969).
    """
    count = len(log_ratios)
    if count < FEWEST_FLIPS:
        return None
    subsets = _subsets(count)[1:]  # the first one is empty
    means = np.sort(subsets @ np.asarray(log_ratios, float) / subsets.sum(axis=1))
    rank = int(np.ceil(ALPHA / 2 * (len(means) + 1))) - 1
    return float(means[rank - 1]), float(means[-rank])


@lru_cache(maxsize=4)
def _subsets(count: int) -> npt.NDArray[np.float64]:
    """Return all subsets of `count` pairs, a row of 0 and 1 each, the empty one first; a sample of them if there are many."""
    if count <= _EXACT:
        return (np.arange(2**count)[:, None] >> np.arange(count) & 1).astype(float)
    drawn = np.random.default_rng(0).integers(0, 2, (_SAMPLED, count)).astype(float)
    drawn[0] = 0.0
    drawn[1:][drawn[1:].sum(axis=1) == 0] = 1.0
    return drawn


def power(change: float, sd_log: float, pairs: int) -> float:
    """Power of a paired t-test at level ALPHA for a true change (0.1: 10 % more)."""
    if pairs < 2:
        return 0.0
    if sd_log == 0:
        return 1.0 if change else ALPHA
    return noncentral_t_beyond(pairs - 1, abs(log(1 + change)) / (sd_log / sqrt(pairs)), 1 - ALPHA / 2)


def detectable(sd_log: float, pairs: int) -> float | None:
    """Smallest increase (0.1: 10 %) that pairs with this sd detect with the power POWER; None: too few pairs."""
    if pairs < 2:
        return None
    if sd_log == 0:
        return 0.0
    most = 20 * sd_log  # log of the largest ratio: enough for two pairs
    steps = range(1, _STEPS + 1)
    found = bisect_left(steps, POWER, key=lambda step: power(exp(most * step / _STEPS) - 1, sd_log, pairs))
    return exp(most * steps[found] / _STEPS) - 1 if found < _STEPS else None


def detectable_by_both(sd_log: float, pairs: int) -> float | None:
    """Return `detectable` if the sign-flip test has to reject as well, where it can."""
    sds = _DETECTABLE_SDS.get(pairs)
    return detectable(sd_log, pairs) if sds is None else exp(sds * sd_log) - 1


@lru_cache(1000)  # several tables of one comparison ask for it
def pairs_needed(change: float, sd_log: float) -> int | None:
    """Number of pairs that detect a change with the power POWER; None: more than 1,000."""
    counts = range(2, 1001)  # power grows with the pairs
    found = bisect_left(counts, POWER, key=lambda pairs: power(change, sd_log, pairs))
    return counts[found] if found < len(counts) else None


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p-values of several figures, to compare with the family-wise alpha."""
    adjusted: dict[str, float] = {}
    worst = 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda entry: entry[1])):
        worst = max(worst, min(1.0, p * (len(p_values) - rank)))
        adjusted[name] = worst
    return adjusted


def corrected(p_values: Mapping[str, float], primary: str) -> dict[str, float]:
    """Return p-values of several figures to compare with ALPHA: that of the primary figure as it is, others by Holm.

    The others are tested together at ALPHA if the primary figure differs, else at OTHERS_ALONE. If no figure differs, the
    probability of any false alarm is at most the sum of both levels, and half of these are improvements.
    """
    others = holm({name: p for name, p in p_values.items() if name != primary})
    alone = p_values.get(primary, 1.0) >= ALPHA
    adjusted = {name: min(1.0, p * ALPHA / OTHERS_ALONE) if alone else p for name, p in others.items()}
    return adjusted | {name: p for name, p in p_values.items() if name == primary}
