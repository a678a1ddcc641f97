"""Intervals of figures of one run: coverage, and gates that use them."""

from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import signal, stats
from summaries import results

from inferload.figures.limits.gate_grammar import parse
from inferload.figures.turn_values import SLICES
from inferload.results.documents.verdict_document import GatePolicy
from inferload.results.statistics.distributions import order_interval
from inferload.results.statistics.intervals import (
    Interval,
    mean_interval,
    quantile_interval,
    share_interval,
    share_of_counts,
)
from inferload.results.verdict.gates import evaluate

SIGMA = 0.6  # standard deviation of the logarithms


def run_of(dice: np.random.Generator, turns: int, memory: float) -> list[Any]:
    """Return slices of a run's times: lognormal, autocorrelated with a relaxation time of 1 / (1 - memory) turns."""
    noise = dice.standard_normal(turns)
    noise[0] /= np.sqrt(1 - memory**2)  # stationary from the first value
    logs = signal.lfilter([np.sqrt(1 - memory**2)], [1, -memory], noise)
    return np.array_split(np.exp(SIGMA * logs), SLICES)


def coverage(draws: int, turns: int, memory: float, q: float | None) -> float:
    """Return the share of intervals that contain the true value; an end that is None is unbounded."""
    dice = np.random.default_rng(7)
    truth = np.exp(SIGMA**2 / 2) if q is None else np.exp(SIGMA * stats.norm.ppf(q))
    covered = []
    for _ in range(draws):
        batches = run_of(dice, turns, memory)
        interval = mean_interval(batches) if q is None else quantile_interval(batches, q)
        assert interval is not None
        low, high = interval.low, interval.high
        covered.append((low is None or low <= truth) and (high is None or truth <= high))
    return float(np.mean(covered))


@pytest.mark.parametrize("q", [None, 0.5])
def test_intervals_cover_with_autocorrelated_turns(q: float | None) -> None:
    assert coverage(200, 2000, 0.9, q) > 0.90  # 3.2 standard errors of 200 draws below 0.95


def test_the_interval_of_a_share_covers_it_with_autocorrelated_turns() -> None:
    dice, limit, covered = np.random.default_rng(11), np.exp(SIGMA * stats.norm.ppf(0.9)), []
    for _ in range(200):
        met = [part < limit for part in run_of(dice, 2000, 0.9)]
        interval = share_of_counts(
            np.array([float(part.sum()) for part in met]), np.array([float(len(part)) for part in met])
        )
        covered.append(interval.low is None or interval.low <= 0.9 <= (interval.high or 1.0))
        assert interval.effective < 1000  # of 2,000 turns
    assert np.mean(covered) > 0.90
    whole = share_of_counts(np.ones(SLICES), np.ones(SLICES))
    assert (whole.high, whole.low) == (1.0, pytest.approx(0.98, abs=0.015))


@pytest.mark.soak
@pytest.mark.parametrize("q", [None, 0.5, 0.9, 0.95])
@pytest.mark.parametrize(("turns", "memory"), [(2000, 0.8), (2000, 0.95), (20_000, 0.98)])
def test_the_coverage_of_intervals_is_93_to_97_percent(turns: int, memory: float, q: float | None) -> None:
    share = coverage(1000, turns, memory, q)
    print(f"{turns} turns, memory {memory}, q {q}: {share:.3f}")
    assert 0.93 <= share <= 0.97


def test_no_interval_claims_more_samples_than_there_are() -> None:
    """Alternating values cancel in every batch: the spread between batches is then below that of independent values."""
    slices = [np.array([1.0, 3.0] * 5) for _ in range(SLICES)]
    mean = mean_interval(slices)
    assert mean is not None
    assert mean.low is not None
    assert mean.high is not None
    assert mean.effective == pytest.approx(10 * SLICES)
    assert mean.high - mean.low >= 2 * 1.96 / (10 * SLICES) ** 0.5
    uneven = [np.array([1.0, 3.0] * 5) if at % 40 else np.array([1.0, 3.0, 1.0] * 3) for at in range(SLICES)]
    median = quantile_interval(uneven, 0.5)
    assert median is not None
    assert median.effective == sum(map(len, uneven))


