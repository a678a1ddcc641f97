"""Distribution functions and quantiles of the beta, binomial and Student's t distributions, for single values.

All three are the regularised incomplete beta function I_x(a, b) (NIST Digital Library of Mathematical Functions, 8.17; t and
binomial: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.5 and 26.7). Relative error: below 1e-10 up to parameters
of 1e5, mostly below 1e-12. They are written out because processes that generate load use them: SciPy's import takes longer than
all calls of a run, and its installation half of the space. Normal quantiles are those of `statistics.NormalDist`. Pure maths.
"""

from bisect import bisect_left, bisect_right
from functools import lru_cache, partial
from math import erfc, exp, lgamma, log, log1p, pi, sqrt

import numpy as np

TAIL = 0.025  # error at each end of a 95 % interval
_PRECISE = 1e-15  # relative change of a continued fraction at which it ends
_TINY = 1e-300  # in place of a zero denominator
_NODES = 2000  # of an integral
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)  # DLMF 5.11.1


def beta_quantile(a: float, b: float, p: float) -> float:
    """Return the quantile of the probability `p`, above 0 and below 1, of the beta distribution; `a`, `b`: above 0."""
    return _share(_logit_quantile(a, b, p))


def binomial_cdf(most: int, of: int, share: float) -> float:
    """Return the probability of at most `most` of `of` independent events that have the probability `share`."""
    return 1.0 if most >= of else _incomplete_beta(of - most, most + 1, 1 - share, share)


@lru_cache(maxsize=1024)  # measures of a run have equal counts
def order_interval(count: int, q: float) -> tuple[int | None, int | None]:
    """Ranks of the order statistics that contain the q quantile of `count` independent samples with at least 95 %.

    By the binomial distribution of the number of samples below the quantile (David and Nagaraja, Order Statistics, 7.1),
    2.5 % at each end. None: the end is beyond all samples.
    """
    at_most = partial(binomial_cdf, of=count, share=q)  # P(at most k samples lie below the quantile)
    low = bisect_right(range(count + 1), TAIL, key=at_most)
    high = bisect_left(range(count + 1), 1 - TAIL, key=at_most) + 1
    return low or None, high if high <= count else None


def t_cdf(freedom: float, t: float) -> float:
    """Return the probability of at most `t` under Student's t distribution with `freedom` degrees of freedom."""
    squared = t * t
    tail = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + squared), squared / (freedom + squared)) / 2
    return tail if t < 0 else 1 - tail


@lru_cache(maxsize=1024)
def t_quantile(freedom: float, p: float) -> float:
    """Return the quantile of the probability `p`, above 0 and below 1, of Student's t distribution."""
    if p == 0.5:
        return 0.0
    size = sqrt(freedom) * exp(-_logit_quantile(freedom / 2, 0.5, 2 * min(p, 1 - p)) / 2)
    return -size if p < 0.5 else size


def noncentral_t_beyond(freedom: int, centre: float, p: float) -> float:
    """Return the probability that a noncentral t variable is beyond the quantile of `p` of the central one, on either side.

    The variable is (normal + centre) / s, where freedom s^2 has the chi-squared distribution. The integral over log s is a sum at
    equal steps, which is precise for smooth functions that vanish at both ends.
    """
    limit = t_quantile(freedom, p)
    away = sqrt(40 / freedom)  # the density is below exp(-40) of its highest value further up
    logs = np.linspace(-away - 40 / freedom, away, _NODES)
    weights = np.exp(freedom * (logs - (np.exp(2 * logs) - 1) / 2))
    limits = (limit * np.exp(logs)).tolist()
    beyond = [(erfc((at - centre) / sqrt(2)) + erfc((at + centre) / sqrt(2))) / 2 for at in limits]
    return float(weights @ beyond / weights.sum())


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """Return I_x(a, b). `rest`: 1 - x, of full precision if `x` is close to 1."""
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, rest, x)
    return exp(_log_power_term(a, b, x, rest)) / a * _continued_fraction(a, b, x)


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of I_x(a, b) by Lentz's method (DLMF 8.17.22; Press et al., Numerical Recipes, 6.4)."""
    upper, lower = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    result, m, factor = lower, 0, 0.0
    while abs(factor - 1) > _PRECISE:
        m += 1
        result *= (factor := 1.0)
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            lower = 1 / _nonzero(1 + term * lower)
            upper = _nonzero(1 + term / upper)
            factor = lower * upper
            result *= factor
    return result


def _nonzero(value: float) -> float:
    return value or _TINY


def _log_power_term(a: float, b: float, x: float, rest: float) -> float:
    """Return log(x^a (1 - x)^b / B(a, b)) by the deviation from the mean: logarithms of large gamma functions would cancel.

    C. Loader, Fast and accurate computation of binomial probabilities (2000).
    """
    total = a + b
    mean, other = a / total, b / total
    away = x - mean if x < rest else other - rest
    deviation = a * _log_ratio(x, mean, away) + b * _log_ratio(rest, other, -away)
    gamma = _beyond_stirling(total) - _beyond_stirling(a) - _beyond_stirling(b)
    return log(a / total * b / (2 * pi)) / 2 + deviation + gamma


def _log_ratio(value: float, mean: float, away: float) -> float:
    """Return log(value / mean). `away`: value - mean."""
    return log1p(away / mean) if abs(away) < mean / 2 else log(value / mean)


def _beyond_stirling(value: float) -> float:
    """Return the logarithm of gamma(value + 1) less Stirling's formula."""
    if value < 10:
        return lgamma(value + 1) - (value + 0.5) * log(value) + value - log(2 * pi) / 2
    return sum(factor / value ** (2 * at + 1) for at, factor in enumerate(_STIRLING))


def _logit_quantile(a: float, b: float, p: float) -> float:
    """Return log(x / (1 - x)) of the quantile x of a beta distribution, by Newton's method on the logarithm of the probability.

    The density of the logit is log-concave, so that this logarithm is concave: after the first step all steps lead to the right.
    They are large if `p` is close to 1; the upper half is therefore the mirror image of the lower one.
    """
    if p > 0.5:
        return -_logit_quantile(b, a, 1 - p)
    logit = log(a / b)
    logit += _step(a, b, p, logit)
    while (step := _step(a, b, p, logit)) > 1e-14 * max(1.0, abs(logit)):
        logit += step
    return logit


def _step(a: float, b: float, p: float, logit: float) -> float:
    x, rest = _share(logit), _share(-logit)
    if x <= 0 or rest <= 0:  # beyond the smallest number
        return 0.0
    power = _log_power_term(a, b, x, rest)
    if x > (a + 1) / (a + b + 2):
        below = _incomplete_beta(a, b, x, rest)
        return log(p / below) * below / exp(power)
    factor = _continued_fraction(a, b, x) / a
    return (log(p) - power - log(factor)) * factor  # the probability itself may be below the smallest number


def _share(logit: float) -> float:
    """Return x for log(x / (1 - x))."""
    return 1 / (1 + exp(-logit)) if logit > -700 else 0.0
