"""Paired statistics on simulated runs with known effects: coverage, false alarms and power."""

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.signal import lfilter
from simulated_power import power_of_both

from inferload.results.statistics.paired_runs import (
    corrected,
    detectable,
    detectable_by_both,
    effect,
    holm,
    pairs_needed,
    power,
    sign_flip,
    sign_flip_interval,
)

positive = st.floats(1e-3, 1e6)


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=12))
def test_swapping_the_sides_inverts_the_effect(pairs: list[tuple[float, float]]) -> None:
    first, second = zip(*pairs, strict=True)
    there, back = effect(first, second), effect(second, first)
    assert there.ratio == pytest.approx(1 / back.ratio)
    if there.low is not None:
        assert back.high is not None
        assert there.low == pytest.approx(1 / back.high)
    assert (there.p is None) == (len(pairs) < 3)
    if there.p is not None:
        assert there.p == pytest.approx(back.p)
        assert there.p_sign_flip == pytest.approx(back.p_sign_flip)


def test_sign_flips_cannot_reject_with_five_pairs() -> None:
    assert sign_flip([0.5] * 5) == 0.0625
    assert sign_flip([0.5] * 6) == 0.03125
    assert sign_flip([0.1, -0.1, 0.2, -0.2]) == 1.0


def test_sampled_sign_flips_agree_with_exact_ones() -> None:
    logs = np.random.default_rng(3).normal(0.03, 0.06, 13).tolist()
    exact = sign_flip(logs)
    padded = sign_flip([*logs, 1e-15])  # with a pair without effect: sign flips are sampled
    assert padded == pytest.approx(exact, abs=0.01)


@given(st.lists(st.floats(-2, 2), min_size=6, max_size=9))
def test_at_most_five_percent_of_the_swaps_of_equal_sides_are_called(logs: list[float]) -> None:
    # Without a difference, which run of a pair is the candidate is arbitrary: all swaps are equally likely.
    swaps = [
        [log * sign for log, sign in zip(logs, signs, strict=True)] for signs in product((1, -1), repeat=len(logs))
    ]
    called = sum(sign_flip(swapped) < 0.05 for swapped in swaps)
    assert called <= 0.05 * len(swaps)


@given(st.lists(st.floats(-2, 2), min_size=6, max_size=10))
def test_the_interval_by_sign_flips_excludes_no_change_if_the_test_rejects(logs: list[float]) -> None:
    interval = sign_flip_interval(logs)
    assert interval is not None
    low, high = interval
    near = 1e-9
    if sign_flip(logs) < 0.05:
        assert low > -near or high < near
    else:
        assert low < near
        assert high > -near
    assert low <= np.mean(logs) + near
    assert high >= np.mean(logs) - near


@given(st.lists(st.tuples(positive, positive), min_size=3, max_size=9))
def test_a_confirmed_effect_has_the_larger_p_and_the_wider_interval(pairs: list[tuple[float, float]]) -> None:
    result = effect(*zip(*pairs, strict=True))
    both = result.confirmed()
    assert both.by_both == (len(pairs) >= 6)
    assert both.p is not None
    assert both.p >= (result.p or 0)
    assert both.ratio == result.ratio
    assert both.low is not None
    assert both.high is not None
    assert both.low <= (result.low or 0)
    assert both.high >= (result.high or 0)
    near = 1e-9
    if both.by_both and both.p < 0.05:
        assert both.low > 1 - near or both.high < 1 + near
    elif both.by_both:
        assert both.low < 1 + near
        assert both.high > 1 - near


@pytest.mark.parametrize("pairs", [6, 7, 8, 9])
def test_the_power_of_both_tests_is_that_of_simulated_pairs(pairs: int) -> None:
    sd = 0.04
    size = detectable_by_both(sd, pairs)
    by_t = detectable(sd, pairs)
    assert size is not None
    assert by_t is not None
    assert size > by_t
    mean = np.log(1 + size)
    assert power_of_both(mean / sd, pairs) == pytest.approx(0.8, abs=0.01)
    rng = np.random.default_rng(pairs)
    draws = [effect([1.0] * pairs, np.exp(rng.normal(mean, sd, pairs)).tolist()).confirmed().p for _ in range(400)]
    assert np.mean([p is not None and p < 0.05 for p in draws]) == pytest.approx(0.8, abs=0.07)


