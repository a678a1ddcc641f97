"""Distributions against those of SciPy."""

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import special, stats

from inferload.results.statistics.distributions import (
    beta_quantile,
    binomial_cdf,
    noncentral_t_beyond,
    t_cdf,
    t_quantile,
)

parameters = st.floats(-1, 5).map(lambda power: 10.0**power)
probabilities = st.floats(-9, -0.01).map(lambda power: 10.0**power) | st.floats(0.01, 1 - 1e-6)
freedoms = st.integers(1, 10_000)
PRECISE = {"rel": 1e-10, "abs": 1e-300}


@given(parameters, parameters, probabilities)
@example(0.5, 0.5, 0.5)
@example(317.0, 0.15, 3e-9)  # the first step reaches far below the smallest probability
def test_beta_quantiles_have_their_probability(a: float, b: float, p: float) -> None:
    x = beta_quantile(a, b, p)
    assert x == pytest.approx(float(special.betaincinv(a, b, p)), **PRECISE)
    if x < 0.999:  # close to 1, a rounding of x is a larger change of the probability
        assert float(special.betainc(a, b, x)) == pytest.approx(p, rel=1e-9)


def test_a_quantile_below_the_smallest_number_is_zero() -> None:
    assert beta_quantile(1e-3, 5.0, 0.025) == 0.0
    assert beta_quantile(5.0, 1e-3, 0.975) == 1.0


@given(freedoms, probabilities)
@example(3, 0.5)
@example(3, 0.5 + 1e-12)
def test_quantiles_of_t_are_those_of_scipy(freedom: int, p: float) -> None:
    assert t_quantile(freedom, p) == pytest.approx(float(special.stdtrit(freedom, p)), rel=1e-10, abs=1e-14)


@given(freedoms, st.floats(-50, 50))
def test_the_t_distribution_is_that_of_scipy(freedom: int, t: float) -> None:
    assert t_cdf(freedom, t) == pytest.approx(float(special.stdtr(freedom, t)), **PRECISE)


@given(st.integers(1, 2000), st.floats(0, 1), st.floats(0.001, 0.999))
@example(371, 18.5 / 371, 0.875)  # 2.685015439846330e-290 by fractions: scipy is wrong in the fourth digit
def test_the_binomial_distribution_is_that_of_scipy(of: int, part: float, share: float) -> None:
    count = math.floor(part * of)
    expected = float(stats.binom.cdf(count, of, share))
    assert binomial_cdf(count, of, share) == pytest.approx(expected, rel=1e-10, abs=1e-250)


@given(st.integers(1, 1000), st.floats(0, 30), st.sampled_from([0.95, 0.975, 0.995]))
def test_the_noncentral_t_distribution_is_that_of_scipy(freedom: int, centre: float, p: float) -> None:
    limit = stats.t.ppf(p, freedom)
    beyond = stats.nct.sf(limit, freedom, centre) + stats.nct.cdf(-limit, freedom, centre)
    assume(np.isfinite(beyond))  # SciPy's is NaN far from the centre
    assert noncentral_t_beyond(freedom, centre, p) == pytest.approx(float(beyond), rel=1e-7)
