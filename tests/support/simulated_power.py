"""Power of the paired t-test and the sign-flip test together, by a fixed simulation."""

from itertools import product

import numpy as np
from scipy import stats

DRAWS = 4_000


def power_of_both(mean: float, pairs: int) -> float:
    """Return the share of samples of normal logs with this mean, in standard deviations, that both tests reject at 0.05."""
    logs = np.random.default_rng(0).standard_normal((DRAWS, pairs)) + mean
    totals = np.abs(logs.sum(axis=1))
    by_t = stats.ttest_1samp(logs, 0, axis=1).pvalue < 0.05
    flipped = np.abs(logs[by_t] @ np.array(list(product((1.0, -1.0), repeat=pairs))).T)
    return float(np.count_nonzero(np.mean(flipped >= totals[by_t, None] - 1e-9, axis=1) < 0.05)) / DRAWS
