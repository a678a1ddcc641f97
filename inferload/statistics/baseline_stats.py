"""A candidate against earlier occasions of a baseline: how far does it lie from them, seen against how they scatter?

An occasion is a start of the server on some day, with one run or several of one schedule. Its figure's log is one sample,
so that what differs between days and restarts is in the spread. The candidate is one more occasion, however many runs it
has: if nothing changed, (x - mean) / (s sqrt(1 + 1/k)) is Student's t with k - 1 degrees of freedom. Pure maths.
"""

from collections.abc import Sequence
from math import exp, sqrt

import numpy as np

from inferload.statistics.paired_runs import LEVEL, Effect

# With fewer occasions the spread is a guess: at 8 its own 95 % interval is from two thirds to twice of it.
FEWEST = 8


def effect(earlier: Sequence[float], candidate: float, level: float = LEVEL) -> Effect:
    """The effect on one positive figure; `pairs` counts the occasions, `sd_log` is that of as many pairs that would see as much.

    ValueError: fewer than two occasions, or a figure that is not positive.
    """
    if len(earlier) < 2:
        raise ValueError(f"{len(earlier)} occasions have no spread")
    if min(*earlier, candidate) <= 0:
        raise ValueError("ratios need positive values")
    from scipy import stats  # half a second: only where a comparison is made

    logs = np.log(np.asarray(earlier, float))
    count, away = len(logs), float(np.log(candidate) - logs.mean())
    error = float(logs.std(ddof=1)) * sqrt(1 + 1 / count)
    half = float(stats.t.ppf(0.5 + level / 2, count - 1)) * error
    p = float(2 * stats.t.sf(abs(away) / error, count - 1)) if error else (0.0 if away else 1.0)
    return Effect(count, exp(away), exp(away - half), exp(away + half), p=p, sd_log=error * sqrt(count))