def test_autocorrelated_turns_have_a_smaller_effective_size() -> None:
    dice = np.random.default_rng(3)
    alone, together = (quantile_interval(run_of(dice, 2000, memory), 0.5) for memory in (0.0, 0.95))
    assert alone is not None
    assert together is not None
    assert together.effective < 300
    assert 1000 < alone.effective <= 2000


@pytest.mark.parametrize(("within", "count"), [(0, 30), (1, 30), (15, 30), (30, 30)])
def test_a_share_has_the_jeffreys_interval(within: int, count: int) -> None:
    low, high = stats.beta(within + 0.5, count - within + 0.5).interval(0.95)
    interval = share_interval(within / count, count, 10**9, (0.025, 0.025))
    assert interval == pytest.approx((low if within else 0.0, high if within < count else 1.0), rel=1e-6)


@pytest.mark.parametrize(("within", "count"), [(0, 30), (1, 30), (15, 30), (30, 30)])
def test_a_share_has_the_clopper_pearson_interval(within: int, count: int) -> None:
    exact = stats.binomtest(within, count).proportion_ci(0.95)
    interval = share_interval(within / count, count, 10**9, (0.025, 0.025), exact=True)
    assert interval == pytest.approx((exact.low, exact.high), rel=1e-6)


def test_a_share_with_fewer_degrees_of_freedom_has_a_wider_interval() -> None:
    narrow, wide = (share_interval(0.9, 200.0, freedom, (0.025, 0.025)) for freedom in (1000, 5))
    assert wide[0] < narrow[0] < 0.9 < narrow[1] < wide[1]
    assert share_interval(0.9, 200.0, 0, (0.025, 0.025)) == (0.0, 1.0)


@pytest.mark.parametrize("q", [None, 0.5])
def test_a_run_shorter_than_its_autocorrelation_has_no_interval(q: float | None) -> None:
    dice = np.random.default_rng(5)
    all_intervals = []
    for _ in range(30):
        slices = run_of(dice, 400, 0.97)  # twelve relaxation times
        interval = mean_interval(slices) if q is None else quantile_interval(slices, q)
        assert interval is not None
        all_intervals.append((interval.low, interval.high) == (None, None))
    assert np.mean(all_intervals) > 0.9


@given(
    st.lists(st.lists(st.floats(0, 1e6), max_size=3), min_size=SLICES, max_size=SLICES),
    st.sampled_from([0.05, 0.5, 0.9, 0.99]),
)
def test_an_interval_contains_its_figure(batches: list[list[float]], q: float) -> None:
    given_batches = [np.array(batch) for batch in batches]
    values = np.sort([value for batch in batches for value in batch])
    mean, quantile = mean_interval(given_batches), quantile_interval(given_batches, q)
    assert (mean is None) == (quantile is None) == (not len(values))
    if mean is not None and mean.low is not None and mean.high is not None:
        assert mean.low <= values.mean() * (1 + 1e-9)
        assert values.mean() <= mean.high * (1 + 1e-9)
    if quantile is not None:
        value = values[max(1, int(np.ceil(q * len(values)))) - 1]
        assert quantile.low is None or quantile.low <= value
        assert quantile.high is None or value <= quantile.high


SUMMARY: dict[str, Any] = {
    "latency": {"ttft_ms": {"count": 500, "mean": 100.0, "p99": 150.0}},
    "client": {},
    "turns": {"ok": 140},
    "window_s": 60.0,
}

SUMMARY_WITH_MAX = SUMMARY | {"latency": {"ttft_ms": SUMMARY["latency"]["ttft_ms"] | {"max": 400.0}}}


