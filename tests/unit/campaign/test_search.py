"""Mathematics of a search: attainment with its interval, the bracket, the next load, and the result."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import exp, inf, log
from statistics import NormalDist

import numpy as np
import pytest
import search_queue
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import optimize, signal, stats
from searches import look_of

from inferload.campaign.attainment import attainment, bracket, slo
from inferload.campaign.attainment.answer import answer, document, sentence
from inferload.campaign.attainment.bracket import Settings
from inferload.campaign.attainment.point import Bounds, Look, judge
from inferload.campaign.attainment.slo import SloError
from inferload.campaign.attainment.text import line
from inferload.campaign.attainment.window import Samples, Window
from inferload.results.documents.search_document import ConditionResult, Point, State, Why
from inferload.results.documents.typed_documents import document_of
from inferload.results.statistics.intervals import share_interval

P95 = slo.parse("p95(ttft_ms) < 100")


def test_an_slo_is_parsed_into_conditions() -> None:
    ttft, tpot, failed = slo.parse("p95(ttft_ms)<800 and mean(tpot_ms) <= 50 AND failed_ratio < 0.01")
    assert (ttft.measure, ttft.limit, ttft.share, ttft.label) == ("ttft_ms", 800, 0.95, "p95(ttft_ms)")
    assert (tpot.measure, tpot.share) == ("tpot_ms", None)
    assert failed.share == pytest.approx(0.99)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("mean(ttft_ms) < 100", 0.99),
        ("p95(itl_ms) < 50", 0.95),
        ("p50(itl_ms) < 20 and p99(itl_ms) < 50", 0.99),
        ("p95(itl_ms) < 50 and failed_ratio < 0.2", 0.8),
        ("p95(ttft_ms) < 100", None),  # a failed turn is a value above the limit
    ],
)
def test_an_slo_that_leaves_failed_turns_out_limits_them(text: str, share: float | None) -> None:
    failed = [condition.share for condition in slo.parse(text) if condition.measure == slo.FAILED]
    assert failed == ([] if share is None else [pytest.approx(share)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p95(tfft_ms) < 800", "did you mean ttft_ms?"),
        ("p95(ttft_ms) > 800", "upper limit"),
        ("p95(ttft_ms) < 0", "greater than 0"),
        ("p95(ttft_ms) < nan", "number is missing"),
        ("max(ttft_ms) < 800", "use p99"),
        ("goodput_turns_per_s < 3", "only failed_ratio"),
        ("p99(client_delay_ms) < 3", "not known turn by turn"),
        ("failed_ratio < 1", "below 1"),
        ("preemptions < 3", "only failed_ratio"),
        ("mean(requests_waiting) < 3", "not known turn by turn"),
        ("p95(ttft_ms){agent} < 800", "remove {agent}"),
        ("failed_ratio{agent} < 0.1", "remove {agent}"),
        ("  ", "is empty"),
    ],
)
def test_an_invalid_slo_is_refused(text: str, message: str) -> None:
    with pytest.raises(SloError, match=message.replace("?", r"\?")):
        slo.parse(text)


def at_margin(level: float, margin: float, verdict: State = "undecided") -> Point:
    held = ConditionResult(
        condition=P95[0].text,
        label=P95[0].label,
        limit=P95[0].limit,
        share=0.95,
        value=0.95 + margin,
        verdict="undecided",
        values=100,
        effective=100.0,
    )
    return Point(level=level, verdict=verdict, looks=1, measured_s=60.0, spent_s=65.0, turns=100, conditions=(held,))


def test_an_outlier_does_not_move_the_bracket_past_other_loads() -> None:
    margins = {8.0: 2.0, 10.0: -0.1, 12.0: 0.6, 14.0: -1.0, 16.0: -2.0}
    points = [at_margin(level, margin) for level, margin in margins.items()]
    assert bracket.bracket(points) == bracket.Bounds(12.0, 14.0)  # 10 and 12 are pooled


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12))
def test_the_bracket_is_that_of_the_isotonic_regression_of_scipy(margins: list[float]) -> None:
    fit = optimize.isotonic_regression(margins, increasing=False).x
    assume(np.abs(fit).min() > 1e-9)
    levels = np.arange(1.0, len(margins) + 1)
    found = bracket.bracket([at_margin(level, margin) for level, margin in zip(levels, margins, strict=True)])
    assert found == Bounds(max(levels[fit > 0], default=None), min(levels[fit < 0], default=None))


def test_a_load_above_an_overloaded_one_does_not_count() -> None:
    points = [at_margin(8.0, 1.0), at_margin(12.0, -1.0, "overloaded"), at_margin(14.0, 0.5)]
    assert bracket.bracket(points) == bracket.Bounds(8.0, 12.0)


def correlated(seed: int, lasts_s: float, per_s: float = 20.0, tau_s: float = 2.0, breached: float = 0.05) -> Window:
    """Return a window of turns with autocorrelation time `tau_s`; the expected share above the limit is `breached`."""
    rng = np.random.default_rng(seed)
    keep = exp(-1 / (per_s * tau_s))
    noise = rng.standard_normal(int(lasts_s * per_s)) * (1 - keep**2) ** 0.5
    state = signal.lfilter([1.0], [1.0, -keep], noise, zi=[keep * rng.standard_normal()])[0]
    at_s = np.arange(len(state)) / per_s
    value = 100 * np.exp(state - NormalDist().inv_cdf(1 - breached))
    return Window(lasts_s, (Samples(at_s, value),), at_s, at_s + 1 + np.maximum(0, state))


def test_attainment_intervals_cover_with_autocorrelated_turns() -> None:
    """5 % one-sided on each side: about 54 of 60 windows cover; intervals for independent turns cover about half."""
    covered = naive = 0
    for seed in range(60):
        window = correlated(seed, 200.0)
        held = attainment.judge(P95[0], 0, [window], 0.05)
        covered += held.low <= 0.95 <= held.high
        low, high = share_interval(held.value, held.values, 10**6, (0.05, 0.05), exact=True)
        naive += low <= 0.95 <= high
    assert covered >= 49
    assert naive <= 40


def test_several_windows_narrow_the_interval() -> None:
    single = attainment.judge(P95[0], 0, [correlated(1, 200.0)], 0.01)
    four = attainment.judge(P95[0], 0, [correlated(seed, 200.0) for seed in range(4)], 0.01)
    assert four.high - four.low < 0.75 * (single.high - single.low)


def test_a_window_shorter_than_the_relaxation_time_is_undecided() -> None:
    held = attainment.judge(P95[0], 0, [correlated(3, 8.0, tau_s=20.0, breached=0.5)], 0.01)
    assert held.verdict == "undecided"


def test_failed_turns_miss_a_percentile_of_turns() -> None:
    at_s = np.arange(0, 100, 0.05)
    failed = np.arange(len(at_s)) % 4 == 0
    window = Window(100.0, (Samples(at_s, np.where(failed, np.inf, 10.0)),), at_s, at_s + 0.1, ok=~failed)
    assert attainment.judge(P95[0], 0, [window], 0.01).verdict == "breaks"


def turns_with_gaps(text: str, fails: Callable[[np.ndarray], np.ndarray]) -> Point:
    """Judge 4,000 turns, two at each instant: one with 20 gaps of 10 ms, or none if it failed."""
    at_s = np.arange(4000) // 2 * 0.2
    failed = fails(np.arange(4000))
    gaps_s = np.repeat(at_s[~failed], 20)
    samples = (Samples(gaps_s, np.full(len(gaps_s), 10.0)), Samples(at_s, np.where(failed, np.inf, 0.0)))
    look = Look(10.0, (Window(400.0, samples, at_s, at_s + 0.1, ok=~failed),), 405.0)
    return judge(slo.parse(text), [look], 0.02, closed_loop=True)


@pytest.mark.parametrize("text", ["mean(itl_ms) < 100", "p95(itl_ms) < 100", "p50(itl_ms) < 100"])
@pytest.mark.parametrize(
    ("fails", "share", "state"),
    [
        (lambda index: index % 4 != 0, 0.75, "breaks"),
        (lambda index: index >= 0, 1.0, "breaks"),
        (lambda index: index % 1000 == 0, 0.001, "holds"),
        (lambda index: index < 0, 0.0, "holds"),
    ],
)
def test_a_condition_of_gaps_counts_each_failed_turn_once(
    text: str, fails: Callable[[np.ndarray], np.ndarray], share: float, state: str
) -> None:
    point = turns_with_gaps(text, fails)
    gaps, failed = point.conditions
    assert (failed.figure, point.verdict) == (pytest.approx(share), state)
    assert gaps.figure == (None if share == 1 else pytest.approx(10.0))
    assert point.margin is not None
    assert (point.margin > 0) == (state == "holds")


@pytest.mark.parametrize(
    ("text", "state"),
    [("p90(itl_ms) < 100", "holds"), ("p95(itl_ms) < 100", "undecided"), ("p99(itl_ms) < 100", "breaks")],
)
def test_as_many_turns_may_fail_as_gaps_may_be_late(text: str, state: str) -> None:
    assert turns_with_gaps(text, lambda index: index % 20 == 0).verdict == state


@given(
    st.lists(st.floats(0, 1e4), min_size=2, max_size=60),
    st.sampled_from([1, 3, 10]),
    st.sampled_from(["mean(ttft_ms) < 100", "p95(ttft_ms) < 100"]),
)
@example([1.192092896e-07] * 2, 10, "mean(ttft_ms) < 100")  # equal values: their deviation is a rounding error
@example([2048.03995989537] * 2, 10, "mean(ttft_ms) < 100")
def test_the_effective_sample_size_is_at_most_the_sample_size(values: list[float], again: int, text: str) -> None:
    """Also for alternating values, which cancel out in every bin."""
    value = np.array(values * again)
    at_s = np.linspace(0, 60, len(value), endpoint=False)
    window = Window(60.0, (Samples(at_s, value),), at_s, at_s + 1.0)
    held = attainment.judge(slo.parse(text)[0], 0, [window], 0.01)
    assert 0 <= held.effective <= held.values * (1 + 1e-9)
    if "mean" in text and held.figure_high is not None and np.isfinite(held.figure_high):
        alone = float(np.std(value)) / len(value) ** 0.5
        # Sums are compared: a difference of near values would be rounded to a multiple of their last binary digit.
        assert held.figure_high >= held.value + stats.t.isf(0.01, 1000) * alone * (1 - 1e-9)


def test_alternating_values_count_as_independent() -> None:
    at_s = np.arange(0, 400, 0.5)
    value = np.where(np.arange(len(at_s)) % 2, 90.0, 110.0)
    window = Window(400.0, (Samples(at_s, value),), at_s, at_s + 0.1)
    held = attainment.judge(slo.parse("mean(ttft_ms) < 100.5")[0], 0, [window], 0.01)
    assert held.effective == pytest.approx(len(value))
    assert held.verdict == "undecided"  # a mean of 100 with a standard error of 0.35


@pytest.mark.parametrize(("load", "state"), [(30.0, "overloaded"), (10.0, "holds")])
def test_a_load_above_the_capacity_is_overloaded(load: float, state: str) -> None:
    settings = search_queue.settings(10.0, 3600.0, 300.0)
    look = search_queue.measure(settings, 1)(load, 0)
    (point,) = bracket.points_of(settings, [look])
    assert point.verdict == state
    closed = Settings(P95, 10.0, 3600.0, 300.0, 5.0, whole=True)
    (users,) = bracket.points_of(closed, [look])
    assert users.verdict != "overloaded"  # turns in flight are at most the users


def test_failed_turns_are_no_throughput() -> None:
    at_s = np.arange(0, 100, 0.1)
    ok = np.arange(len(at_s)) % 4 != 0
    ended_s = np.where(ok, at_s + 2, at_s + 0.01)  # rejected immediately
    window = Window(100.0, (), at_s, ended_s, ok=ok)
    assert window.turns_per_s == pytest.approx(7.5, rel=0.03)
    nothing = Window(100.0, (), at_s, ended_s, ok=np.zeros(len(at_s), dtype=bool))
    assert nothing.turns_per_s == 0


@pytest.mark.parametrize(("looks", "runs"), [(None, 4), (3, 3)])
def test_the_error_is_divided_among_the_runs_of_the_budget(looks: int | None, runs: int) -> None:
    settings = Settings(P95, 10.0, 200.0, 40.0, 10.0, looks=looks)
    window = correlated(1, 200.0)
    (point,) = bracket.points_of(settings, [Look(1.0, (window,), 50.0)])
    (held,) = point.conditions
    alone = attainment.judge(P95[0], 0, [window], settings.alpha / runs)
    assert (held.low, held.high) == (alone.low, alone.high)


def test_no_more_runs_than_planned_are_made() -> None:
    settings = Settings(P95, 20.0, 325.0, 60.0, 5.0)
    fast = queue(30.0, 1, settings)
    looks, ended = search(settings, lambda level, number: replace(fast(level, number), spent_s=1.0))
    assert (len(looks), ended) == (5, "budget")


def search(
    settings: Settings, look: Callable[[float, int], Look], before: Sequence[Look] = ()
) -> tuple[list[Look], Why]:
    """Search for the highest load of one SLO."""
    runs, (ended,) = bracket.search([settings], lambda *at: [look(*at)], [[each] for each in before])
    return [run[0] for run in runs], ended


def queue(capacity: float, seed: int, settings: Settings) -> Callable[[float, int], Look]:
    """Simulate a server with independent turns: attainment falls with the load and is 95 % at `capacity`."""

    def look(level: float, number: int) -> Look:
        rng = np.random.default_rng([seed, number])
        count = rng.poisson(level * settings.window_s)
        at_s = np.sort(rng.uniform(0, settings.window_s, count))
        margin = -10 * log(level / capacity)
        share = 1 / (1 + exp(-margin - log(0.95 / 0.05)))
        value = np.where(rng.random(count) < share, 50.0, 200.0)
        return Look(level, (Window(settings.window_s, (Samples(at_s, value),), at_s, at_s + 0.2),), settings.look_s)

    return look


@pytest.mark.parametrize("guess", [2.0, 30.0, 900.0])
def test_a_search_finds_a_known_crossing_within_its_budget(guess: float) -> None:
    settings = Settings(P95, guess, 2400.0, 60.0, 5.0)
    looks, ended = search(settings, queue(30.0, 1, settings))
    points = bracket.points_of(settings, looks)
    result = answer(settings, points, ended, "sessions/s")
    assert result.holds is not None
    assert result.breaks is not None
    assert result.holds <= 30.0 <= result.breaks <= 30.0 * 1.5
    assert result.holds >= 30.0 / 1.5
    assert sum(look.spent_s for look in looks) <= 2400.0


def test_a_resumed_search_equals_an_uninterrupted_one() -> None:
    settings = Settings(P95, 10.0, 1500.0, 60.0, 5.0)
    uninterrupted, _ = search(settings, queue(30.0, 4, settings))
    resumed, _ = search(settings, queue(30.0, 4, settings), uninterrupted[:4])
    assert [look.level for look in resumed] == [look.level for look in uninterrupted]


def test_a_failed_point_is_retried() -> None:
    settings = Settings(P95, 20.0, 2000.0, 60.0, 5.0)
    sound = queue(30.0, 2, settings)

    def look(level: float, number: int) -> Look:
        return Look(level, (), 5.0, cause="no server") if number == 1 else sound(level, number)

    looks, ended = search(settings, look)
    assert looks[2].level == looks[1].level
    result = answer(settings, bracket.points_of(settings, looks), ended, "sessions/s")
    assert (result.holds or 0.0) <= 30.0 <= (result.breaks or 0.0)


def test_an_invalid_client_measurement_is_no_server_limit() -> None:
    settings = Settings(P95, 10.0, 4000.0, 60.0, 5.0)
    sound = queue(1000.0, 2, settings)

    def look(level: float, number: int) -> Look:
        return Look(level, (), 65.0, invalid=True, cause="cpu") if level > 50 else sound(level, number)

    looks, ended = search(settings, look)
    points = bracket.points_of(settings, looks)
    result = answer(settings, points, ended, "sessions/s")
    assert ended == "client"
    assert result.breaks is None
    assert result.holds is not None
    assert 40 < result.holds <= 50


def test_three_failures_in_a_row_end_a_search() -> None:
    settings = Settings(P95, 10.0, 4000.0, 60.0, 5.0)
    looks, ended = search(settings, lambda level, number: Look(level, (), 1.0, cause="refused"))
    assert ended == "failures"
    assert len(looks) == 3


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (100.0, 101.0, "100 users at most hold the SLO"),
        (100.0, 114.0, "100 users hold the SLO, and 114 users do not"),
        (1000.0, 1149.0, "1,000 users hold the SLO, and 1,149 users do not"),
        (None, 1.0, "a single user does not hold the SLO"),
    ],
)
def test_only_adjacent_numbers_of_users_give_an_exact_answer(low: float | None, high: float, text: str) -> None:
    assert sentence("resolved", Bounds(low, high), "users", whole=True) == text


def test_a_search_of_users_ends_between_two_integers() -> None:
    settings = Settings(P95, 2.0, 50_000.0, 600.0, 5.0, whole=True)
    looks, ended = search(settings, queue(5.5, 2, settings))
    result = answer(settings, bracket.points_of(settings, looks), ended, "sessions/s")
    assert {look.level % 1 for look in looks} == {0.0}
    assert (result.holds, result.breaks, result.resolved) == (5.0, 6.0, True)


@given(st.integers(2, 60), st.sampled_from([0.05, 0.1, 0.15, 0.25]), st.integers(0, 99))
@example(15, 0.15, 1)
def test_a_search_of_users_measures_no_decided_load_again(users: int, precision: float, seed: int) -> None:
    settings = Settings(P95, users, 1e9, 60.0, 5.0, precision=precision, whole=True, looks=40)
    measure = queue(users + 0.5, seed, settings)
    looks: list[Look] = []

    def look(level: float, number: int) -> Look:
        here = bracket.points_of(settings, [look for look in looks if look.level == level])
        assert not {point.verdict for point in here} & {"holds", "breaks"}
        looks.append(measure(level, number))
        return looks[-1]

    search(settings, look)


GUESSES, LIMITS = (4.0, 10.0, 25.0, 60.0, 150.0), ((20, 40, 80), (30, 33, 36), (15, 30, 120), (25, 50, 54))

EVERY = [*product(GUESSES, LIMITS)]


def loops(count: int) -> list[tuple[float, tuple[float, ...]]]:
    """Guesses, and limits of TPOT of three tiers, in ms."""
    rng = np.random.default_rng(5)
    made = [(exp(rng.uniform(log(4), log(150))), 10 + np.exp(rng.uniform(log(5), log(110), 3))) for _ in range(count)]
    return [(float(round(guess)), tuple(sorted(float(limit.round(1)) for limit in limits))) for guess, limits in made]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("made", "resolved", "mean", "within"),
    [
        (
            [made for number, made in enumerate(EVERY) if number % 4 % 2 == number // 4 % 2],
            1.0,
            1.3,
            0.95,
        ),  # half of it
        pytest.param(EVERY, 1.0, 1.3, 0.95, marks=pytest.mark.soak),
        pytest.param(loops(60), 0.9, 1.5, 0.9, marks=pytest.mark.soak),
    ],
)
def test_the_tiers_of_a_search_share_its_runs(
    made: list[tuple[float, tuple[float, ...]]], resolved: float, mean: float, within: float
) -> None:
    """TPOT grows with the users of a closed loop; the most users of each tier are known. One run decides most loads."""

    def tpot_ms(users: float) -> float:
        return 10 + users / 2

    def look(level: float, number: int) -> Look:
        rng, turn_s = np.random.default_rng([3, number]), tpot_ms(level) / 5
        begun_s = np.sort(rng.uniform(0, 600, int(level * 600 / turn_s)))
        value = tpot_ms(level) * np.exp(rng.normal(0, 0.05, len(begun_s)))
        return Look(level, (Window(600.0, (Samples(begun_s, value),), begun_s, begun_s + turn_s),), 620.0)

    costs, ends = [], list[Why]()
    for guess, limits in made:
        tiers = [
            Settings(slo.parse(f"p95(tpot_ms) < {limit}"), guess, 16_000.0, 600.0, 20.0, whole=True) for limit in limits
        ]
        alone = [len(search(tier, look)[0]) for tier in tiers]
        runs, ended = bracket.search(tiers, lambda level, number: [look(level, number)] * 3)
        costs.append((len(runs) / np.mean(alone), len(runs) / max(alone)))
        for number, limit in enumerate(limits):
            most = 2 * (limit / exp(0.05 * NormalDist().inv_cdf(0.95)) - 10)
            points = bracket.points_of(tiers[number], [run[number] for run in runs])
            found = answer(tiers[number], points, ended[number], "")
            low, high = found.holds or 0.0, found.breaks or inf
            assert low <= most < high
            assert ended[number] == "budget" or high <= max(1.15 * low + 1e-9, low + 1)
            ends.append(ended[number])
    again, _ = bracket.search(tiers, lambda level, number: [look(level, number)] * 3, runs[:4])
    assert [run[0].level for run in again] == [run[0].level for run in runs]
    of_mean, of_dearest = np.array(costs).T
    assert ends.count("resolved") >= resolved * len(ends)
    assert of_mean.mean() <= mean
    assert (of_dearest <= 1.5).mean() >= within


OF_MEAN = slo.parse("mean(tpot_ms) < 50")  # and at most 1 % of failures


def test_a_condition_that_holds_at_a_higher_load_holds_at_a_lower_one() -> None:
    """Sixty turns cannot show 99 % of successes, and those of the higher load do; its TPOT misses the limit."""
    settings = Settings(OF_MEAN, 1.0, 650.0, 60.0, 5.0, whole=True)
    low, high, lowest = look_of(2.0, 60, 20.0), look_of(40.0, 1600, 80.0), look_of(1.0, 60, 70.0)
    assert [point.verdict for point in bracket.points_of(settings, [low])] == ["undecided"]
    first, second, breaks = bracket.points_of(settings, [low, high, lowest])
    assert (first.verdict, second.verdict, breaks.verdict) == ("holds", "breaks", "breaks")
    assert [condition.verdict for condition in first.conditions] == ["holds", "undecided"]
    assert line(first, 1, 65.0, "users").count(", met at a higher load") == 1


@pytest.mark.parametrize(
    ("between", "verdict"),
    [(look_of(8.0, 1600, 20.0, fails=True), "breaks"), (look_of(8.0, 1600, 20.0, ends_s=2.0), "overloaded")],
)
def test_a_condition_that_does_not_fall_with_load_decides_no_lower_load(between: Look, verdict: str) -> None:
    """Its successes at the highest load say nothing of a load below one that breaks."""
    settings = Settings(OF_MEAN, 1.0, 650.0, 60.0, 5.0)
    points = bracket.points_of(settings, [look_of(2.0, 60, 20.0), between, look_of(40.0, 1600, 80.0)])
    assert [point.verdict for point in points] == ["undecided", verdict, "breaks"]
    assert points[-1].conditions[1].verdict == "holds"


def test_a_tier_that_cannot_be_decided_does_not_hold_back_the_others() -> None:
    """Five turns of a run decide nothing; the limit of the other tier is four times higher."""
    tiers = [Settings(slo.parse(f"p95(tpot_ms) < {limit}"), 8.0, 3000.0, 100.0, 20.0, whole=True) for limit in (20, 80)]

    def looks(level: float, _number: int) -> list[Look]:
        at_s = np.linspace(0, 99, 5)
        return [Look(level, (Window(100.0, (Samples(at_s, at_s * 0 + 10 + level / 2),), at_s, at_s + 50),), 120.0)] * 2

    runs, _ended = bracket.search(tiers, looks)
    assert max(run[0].level for run in runs) > 100


def test_the_document_has_no_attainment_of_an_overloaded_load() -> None:
    settings = Settings(P95, 10.0, 1000.0, 60.0, 5.0)
    at_s = np.arange(0, 60, 0.05)
    window = Window(60.0, (Samples(at_s, np.full(len(at_s), 10.0)),), at_s, at_s * 1.5 + 1)
    points = bracket.points_of(settings, [Look(20.0, (window,), 65.0)])
    (point,) = document(settings, points, "budget", "sessions/s").points
    assert (point.verdict, point.conditions) == ("overloaded", ())
    assert point.growth is not None
    assert point.growth.growth_per_s == pytest.approx(20 / 3, rel=0.05)


def test_a_mean_without_interval_is_in_the_document() -> None:
    settings = Settings(slo.parse("mean(ttft_ms) < 100"), 10.0, 1000.0, 60.0, 5.0)
    at_s = np.arange(0, 8, 0.05)
    samples = (Samples(at_s, 20 + 20 * at_s), Samples(at_s, np.zeros(len(at_s))))
    rising = Window(8.0, samples, at_s, at_s + 1)  # the window is within one relaxation time
    points = bracket.points_of(settings, [Look(20.0, (rising,), 13.0)])
    text = json.dumps(document_of(document(settings, points, "budget", "sessions/s")), allow_nan=False)
    condition, _ = json.loads(text)["points"][0]["conditions"]
    assert (condition["high"], condition["figure_high"]) == (None, None)


def guess_of(seed: int) -> float:
    """Return a guess that is up to three times too high or too low."""
    return search_queue.TRUTH * exp(np.random.default_rng([7, seed]).uniform(-log(3), log(3)))


@pytest.mark.parametrize(
    ("seeds", "window_s", "budget_s"), [(5, 300.0, 7200.0), pytest.param(60, 300.0, 7200.0, marks=pytest.mark.soak)]
)
@pytest.mark.timeout(3600)
def test_searches_of_a_queue_find_its_true_load(seeds: int, window_s: float, budget_s: float) -> None:
    """In 95 % the decided loads enclose the true load; 50 % resolve."""
    right = bounded = resolved = 0
    for seed in range(seeds):
        settings = search_queue.settings(guess_of(seed), budget_s, window_s)
        looks, ended = search(settings, search_queue.measure(settings, seed))
        result = answer(settings, bracket.points_of(settings, looks), ended, "turns/s")
        assert sum(look.spent_s for look in looks) <= budget_s
        right += (result.holds or 0.0) <= search_queue.TRUTH <= (result.breaks or np.inf)
        bounded += result.holds is not None and result.breaks is not None
        resolved += result.resolved
        print(f"seed {seed:2}: {result.text}; {ended}", flush=True)
    print(f"enclosed: {right}, bounded: {bounded}, resolved: {resolved} of {seeds}")
    assert right >= 0.95 * seeds
    assert bounded >= 0.9 * seeds  # an unbounded interval always encloses the true load
    assert resolved >= 0.5 * seeds
