"""The load of a run on the master: planned changes of the users."""

from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from inferload.master.lifecycle import load_steps
from inferload.master.lifecycle.run_load import RunLoad
from inferload.measure.record import PhaseWindow


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

    monkeypatch.setattr(load_steps, "follow", follow)
    spec: Any = SimpleNamespace(scenario=None, spawn_per_s=1.0)
    state: Any = SimpleNamespace(marks=None, phases=SimpleNamespace(windows=(PhaseWindow("measure", 0),)))
    steering: Any = SimpleNamespace(planned_users=planned.append)
    load = RunLoad(spec, state, None, None, steering, user_counts=dict)  # type: ignore[arg-type]
    load._starter = gevent.spawn(start_users, 5, 1.0)
    gevent.sleep(0)
    load._follow_steps(start_users)
    load._starter.join(timeout=20)
    assert (planned, begun, killed, ended) == ([10, 20], [5, 10, 20], [5, 10], [20])
