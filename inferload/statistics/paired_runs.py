"""Statistics of pairs: one run of a baseline and one of a candidate under the same schedule, repeated.

The unit is the pair, because turns of one run are correlated. The statistic of a pair is the log of the ratio candidate /
baseline of one figure (a mean, a quantile, a rate), so that a change is a factor. Pure maths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np

LEVEL = 0.95
POWER = 0.8
_ALPHA = 1 - LEVEL


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect on one figure. None: too few pairs (an interval needs two, a p-value three)."""

    pairs: int
    ratio: float  # geometric mean of candidate / baseline
    low: float | None = None  # interval of the ratio, by t on the logs
    high: float | None = None
    p: float | None = None  # paired t, two-sided
    p_sign_flip: float | None = None  # exact, without the assumption that log ratios are normal
    sd_log: float | None = None  # between pairs

    @property
    def detectable(self) -> float | None:
        """Smallest increase (0.1: 10 %) that this number of pairs detects with a power of 0.8; None: unknown."""
        return None if self.sd_log is None or self.p is None else detectable(self.sd_log, self.pairs)


def effect(baseline: Sequence[float], candidate: Sequence[float]) -> Effect:
    """Effect of a candidate on one positive figure. Values with the same index are a pair. ValueError for other input."""
    if len(baseline) != len(candidate) or not baseline:
        raise ValueError(f"{len(baseline)} and {len(candidate)} values are no pairs")
    if min(*baseline, *candidate) <= 0:
        raise ValueError("ratios need positive values")
    from scipy import stats  # takes half a second

    logs = np.log(np.asarray(candidate, float) / np.asarray(baseline, float))
    pairs, mean = len(logs), float(logs.mean())
    if pairs < 2:
        return Effect(pairs, exp(mean))
    sd = float(logs.std(ddof=1))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, pairs - 1)) * sd / sqrt(pairs)
    if pairs < 3:
        return Effect(pairs, exp(mean), exp(mean - half), exp(mean + half), sd_log=sd)
    return Effect(
        pairs=pairs,
        ratio=exp(mean),
        low=exp(mean - half),
        high=exp(mean + half),
        p=_paired_t(mean, sd, pairs),
        p_sign_flip=sign_flip(logs.tolist()),
        sd_log=sd,
    )


def p_against(result: Effect, ratio: float) -> float | None:
    """Two-sided p of the paired t-test that the true ratio is `ratio`; None: too few pairs."""
    if result.p is None or result.sd_log is None:
        return None
    return _paired_t(log(result.ratio) - log(ratio), result.sd_log, result.pairs)


def _paired_t(mean: float, sd: float, pairs: int) -> float:
    from scipy import stats

    if sd == 0:
        return 0.0 if mean else 1.0
    return float(2 * stats.t.sf(abs(mean) / (sd / sqrt(pairs)), pairs - 1))


def sign_flip(log_ratios: Sequence[float]) -> float:
    """Two-sided p of the sign-flip test on the mean.

    Exact for up to 13 pairs, sampled beyond. With n pairs p is at least 2 / 2^n: 0.0625 for 5, so 6 pairs are the fewest
    that can reject at 0.05.
    """
    from scipy import stats

    result = stats.permutation_test(
        (np.asarray(log_ratios, float),),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    return float(result.pvalue)


def power(change: float, sd_log: float, pairs: int) -> float:
    """Power of a paired t-test at level 1 - LEVEL for a true change (0.1: 10 % more), by the noncentral t distribution."""
    from scipy import stats

    if pairs < 2:
        return 0.0
    if sd_log == 0:
        return 1.0 if change else _ALPHA
    centre = abs(log(1 + change)) / (sd_log / sqrt(pairs))
    limit = float(stats.t.ppf(1 - _ALPHA / 2, pairs - 1))
    # Far from the centre scipy returns NaN for lack of precision: the tail is then 1 or 0.
    above = float(np.nan_to_num(stats.nct.sf(limit, pairs - 1, centre), nan=1.0))
    below = float(np.nan_to_num(stats.nct.cdf(-limit, pairs - 1, centre), nan=0.0))
    return min(1.0, above + below)


def detectable(sd_log: float, pairs: int) -> float | None:
    """Smallest increase (0.1: 10 %) that pairs with this sd detect with the power POWER; None: too few pairs."""
    if pairs < 2:
        return None
    if sd_log == 0:
        return 0.0
    from scipy import optimize

    most = 20 * sd_log  # log of the largest ratio: enough for two pairs
    if power(exp(most) - 1, sd_log, pairs) < POWER:
        return None
    size = optimize.brentq(lambda size: power(exp(size) - 1, sd_log, pairs) - POWER, 1e-9 * sd_log, most)
    return exp(size) - 1


def pairs_needed(change: float, sd_log: float) -> int | None:
    """Number of pairs that detect a change with the power POWER; None: more than 1,000."""
    return next((pairs for pairs in range(2, 1001) if power(change, sd_log, pairs) >= POWER), None)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p-values of several figures, to compare with the family-wise alpha."""
    adjusted: dict[str, float] = {}
    worst = 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda entry: entry[1])):
        worst = max(worst, min(1.0, p * (len(p_values) - rank)))
        adjusted[name] = worst
    return adjusted
