"""Garbage collection of a worker in steps: each examines a bounded number of objects, and cyclic garbage does not accumulate."""

import gc
import random
from collections import deque
from collections.abc import Iterator

import gevent
import pytest

from inferload.run.worker import process_health
from inferload.run.worker.process_health import InterpreterSettings

MOST = 2_000


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[InterpreterSettings]:
    """Settings in force whose steps are called by the test."""
    monkeypatch.setattr(process_health, "MOST_OBJECTS", MOST)
    monkeypatch.setattr(process_health, "COLLECT_S", 3600.0)
    settings = InterpreterSettings()
    settings.start()
    yield settings
    settings.close()
    gc.freeze()  # as before the test, whose own objects are few


@pytest.fixture
def examined(collector: InterpreterSettings) -> Iterator[list[int]]:
    """Numbers of objects that each collection examines."""
    numbers: list[int] = []

    def on_collection(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            numbers.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

    gc.callbacks.append(on_collection)
    yield numbers
    gc.callbacks.remove(on_collection)


class Cycle:
    """An object that only the garbage collector frees; `alive` counts those since `count_cycles` that it has not freed."""

    alive = [0]

    def __init__(self) -> None:
        self.own, self.counted = self, Cycle.alive
        self.counted[0] += 1

    def __del__(self) -> None:
        self.counted[0] -= 1


def count_cycles() -> list[int]:
    """Count new cycles from 0: those of another test may be freed at any time."""
    Cycle.alive = [0]
    return Cycle.alive


def turns(n: int) -> list[object]:
    """Return the objects of turns in flight: a list, a dict and a method for each."""
    return [[{"turn": []}, [].append] for _ in range(n)]


def caught() -> None:
    """Leave an exception with a traceback in a frame that refers to it."""
    kept = []
    try:
        raise ValueError(Cycle())
    except ValueError as error:
        kept.append(error)


@pytest.mark.parametrize("in_flight", [100, 1_000, 20_000])
def test_a_collection_examines_a_bounded_number_of_objects_with_any_turns_in_flight(
    collector: InterpreterSettings, examined: list[int], in_flight: int
) -> None:
    held = deque[object](maxlen=in_flight)
    for _ in range(2 * in_flight // 50):
        held.extend(turns(50))
        collector.collect()
    assert len(examined) > in_flight / 100
    assert max(examined) <= MOST + 50


def test_a_burst_of_turns_is_not_examined(collector: InterpreterSettings, examined: list[int]) -> None:
    held = turns(MOST)
    collector.collect()
    held += turns(10)
    collector.collect()
    assert len(examined) == 1
    assert max(examined) < 100


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_holds_for_any_sequence_of_allocations(
    collector: InterpreterSettings, examined: list[int], seed: int
) -> None:
    rng = random.Random(seed)
    held: list[object] = []
    for _ in range(200):
        held += turns(rng.choice([0, 1, 10, 100, 1_000]))
        for _ in range(rng.choice([0, 0, 50])):
            caught()
        if rng.random() < 0.3:
            del held[: rng.randrange(len(held) + 1)]
        collector.collect()
    assert max(examined) <= MOST + 50


@pytest.mark.parametrize("in_flight", [0, 20_000])
def test_exceptions_in_frames_are_freed_before_they_are_many(collector: InterpreterSettings, in_flight: int) -> None:
    held = turns(in_flight)
    collector.collect()
    most, alive = 0, count_cycles()
    for _ in range(1_000):
        held[: in_flight // 100] = turns(in_flight // 100)
        caught()
        collector.collect()
        most = max(most, *alive)
    assert 0 < most <= MOST / 50


def test_turns_without_cycles_cause_no_step(collector: InterpreterSettings, examined: list[int]) -> None:
    held = deque[object](maxlen=200)
    for step in range(1_000):
        held.extend(turns(10))
        collector.collect()
        if step == 200:  # until then the turns in flight become more
            examined.clear()
    assert len(examined) <= 1


def test_cycles_that_outlive_many_steps_do_not_accumulate(collector: InterpreterSettings) -> None:
    """Each turn in flight holds a cycle; all of them together have less than three quarters of the limit."""
    counts = []
    for lived in (1, 10, 60):
        counts.append(count_cycles())
        held = deque[object](maxlen=lived)
        most = 0
        for _ in range(3_000):
            held.append((Cycle(), turns(3)))
            collector.collect()
            most = max(most, *counts[-1])
        assert most < lived + MOST
        held.clear()
    collector.close()
    gc.collect()
    assert counts == [[0]] * 3


def test_steps_are_made_from_start_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_health, "COLLECT_S", 0.001)
    settings = InterpreterSettings()
    settings.start()
    alive = count_cycles()
    for _ in range(2 * process_health.MOST_OBJECTS // 50):
        caught()
    with gevent.Timeout(20):
        while alive != [0]:
            gevent.sleep(0.001)
    settings.close()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    gc.freeze()
