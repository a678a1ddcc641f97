"""The load of a run on the master: planned changes of the users, and an abort before its end."""

import time
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from inferload.run.master.lifecycle import run_load
from inferload.run.master.lifecycle.phases import GivenUp, RunEnd
from inferload.run.master.lifecycle.run_load import RunLoad
from inferload.run.process import protocol


def test_a_step_of_the_load_ends_the_ramp_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two starts at a time would share one dispatcher of Locust's, and the older one would overwrite the newer."""
    begun, killed, ended, planned = [], [], [], []

    def follow(scenario: Any, measure_ns: int, marks: Any, set_users: Any) -> None:
        for users in (10, 20):
            set_users(users)
            gevent.sleep(0.01)

    def start_users(users: int, spawn_rate: float) -> None:
        begun.append(users)
        try:
            gevent.sleep(0 if users == 20 else 60)
        except gevent.GreenletExit:
            killed.append(users)
            raise
        ended.append(users)

    monkeypatch.setattr(run_load, "follow_steps", follow)
    spec: Any = SimpleNamespace(scenario=None, spawn_per_s=1.0)
    state: Any = SimpleNamespace(marks=None)
    steering: Any = SimpleNamespace(planned_users=planned.append)
    load = RunLoad(spec, state, None, None, steering, user_counts=dict)  # type: ignore[arg-type]
    load._starter = gevent.spawn(start_users, 5, 1.0)
    gevent.sleep(0)
    load._follow_steps(0, start_users)
    load._starter.join(timeout=20)
    assert (planned, begun, killed, ended) == ([10, 20], [5, 10, 20], [5, 10], [20])


def test_an_error_between_two_phases_ends_the_load() -> None:
    sent: list[str] = []
    marks: Any = SimpleNamespace(add=lambda *_words, **_facts: None)
    end = RunEnd(marks)
    load = RunLoad(
        SimpleNamespace(),  # type: ignore[arg-type]
        SimpleNamespace(end=end),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        SimpleNamespace(announce=sent.append),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        user_counts=dict,
    )
    with load:
        pass
    assert sent == []
    with pytest.raises(RuntimeError), load:
        raise RuntimeError("no")
    assert sent == [protocol.DRAIN, protocol.ABORT]
    assert end.stop.is_set()


@pytest.mark.parametrize(
    ("aborting", "drained", "announced"),
    [
        (False, False, [protocol.DRAIN, protocol.ABORT]),  # after drain_s
        (True, False, [protocol.DRAIN, protocol.ABORT, protocol.ABORT]),
        (True, True, [protocol.DRAIN]),
    ],
)
def test_an_abort_before_the_end_of_the_load_is_announced_again_after_it(
    aborting: bool, drained: bool, announced: list[str]
) -> None:
    sent: list[tuple[str, float]] = []
    marks: Any = SimpleNamespace(add=lambda *_words, **_facts: None)
    end = RunEnd(marks)
    end.given_up = GivenUp.TURNS if aborting else GivenUp.NOTHING
    phases = SimpleNamespace(mark=lambda _marks: None)
    state: Any = SimpleNamespace(marks=marks, phases=phases, end=end, roster=SimpleNamespace(awaited=[]))
    spec: Any = SimpleNamespace(scenario=SimpleNamespace(phases=SimpleNamespace(drain_s=0.5)))

    def announce(kind: str) -> None:
        sent.append((kind, time.monotonic()))
        if len(sent) == len(announced):
            end.drained.set()

    steering: Any = SimpleNamespace(end_load=lambda: None)
    load = RunLoad(spec, state, None, SimpleNamespace(announce=announce), steering, user_counts=dict)  # type: ignore[arg-type]
    load.drain(0)
    assert [kind for kind, _ in sent] == announced
    if aborting and not drained:
        assert sent[1][1] - sent[0][1] < 0.5
