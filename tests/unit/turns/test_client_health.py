"""Health of the client: exact merging, and None without observations."""

import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import MS, merged, turn

from inferload.base import clock
from inferload.figures.counting import count_delays
from inferload.turns.client_health import Beat, ClientHealth, HealthSet

times = st.lists(st.floats(0, 500), max_size=5)
beats = st.tuples(
    st.sampled_from(["w1", "w2"]),
    st.sampled_from(["warmup", "measure"]),
    times,
    times,
    st.floats(0, 2),
    st.floats(0.1, 2),
    st.none() | st.floats(0, 1),
)


def health_of(observed: list[tuple]) -> HealthSet:
    health = HealthSet()
    for worker, phase, lags, pauses, cpu_s, wall_s, stolen_s in observed:
        health.at(worker, phase).beat(Beat(lags, pauses, cpu_s, wall_s, stolen_s), processors=2)
    return health


@given(st.lists(beats, max_size=5), st.lists(beats, max_size=5), st.lists(beats, max_size=5))
def test_merging_is_exact_in_any_order(a: list[tuple], b: list[tuple], c: list[tuple]) -> None:
    x, y, z = health_of(a), health_of(b), health_of(c)
    assert merged(merged(x, y), z) == merged(x, merged(y, z)) == merged(merged(z, x), y) == health_of(a + b + c)
    assert x == health_of(a)


@given(st.lists(beats, max_size=6))
def test_a_delta_is_complete_after_transfer(observed: list[tuple]) -> None:
    health = health_of(observed)
    message = json.dumps(health.take().to_wire())
    assert health == HealthSet()
    assert HealthSet.from_wire(json.loads(message)) == health_of(observed)


def test_shares_of_one_worker_and_of_all() -> None:
    health = HealthSet()
    health.at("w1", "measure").beat(Beat([1.0, 9.0], [0.5], cpu_s=0.9, wall_s=1.0, stolen_s=0.2), processors=4)
    health.at("w2", "measure").beat(Beat([2.0], [], cpu_s=0.1, wall_s=1.0, stolen_s=None))
    health.at("w2", "drain").beat(Beat([50.0], [], cpu_s=0.0, wall_s=5.0, stolen_s=None))
    worker = health.by_worker("measure")["w1"]
    assert (worker.cpu_share, worker.steal_share) == (0.9, 0.05)
    assert worker.longest_pause_ms == 9
    total = health.total("measure")
    assert total.cpu_share == pytest.approx(0.5)
    assert total.steal_share == 0.05  # only of the worker that reports it
    assert total.loop_lag_ms.count == 3
    assert health.by_worker()["w2"].longest_pause_ms == 50
    assert sorted(health.by_worker()) == ["w1", "w2"]


def test_with_a_reading_thread_only_its_pauses_count() -> None:
    health = HealthSet()
    worker = health.at("w1", "measure")
    worker.beat(Beat([900.0], [], cpu_s=0.1, wall_s=1.0, stolen_s=None, read_pauses_ms=[]))
    assert (worker.reads_apart, worker.longest_pause_ms) == (True, 0)
    worker.beat(Beat([5.0], [], cpu_s=0.1, wall_s=1.0, stolen_s=None, read_pauses_ms=[80.0, 70.0]))
    assert HealthSet.from_wire(health.to_wire()).at("w1", "measure").longest_pause_ms == 80
    worker.beat(Beat([5.0], [], cpu_s=0.1, wall_s=1.0, stolen_s=None))  # in one beat the event loop did the reads
    assert (worker.reads_apart, worker.longest_pause_ms) == (False, 900)


def test_delays_of_a_turn_belong_to_its_worker_and_phase() -> None:
    health = HealthSet()
    count_delays(health, [turn(delay_ns=array("q", [MS, 3 * MS, 2 * MS]))], [1])
    count_delays(health, [turn(delay_ns=None, phase="warmup")], [4])
    observed = health.at("w1", "measure")
    assert (observed.delay_ms.count, observed.delay_ms.max) == (3, 3.0)
    assert (observed.reads_stamped, observed.reads_unstamped) == (3, 1)
    assert health.at("w1", "warmup").reads_stamped == 0
    assert health.total().reads_unstamped == 5


def test_without_observations_values_are_none() -> None:
    empty = ClientHealth()
    assert (empty.cpu_share, empty.steal_share, empty.longest_pause_ms) == (None, None, None)


def test_a_clock_step_is_noticed_once_and_slewing_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_ns, wall_ahead_ns = [10 * clock.NS_PER_S], [7 * clock.NS_PER_S]
    monkeypatch.setattr(clock, "now_ns", lambda: at_ns[0])
    monkeypatch.setattr(clock, "wall_ns", lambda: at_ns[0] + wall_ahead_ns[0])
    watch, health, seen_s = clock.WallWatch(), ClientHealth(), []
    for stepped_ns in (0, -3600 * clock.NS_PER_S, 20 * MS, 0, 200 * MS):
        at_ns[0] += clock.NS_PER_S
        wall_ahead_ns[0] += stepped_ns
        seen_s.append(watch.stepped_ns() / clock.NS_PER_S)
        health.beat(Beat([], [], 0.0, 1.0, None, clock_stepped_ns=round(seen_s[-1] * clock.NS_PER_S)))
    assert seen_s == [0, -3600, 0, 0, 0.2]
    assert (health.clock_steps, health.clock_stepped_ns) == (2, round(-3599.8 * clock.NS_PER_S))
