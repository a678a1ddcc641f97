"""Arrivals: one sequence for all workers, its stripes, and rates that change during the run."""

from itertools import islice, pairwise, takewhile

import pytest
from arrival_times import PROCESSES, unit_process
from hypothesis import given, settings
from hypothesis import strategies as st

from inferload.workload.arrivals import Arrival, Schedule, stripe

kinds = st.sampled_from(sorted(PROCESSES))
rates = st.floats(0.01, 1000)


def schedule(kind: str, seed: int, rate: float, worker: int = 0, workers: int = 1) -> Schedule:
    return Schedule(unit_process(kind, seed), rate, worker, workers)


def take(plan: Schedule, count: int) -> list[Arrival]:
    arrivals = [plan.next() for _ in range(count)]
    assert None not in arrivals
    return [arrival for arrival in arrivals if arrival is not None]


def replay(plan: Schedule, changes: list[tuple[float, float]], until_s: float) -> list[Arrival]:
    """Stub of a worker: takes due arrivals and receives each change of the rate."""
    taken: list[Arrival] = []
    for at_s, rate in [*changes, (until_s, 0.0)]:
        while (arrival := plan.peek()) is not None and arrival.due_s < at_s:
            taken.append(arrival)
            assert plan.next() == arrival
        plan.set_rate(at_s, rate)
    return taken


@given(kinds, st.integers(0, 10**9), rates, st.integers(1, 9))
def test_stripes_partition_the_sequence(kind: str, seed: int, rate: float, workers: int) -> None:
    sequence = take(schedule(kind, seed, rate), 40 * workers)
    striped = [arrival for k in range(workers) for arrival in take(schedule(kind, seed, rate, k, workers), 40)]
    assert sorted(striped, key=lambda arrival: arrival.index) == sequence
    assert [arrival.index for arrival in sequence] == list(range(40 * workers))


changes = st.lists(st.tuples(st.floats(0.1, 5), st.sampled_from([0.0, 0.5, 2.0, 7.5])), max_size=5)


@given(kinds, st.integers(0, 1000), changes, st.integers(1, 4))
def test_a_rate_change_gives_equal_arrivals_on_any_number_of_workers(
    kind: str, seed: int, gaps: list[tuple[float, float]], workers: int
) -> None:
    at_s, steps = 0.0, []
    for gap_s, rate in gaps:
        at_s += gap_s
        steps.append((at_s, rate))
    sequence = replay(schedule(kind, seed, 3.0), steps, at_s + 4)
    striped = [
        arrival for k in range(workers) for arrival in replay(schedule(kind, seed, 3.0, k, workers), steps, at_s + 4)
    ]
    assert sorted(striped, key=lambda arrival: arrival.index) == sequence
    # Expected times, computed without the class: an arrival is due when the integral of the rate equals its unit time.
    bounds = [0.0, *(at for at, _ in steps), at_s + 4]
    held = [3.0, *(rate for _, rate in steps)]
    for arrival, unit in zip(sequence, unit_process(kind, seed), strict=False):
        passed = sum(
            max(0.0, min(arrival.due_s, end) - start) * rate
            for (start, end), rate in zip(pairwise(bounds), held, strict=True)
        )
        assert passed == pytest.approx(unit, abs=1e-9)
    area = sum((end - start) * rate for (start, end), rate in zip(pairwise(bounds), held, strict=True))
    counted = sum(1 for _ in takewhile(lambda unit: unit < area - 1e-9, unit_process(kind, seed)))
    assert abs(len(sequence) - counted) <= (
        area > 0 and kind == "constant"
    )  # an arrival exactly at the end may be rounded to either side


def test_a_rate_change_moves_arrivals_not_yet_due() -> None:
    plan = schedule("constant", 0, 1.0)
    assert plan.next() == Arrival(0, 0.5)
    assert plan.peek() == Arrival(1, 1.5)
    plan.set_rate(1.0, 0.25)
    assert plan.peek() == Arrival(1, 3.0)
    plan.set_rate(2.0, 1.0)
    assert plan.next() == Arrival(1, 2.25)
    assert plan.rate == 1.0


def test_a_pause_loses_no_arrivals() -> None:
    plan = schedule("constant", 0, 1.0)
    plan.set_rate(0.25, 0.0)
    assert plan.peek() is None
    assert plan.next() is None
    plan.set_rate(10.25, 1.0)
    assert plan.next() == Arrival(0, 10.5)


def test_arrivals_due_before_a_change_stay_due() -> None:
    plan = schedule("constant", 0, 1.0)
    plan.set_rate(3.0, 0.0)  # arrivals 0, 1 and 2 are not yet started
    assert take(plan, 3) == [Arrival(0, 0.5), Arrival(1, 1.5), Arrival(2, 2.5)]
    assert plan.next() is None


def test_a_change_in_the_past_or_to_an_invalid_rate_is_refused() -> None:
    plan = schedule("constant", 0, 1.0)
    plan.set_rate(3.0, 2.0)
    with pytest.raises(ValueError, match="before the last one"):
        plan.set_rate(2.0, 1.0)
    for rate in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="finite and at least 0"):
            plan.set_rate(4.0, rate)


def index_of_dispersion(kind: str, seed: int) -> float:
    """Return variance / mean of the counts in 2,000 windows of 5 units: 1 for Poisson arrivals, 0 for constant ones."""
    counts = [0] * 2000
    for unit in takewhile(lambda at: at < 10_000, unit_process(kind, seed)):
        counts[int(unit / 5)] += 1
    mean = sum(counts) / len(counts)
    return sum((count - mean) ** 2 for count in counts) / (len(counts) - 1) / mean


@pytest.mark.parametrize("seed", range(5))
def test_poisson_counts_have_the_poisson_variance(seed: int) -> None:
    # The index over m windows has a standard deviation of about sqrt(2 / m) = 0.032.
    assert index_of_dispersion("poisson", seed) == pytest.approx(1.0, abs=0.13)
    assert index_of_dispersion("constant", seed) < 0.01


@given(st.integers(1, 500))
def test_constant_arrivals_are_evenly_spaced(n: int) -> None:
    assert sum(1 for _ in takewhile(lambda at: at < n, unit_process("constant", 0))) == n


@settings(max_examples=20)
@given(st.integers(0, 10**9))
def test_arrivals_follow_from_the_seed(seed: int) -> None:
    first = list(islice(unit_process("poisson", seed), 20))
    assert first == list(islice(unit_process("poisson", seed), 20))
    assert first != list(islice(unit_process("poisson", seed + 1), 20))


def test_stripe_of_a_worker() -> None:
    assert list(islice(stripe(1, 3), 4)) == [1, 4, 7, 10]
    for worker, workers in ((3, 3), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="worker numbers start at 0"):
            stripe(worker, workers)