def test_invalid_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="are no pairs"):
        effect([1.0], [])
    for value in (0.0, -1.0):
        with pytest.raises(ValueError, match="positive"):
            effect([1.0], [value])
        with pytest.raises(ValueError, match="positive"):
            effect([value], [1.0])


def simulated(rng: np.random.Generator, pairs: int, change: float, jitter: float) -> tuple[list[float], list[float]]:
    """Return runs of two sides: means of autocorrelated turns, with a load common to each pair and restart jitter."""
    sides: tuple[list[float], list[float]] = [], []
    for _pair in range(pairs):
        shared = rng.normal(0, 0.25)  # effect of the pair's schedule, the same on both sides
        for side, factor in zip(sides, (1.0, 1.0 + change), strict=True):
            # Autocorrelation as in a queue: AR(1) noise with a coefficient of 0.9.
            noise = lfilter([np.sqrt(1 - 0.81)], [1, -0.9], rng.normal(size=250))[50:]
            restart = np.exp(rng.normal(0, jitter))
            side.append(float(np.mean(100 * factor * restart * np.exp(shared + 0.05 * noise))))
    return sides


def test_intervals_cover_and_false_alarms_are_rare() -> None:
    rng = np.random.default_rng(20)
    covered = alarms = 0
    for _draw in range(400):
        estimate = effect(*simulated(rng, 6, 0.10, 0.03))
        assert estimate.low is not None
        assert estimate.high is not None
        covered += estimate.low <= 1.10 <= estimate.high
        same = effect(*simulated(rng, 6, 0.0, 0.03))
        alarms += same.p is not None and same.p < 0.05
    # 95 % of 400 draws: three standard errors are 3.3 points.
    assert 0.917 <= covered / 400 <= 0.983
    assert alarms / 400 <= 0.083


@pytest.mark.parametrize(("pairs", "sd", "expected"), [(5, 0.043, 0.95), (8, 0.064, 0.95)])
def test_power_equals_simulated_power(pairs: int, sd: float, expected: float) -> None:
    assert power(0.10, sd, pairs) == pytest.approx(expected, abs=0.03)
    rng = np.random.default_rng(7)
    detected = 0
    for _draw in range(600):
        logs = rng.normal(np.log(1.10), sd, pairs)
        p = effect([1.0] * pairs, np.exp(logs).tolist()).p
        detected += p is not None and p < 0.05
    assert detected / 600 == pytest.approx(power(0.10, sd, pairs), abs=0.05)


@given(st.floats(0.005, 0.3), st.integers(3, 20))
def test_the_smallest_detectable_change_has_the_stated_power(sd: float, pairs: int) -> None:
    size = detectable(sd, pairs)
    assert size is not None
    assert power(size, sd, pairs) == pytest.approx(0.8, abs=1e-3)
    needed = pairs_needed(size * 1.001, sd)
    assert needed is not None
    assert needed <= pairs
    assert needed == 2 or power(size * 1.001, sd, needed - 1) < 0.8 <= power(size * 1.001, sd, needed)


@given(st.dictionaries(st.text(min_size=1), st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_only_raises_p_values(p_values: dict[str, float]) -> None:
    adjusted = holm(p_values)
    names = sorted(p_values, key=lambda name: p_values[name])
    assert [adjusted[name] for name in names] == sorted(adjusted.values())
    assert all(p_values[name] <= adjusted[name] <= 1 for name in names)
    least = min(p_values.values())
    assert min(adjusted.values()) == pytest.approx(min(1, least * len(p_values)))


@given(st.dictionaries(st.sampled_from("abcdefg"), st.floats(0, 1), min_size=1), st.sampled_from("abcdefg"))
def test_other_figures_are_tested_at_a_lower_level_unless_the_primary_one_differs(
    p_values: dict[str, float], primary: str
) -> None:
    """Also if the primary figure has no p-value."""
    found = corrected(p_values, primary)
    others = holm({name: p for name, p in p_values.items() if name != primary})
    level = 0.05 if p_values.get(primary, 1) < 0.05 else 0.01
    assert found.keys() == p_values.keys()
    assert found.get(primary) == p_values.get(primary)
    for name, p in others.items():
        assume(abs(p - level) > 1e-12)
        assert p <= found[name] <= 1
        assert (found[name] < 0.05) == (p < level)


def test_holm_of_an_example() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == {"a": 0.03, "c": 0.06, "b": 0.06}