@pytest.mark.parametrize(
    ("gate", "low", "high", "answer"),
    [
        ("p99(ttft_ms) < 200", 130.0, 180.0, "pass"),
        ("p99(ttft_ms) < 160", 130.0, 180.0, "inconclusive"),
        ("p99(ttft_ms) < 140", 130.0, 180.0, "inconclusive"),
        ("p99(ttft_ms) < 120", 130.0, 180.0, "fail"),
        ("p99(ttft_ms) < 200", 130.0, None, "inconclusive"),
        ("p99(ttft_ms) < 120", 130.0, None, "fail"),
        ("p99(ttft_ms) > 120", 130.0, None, "pass"),
        ("mean(ttft_ms) > 90", None, 110.0, "inconclusive"),
        ("mean(ttft_ms) < 120", None, 110.0, "pass"),
        ("mean(ttft_ms) < 120", None, None, "inconclusive"),
    ],
)
def test_a_gate_is_decided_by_the_whole_interval(gate: str, low: float | None, high: float | None, answer: str) -> None:
    result = evaluate(parse(gate), results(SUMMARY), None, lambda name, q: Interval(low, high, 300))
    assert result.answer == answer
    assert result.passed == parse(gate).holds(result.value)  # the default policy decides by the value
    assert result.effective_n == 300


@pytest.mark.parametrize(("limit", "ground"), [(450.0, "distance"), (449.9, "interval")])
def test_a_distance_decides_from_its_factor_on(limit: float, ground: str) -> None:
    result = evaluate(
        parse(f"p99(ttft_ms) < {limit}"), results(SUMMARY_WITH_MAX), None, lambda name, q: Interval(1.0, None, 300)
    )
    assert result.ground == ground


@pytest.mark.parametrize(("policy", "passed"), [("warn", True), ("pass", True), ("fail", False)])
def test_the_policy_decides_an_inconclusive_gate(policy: GatePolicy, passed: bool) -> None:
    result = evaluate(
        parse("p99(ttft_ms) < 160"), results(SUMMARY), None, lambda name, q: Interval(130, 180, 300), policy
    )
    assert (result.answer, result.passed) == ("inconclusive", passed)


UNDECIDED = [
    (Interval(None, None, 30, 2.1), "140 turns, at least 300 needed: measure for 2 min 10 s or longer"),
    (Interval(90.0, None, 30, 30.0), "140 turns, at least 4,200 needed: measure for 30 min or longer"),
    (Interval(90.0, 170.0, 30), "the limit is within the interval: measure for longer to narrow it"),
]


@pytest.mark.parametrize(("interval", "note"), UNDECIDED)
def test_an_undecided_gate_says_what_is_missing(interval: Interval, note: str) -> None:
    result = evaluate(parse("p99(ttft_ms) < 160"), results(SUMMARY), None, lambda name, q: interval)
    assert (result.answer, result.note) == ("inconclusive", note)


@pytest.mark.parametrize("q", [None, 0.5, 0.99])
@pytest.mark.parametrize("turns", [15, 40, 190, 700])
def test_a_run_of_the_stated_length_has_an_interval(turns: int, q: float | None) -> None:
    rng = np.random.default_rng(turns)

    def interval(count: int) -> Interval:
        values, at = rng.exponential(100, count), rng.integers(0, SLICES, count)
        slices = [values[at == each] for each in range(SLICES)]
        found = mean_interval(slices) if q is None else quantile_interval(slices, q)
        assert found is not None
        return found

    short = interval(turns)
    assert (short.times > 1) == (short.low is None or short.high is None)
    longer = interval(int(turns * short.times * 3) + 1)
    assert None not in (longer.low, longer.high)


def test_counts_have_no_interval() -> None:
    summary = results(SUMMARY | {"rates": {"failed_ratio": 0.01}})
    result = evaluate(parse("failed_ratio < 0.02"), summary, None, lambda name, q: Interval(0, 1, 1))
    assert (result.answer, result.low, result.high, result.effective_n) == ("pass", None, None, None)


@given(st.integers(1, 400), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_percentile_ranks_have_95_percent_coverage(count: int, q: float) -> None:
    """Exact binomial sums: the error of each end is at most 2.5 %, that of the next rank inside is larger."""
    low, high = order_interval(count, q)
    below = np.cumsum([comb(count, k) * q**k * (1 - q) ** (count - k) for k in range(count + 1)])
    assert low is None or below[low - 1] <= 0.025 + 1e-9
    assert high is None or 1 - below[high - 1] <= 0.025 + 1e-9
    assert below[low or 0] > 0.025 - 1e-9
    assert high is not None or below[count - 1] < 0.975 + 1e-9


def test_one_sample_has_no_upper_end() -> None:
    assert order_interval(1, 0.99) == (1, None)
    assert order_interval(1000, 0.99) == (983, 997)
