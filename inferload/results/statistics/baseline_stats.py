"""Comparison of a candidate with earlier occasions of a baseline, by their spread.

An occasion is a start of the server on a day, with one or several runs of one schedule. The log of its figure is one sample,
so that the spread includes differences between days and restarts. The candidate is one occasion, with any number of runs: if
nothing changed, (x - mean) / (s sqrt(1 + 1/k)) has Student's t distribution with k - 1 degrees of freedom. Pure maths.
"""

from collections.abc import Sequence
from math import exp, sqrt

import numpy as np

from inferload.results.statistics.distributions import t_cdf, t_quantile
from inferload.results.statistics.paired_runs import LEVEL, Effect, is_varying, p_of_equal

# With fewer occasions the spread is too uncertain: with 8, its 95 % interval is from two thirds to twice its value.
FEWEST = 8


def effect(earlier: Sequence[float], candidate: float) -> Effect:
    """Effect on one positive figure. `pairs`: occasions. `sd_log`: of as many pairs with the same error.

    ValueError: fewer than two occasions, or a figure that is not positive.
    """
    if len(earlier) < 2:
        raise ValueError(f"{len(earlier)} occasions: at least 2 are needed for a spread")
    if min(*earlier, candidate) <= 0:
        raise ValueError("ratios need positive values")
    logs = np.log(np.asarray(earlier, float))
    count, away = len(logs), float(np.log(candidate) - logs.mean())
    error = float(logs.std(ddof=1)) * sqrt(1 + 1 / count)
    half = t_quantile(count - 1, 0.5 + LEVEL / 2) * error
    varies = is_varying(logs)
    p = 2 * t_cdf(count - 1, -abs(away) / error) if varies else p_of_equal(exp(away))
    return Effect(count, exp(away), exp(away - half), exp(away + half), p=p, sd_log=error * sqrt(count), varies=varies)
