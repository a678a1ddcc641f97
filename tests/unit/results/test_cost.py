"""Cost of output tokens and good turns from given prices."""

import argparse
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.base.errors import UsageError
from inferload.results import prices
from inferload.results.prices import Prices, per_million, prompt_price_share

money = st.floats(0.01, 1000)
rates = st.floats(1e-3, 1e6)
counts = st.integers(1, 10**9)
ratios = st.floats(0, 1)


@given(money, st.integers(1, 64), rates, st.floats(1, 1e5))
def test_the_cost_of_output_is_the_cost_of_the_gpu_time(hour: float, gpus: int, rate: float, window_s: float) -> None:
    each = per_million(Prices(hour, gpus), rate)
    assert each is not None
    assert each * rate * window_s / 1e6 == pytest.approx(hour * gpus * window_s / 3600)


@given(money, st.integers(1, 64), rates)
def test_twice_the_gpus_at_twice_the_rate_cost_the_same(hour: float, gpus: int, rate: float) -> None:
    assert per_million(Prices(hour, 2 * gpus), 2 * rate) == pytest.approx(per_million(Prices(hour, gpus), rate))


@given(counts, ratios, ratios)
def test_the_prompt_share_is_between_the_ratio_and_1(tokens: int, cached_part: float, ratio: float) -> None:
    cached = round(tokens * cached_part)
    share = prompt_price_share(Prices(cached_ratio=ratio), tokens, cached)
    assert share is not None
    assert min(ratio, 1) - 1e-9 <= share <= 1 + 1e-9
    assert prompt_price_share(Prices(cached_ratio=ratio), tokens, 0) == pytest.approx(1)
    assert prompt_price_share(Prices(cached_ratio=ratio), tokens, tokens) == pytest.approx(ratio)
    assert prompt_price_share(Prices(cached_ratio=1), tokens, cached) == pytest.approx(1)


def test_costs_of_an_example() -> None:
    # Two GPUs at 2.5 per hour cost 5 per hour; 1,000 tok/s are 3.6 million tokens per hour.
    assert per_million(Prices(2.5, 2), 1000) == pytest.approx(5 / 3.6)
    assert prompt_price_share(Prices(cached_ratio=0.1), 1000, 900) == pytest.approx(0.19)


@given(st.none() | rates)
def test_without_a_price_there_is_no_cost(rate: float | None) -> None:
    assert per_million(Prices(), rate) is None
    assert per_million(Prices(2.5), rate) is None
    assert per_million(Prices(2.5, 1), None) is None
    assert per_million(Prices(2.5, 1), 0) is None
    assert prompt_price_share(Prices(2.5, 1), 10, 1) is None
    assert prompt_price_share(Prices(cached_ratio=0.1), 10, None) is None


@given(st.builds(Prices, st.none() | money, st.none() | st.integers(1, 9), st.none() | ratios))
def test_prices_are_read_from_manifest_and_command_line(named: Prices) -> None:
    assert prices.from_document(prices.to_document(named), "x") == named
    parser = argparse.ArgumentParser()
    prices.add_options(parser)
    assert prices.from_options(parser.parse_args(prices.to_argv(named))) == named
    assert named.over(Prices(1.0, 1, 1.0)).over(Prices(2.0, 2, 0.0)) == named.over(Prices(1.0, 1, 1.0))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"gpu_hour": -1}, "x: gpu_hour: is -1, must be 0 or more"),
        ({"gpus": 0}, "x: gpus: is 0, must be 1 or more"),
        ({"gpus": 1.5}, "x: gpus: is 1.5, not a whole number"),
        ({"cached_ratio": 2}, "x: cached_ratio: is 2, must be 0 to 1"),
        ({"gpu_hour": "much"}, "x: gpu_hour: is 'much', not a number"),
        ({"gpu_hour": float("nan")}, "x: gpu_hour: is nan, must be 0 or more"),
        ({"price": 1}, "x: unknown key price; choose from gpu_hour, gpus, cached_ratio"),
    ],
)
def test_invalid_prices_are_refused(document: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        prices.from_document(document, "x")
    assert str(caught.value) == message
