"""Overload of an open loop, on queues with known capacity."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import S, turn

from inferload.base.clock import Anchor
from inferload.results.documents.figures_document import Growth
from inferload.results.statistics.overload import MATTERS, Ends, growth, growth_of_turns
from inferload.turns.record import Failure, PhaseWindow
from inferload.turns.turn_columns import TurnColumns, to_table

CAPACITY_PER_S = 20.0
PLACES = 16
WINDOW_S, WARMUP_S = 60.0, 10.0
SEEDS = 30
ALLOWED_ERRORS = SEEDS * 0.05


def queued(seed: int, load: float, poisson: bool, spread: float = 0.5) -> Growth:
    """Return the growth over one window of a queue with PLACES servers and gamma service times. `load`: of capacity."""
    rng = np.random.default_rng(seed)
    rate, mean_s = load * CAPACITY_PER_S, PLACES / CAPACITY_PER_S
    count = int(2 * rate * (WINDOW_S + WARMUP_S)) + 100
    gaps = rng.exponential(1 / rate, count) if poisson else np.full(count, 1 / rate)
    planned = np.cumsum(gaps)
    planned = planned[planned < WINDOW_S + WARMUP_S]
    service = rng.gamma(spread**-2, mean_s * spread**2, len(planned))
    free = [0.0] * PLACES
    ended = np.empty(len(planned))
    for index, at in enumerate(planned):
        ended[index] = max(at, heapq.heappop(free)) + service[index]
        heapq.heappush(free, ended[index])
    result = growth(planned - WARMUP_S, ended - WARMUP_S, WINDOW_S, WARMUP_S)
    assert result is not None
    return result


@pytest.mark.parametrize("poisson", [True, False])
@pytest.mark.parametrize(
    ("load", "state"), [(0.5, "kept up"), (0.9, "kept up"), (1.2, "overloaded"), (4, "overloaded")]
)
def test_overload_is_detected_above_the_capacity_only(load: float, state: str, poisson: bool) -> None:
    states = [queued(seed, load, poisson).state for seed in range(SEEDS)]
    assert sum(judged != state for judged in states) <= ALLOWED_ERRORS, states


def test_rates_under_overload_equal_those_of_the_queue() -> None:
    result = queued(1, 4, poisson=False)
    assert result.offered_per_s == pytest.approx(80, rel=0.02)
    assert result.ended_per_s == pytest.approx(CAPACITY_PER_S, rel=0.05)
    assert result.low_per_s <= 60 <= result.high_per_s


@given(st.floats(0.5, 58), st.floats(1, 20), st.floats(0, 30))
def test_the_start_of_a_load_is_no_overload(turn_s: float, rate: float, warmup_s: float) -> None:
    """A server with constant response times keeps up, also while the first turns are in flight."""
    planned = np.arange(-warmup_s, WINDOW_S, 1 / rate)
    result = growth(planned, planned + turn_s, WINDOW_S, warmup_s)
    assert result is not None
    assert result.state != "overloaded"
    if WINDOW_S - max(0.0, turn_s - warmup_s) >= 3.01 * turn_s:
        assert result.state == "kept up"


@given(st.floats(3, 30), st.floats(0.5, 20), st.floats(0, 5), st.integers(0, 1000))
def test_a_time_shorter_than_a_few_turns_decides_nothing(
    turn_s: float, rate: float, warmup_s: float, seed: int
) -> None:
    lasts_s = 2.9 * turn_s
    rng = np.random.default_rng(seed)
    planned = np.cumsum(rng.exponential(1 / rate, int(2 * rate * (lasts_s + warmup_s)) + 20)) - warmup_s
    planned = planned[planned < lasts_s]
    result = growth(planned, planned + turn_s, lasts_s, warmup_s)
    assert result is not None
    seen = ((planned + turn_s >= 0) & (planned + turn_s < lasts_s)).any()
    assert result.state in ("unsettled", "undecided") or (not seen and result.state == "kept up")


@given(st.floats(0.5, 2.0), st.floats(1, 20), st.integers(0, 1000))
def test_turns_of_a_second_or_two_are_decided_in_a_minute(turn_s: float, rate: float, seed: int) -> None:
    planned = np.arange(0, WINDOW_S - 1, 1 / rate) + np.random.default_rng(seed).uniform(0, 1)
    result = growth(planned, planned + turn_s, WINDOW_S)
    assert result is not None
    assert result.state == "kept up"


@given(st.floats(1, 30), st.floats(0.5, 20), st.floats(0.3, 8), st.floats(0, 20))
def test_a_server_that_kept_up_has_no_growth_that_matters_in_its_interval(
    lasts_s: float, rate: float, turn_s: float, warmup_s: float
) -> None:
    planned = np.arange(-warmup_s, lasts_s, 1 / rate)
    result = growth(planned, planned + turn_s, lasts_s, warmup_s)
    assert result is not None
    if result.state == "kept up":
        assert result.high_per_s * result.lasts_s < max(5.0, MATTERS * result.offered_per_s * result.lasts_s)


def test_a_window_short_relative_to_a_turn_is_unsettled() -> None:
    planned = np.arange(0, WINDOW_S, 0.1)
    for turn_s in (58.0, 100.0):
        result = growth(planned, planned + turn_s, WINDOW_S)
        assert result is not None
        assert result.state == "unsettled"


@given(st.lists(st.floats(0, 59), min_size=1, max_size=60))
def test_growth_is_the_difference_of_the_rates(planned: list[float]) -> None:
    at = np.sort(np.array(planned))
    result = growth(at, at + 0.5, WINDOW_S)
    assert result is not None
    assert result.growth_per_s == pytest.approx(result.offered_per_s - result.ended_per_s)
    assert result.low_per_s <= result.growth_per_s <= result.high_per_s
    assert result.offered_per_s == pytest.approx(len(planned) / WINDOW_S)


def test_no_load_is_no_overload() -> None:
    result = growth(np.zeros(0), np.zeros(0), WINDOW_S)
    assert result is not None
    assert (result.state, result.offered_per_s, result.share) == ("kept up", 0.0, 0.0)
    assert growth(np.zeros(0), np.zeros(0), 0.0) is None


def test_turns_of_several_workers_are_mapped_to_one_clock() -> None:
    """The clock of worker w2 is 100 s ahead; unfinished turns have no end."""
    window = PhaseWindow("measure", 10 * S, 70 * S)
    columns = TurnColumns()
    for number in range(600):
        ahead_ns = 100 * S * (number % 2)
        planned_ns = 10 * S + number * S // 10 + ahead_ns
        ended = number < 150
        columns.append(
            turn(
                worker="w2" if number % 2 else "w1",
                planned_ns=planned_ns,
                closed_ns=planned_ns + (number * S) // 4 if ended else 90 * S + ahead_ns,
                failure=Failure.UNFINISHED if not ended else None if number % 3 else Failure.HTTP_5XX,
            )
        )
    table = to_table(columns, Anchor(0, 0), "w1")
    ends = Ends.of(
        lambda names: [table.select(names).slice(0, 7), table.select(names).slice(7)], {"w1": 0, "w2": -100 * S}
    )
    result = growth_of_turns(ends, window)
    assert result is not None
    assert result.state == "overloaded"
    assert result.offered_per_s == pytest.approx(10, rel=0.05)
    assert result.failed_per_s == pytest.approx(result.ended_per_s / 3, rel=0.05)
