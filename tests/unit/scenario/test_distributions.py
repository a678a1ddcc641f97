"""Distributions: one random number per draw, bounds, and means."""

from random import Random
from statistics import fmean, quantiles
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from inferload.scenario.schema.distributions import Constant, Count, Distribution, draw_count

LAW = TypeAdapter(Distribution)
COUNT = TypeAdapter(Count)


def draws(law: object, n: int = 20_000) -> list[float]:
    rng, distribution = Random("draws"), LAW.validate_python(law)
    return [distribution.draw(rng) for _ in range(n)]


positive = st.floats(0.01, 1e4)
laws = st.one_of(
    positive,
    st.builds(lambda low, more: {"dist": "uniform", "min": low, "max": low + more}, positive, positive),
    st.builds(lambda mean, sd: {"dist": "normal", "mean": mean, "sd": sd}, positive, positive),
    st.builds(
        lambda p50, more: {"dist": "lognormal", "p50": p50, "p95": p50 * (1 + more)}, positive, st.floats(0.01, 9)
    ),
    st.builds(lambda mean: {"dist": "geometric", "mean": 1 + mean}, positive),
    st.builds(lambda mean: {"dist": "exponential", "mean": mean}, positive),
)


def test_lognormal_has_the_given_median_and_p95() -> None:
    percent = quantiles(draws({"dist": "lognormal", "p50": 300, "p95": 1500}), n=100)
    assert percent[49] == pytest.approx(300, rel=0.03)
    assert percent[94] == pytest.approx(1500, rel=0.05)


def test_distributions_have_the_given_mean() -> None:
    assert fmean(draws({"dist": "geometric", "mean": 4})) == pytest.approx(4, rel=0.03)
    assert fmean(draws({"dist": "exponential", "mean": 2.5})) == pytest.approx(2.5, rel=0.03)
    assert fmean(draws({"dist": "uniform", "min": 10, "max": 20})) == pytest.approx(15, rel=0.01)
    assert fmean(draws({"dist": "normal", "mean": 100, "sd": 10})) == pytest.approx(100, rel=0.01)


def test_geometric_is_integer_and_memoryless() -> None:
    values = draws({"dist": "geometric", "mean": 4})
    assert min(values) == 1
    assert all(value == int(value) for value in values)
    for k in (1, 2, 3):
        beyond = [value for value in values if value > k]
        assert len(beyond) / len([value for value in values if value >= k]) == pytest.approx(0.75, abs=0.02)


@given(laws, st.floats(0, 100), st.floats(0, 1e4), st.integers(0, 1000))
def test_draws_are_within_the_bounds(law: object, low: float, more: float, seed: int) -> None:
    if isinstance(law, dict) and law["dist"] in ("exponential", "geometric", "normal"):
        law = law | {"min": low, "max": low + more}
        assert low <= LAW.validate_python(law).draw(Random(seed)) <= low + more
    assert LAW.validate_python(law).draw(Random(seed)) >= 0


class Loaded(Random):
    """Random number generator that always returns `u`."""

    def __init__(self, u: float) -> None:
        super().__init__(0)
        self.u = u

    def random(self) -> float:
        return self.u


@given(laws, st.sampled_from([0, 1, 2**53 - 1]) | st.integers(0, 2**53 - 1), st.data())
def test_a_draw_is_a_quantile_between_the_bounds(law: Any, die: int, data: st.DataObject) -> None:
    if isinstance(law, dict) and law["dist"] not in ("uniform", "lognormal"):
        low, high = sorted([data.draw(st.floats(0, 100)), data.draw(st.floats(0, 100))])
        law = law | data.draw(st.sampled_from([{}, {"min": low}, {"max": high}, {"min": low, "max": high}]))
    u = die / 2**53  # random() returns multiples of 2**-53
    distribution = LAW.validate_python(law)
    if isinstance(distribution, Constant):
        assert distribution.draw(Loaded(u)) == distribution.value
    else:
        assert distribution.draw(Loaded(u)) == distribution.clamped(distribution.quantile(max(u, 2.0**-60)))


@given(laws, st.integers(0, 1000))
def test_every_draw_takes_one_random_number(law: object, seed: int) -> None:
    first, second = Random(seed), Random(seed)
    LAW.validate_python(law).draw(first)
    second.random()
    assert first.random() == second.random()


@given(laws)
def test_a_written_distribution_is_read_back_equal(law: object) -> None:
    distribution = LAW.validate_python(law)
    assert LAW.validate_python(LAW.dump_python(distribution, mode="json")) == distribution


def test_a_constant_is_written_as_a_number() -> None:
    assert LAW.dump_python(LAW.validate_python(4), mode="json") == 4
    assert LAW.dump_python(LAW.validate_python({"dist": "constant", "value": 0.5}), mode="json") == 0.5


@given(laws, st.integers(0, 1000))
def test_counts_are_integers_of_at_least_1(law: object, seed: int) -> None:
    assert draw_count(LAW.validate_python(law), Random(seed)) >= 1


@pytest.mark.parametrize(
    "law",
    [
        0,
        2.5,
        -1,
        True,
        "7",
        float("inf"),
        float("nan"),
        20_000_000,
        {"dist": "uniform", "min": 5, "max": 4},
        {"dist": "uniform", "min": 5},
        {"dist": "uniform", "min": 0, "max": 0.5},
        {"dist": "normal", "mean": 5, "sd": 0},
        {"dist": "lognormal", "p50": 5, "p95": 5},
        {"dist": "lognormal", "p50": 5, "p95": 9, "max": 4},
        {"dist": "lognormal", "p50": 5, "p95": 1e6},
        {"dist": "geometric", "mean": 0.9},
        {"dist": "exponential", "mean": 10, "min": 30, "max": 20},
        {"dist": "poisson", "mean": 3},
        {"mean": 3},
    ],
)
def test_invalid_counts_are_refused(law: object) -> None:
    with pytest.raises(ValidationError):
        COUNT.validate_python(law)


def test_a_long_tail_is_accepted_with_a_maximum() -> None:
    law = COUNT.validate_python({"dist": "lognormal", "p50": 5, "p95": 1e6, "max": 4096})
    assert max(draw_count(law, Random(seed)) for seed in range(500)) == 4096
