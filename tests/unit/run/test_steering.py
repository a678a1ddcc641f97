"""Manual changes of the load: immediate, as a ramp, and held; each adds a mark that the text of the load includes."""

import time
from types import SimpleNamespace
from typing import Any

import gevent
import msgspec
import pytest
from gevent.event import Event
from hypothesis import given
from hypothesis import strategies as st

from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.errors import UsageError
from inferload.base.numbers import number
from inferload.base.rundir import Mark
from inferload.run.master.lifecycle import steering
from inferload.run.master.lifecycle.steering import Ramp, Steering
from inferload.run.process.run_spec import RunOptions, resolve
from inferload.workload.plan.load_text import load_text


class Clock:
    """Clock of the steering that only the test advances."""

    def __init__(self) -> None:
        self.at_ns = now_ns()
        self._sleepers: list[tuple[int, Event]] = []

    def now_ns(self) -> int:
        return self.at_ns

    def sleep(self, seconds: float) -> None:
        self.sleep_until(self.at_ns + round(seconds * NS_PER_S))

    def sleep_until(self, at_ns: int) -> None:
        if at_ns > self.at_ns:
            sleeper = at_ns, Event()
            self._sleepers.append(sleeper)
            try:
                sleeper[1].wait()
            finally:
                self._sleepers.remove(sleeper)

    def advance(self, seconds: float) -> None:
        """Advance the clock, with a stop at each instant at which a greenlet is due."""
        end_ns = self.at_ns + round(seconds * NS_PER_S)
        gevent.idle()
        while due := [sleeper for sleeper in self._sleepers if sleeper[0] <= end_ns]:
            self.at_ns, event = min(due, key=lambda sleeper: sleeper[0])
            event.set()
            gevent.idle()
        self.at_ns = end_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    sleeping = SimpleNamespace(spawn=gevent.spawn, getcurrent=gevent.getcurrent, sleep=clock.sleep)
    monkeypatch.setattr(steering, "gevent", sleeping)
    monkeypatch.setattr(steering, "now_ns", clock.now_ns)
    monkeypatch.setattr(steering, "sleep_until", clock.sleep_until)
    return clock


class Run:
    """Stub of a run with the attributes that steering uses."""

    def __init__(self, scenario: str, users: int | None = None) -> None:
        self.spec = resolve(RunOptions(scenario, "http://127.0.0.1:1", users=users))
        self.sent: list[float] = []
        self.started: list[tuple[int, float]] = []
        self.entries: list[Mark] = []
        self.marks = SimpleNamespace(add=self._mark)
        self.steering = Steering(self.spec, self.marks, self._announce_rate)  # type: ignore[arg-type]
        self.steering.start_users = lambda users, per_s: self.started.append((users, per_s))
        self.starts_ended = 0
        self.steering.end_start = self._end_start

    def _end_start(self) -> None:
        self.starts_ended += 1

    def _mark(self, kind: str, text: str, at_wall_ns: int | None = None, **detail: Any) -> None:
        self.entries.append(msgspec.convert({"wall_ns": 0, "kind": kind, "text": text, "t_s": 1.0, **detail}, Mark))

    def _announce_rate(self, rate: float) -> int:
        self.sent.append(rate)
        return steering.now_ns()

    @property
    def texts(self) -> list[str]:
        return [entry.text for entry in self.entries]


@given(st.floats(0, 1e5), st.floats(0, 1e5), st.floats(1, 1e5), st.floats(-10, 1e6), st.floats(-10, 1e6))
def test_a_ramp_is_linear(first: float, last: float, over_s: float, early_s: float, late_s: float) -> None:
    ramp = Ramp(0, first, last, over_s)
    early, late = (ramp.level(round(at_s * NS_PER_S)) for at_s in sorted((early_s, late_s)))
    slack = 1e-9 * max(first, last, 1.0)
    assert min(first, last) - slack <= early <= max(first, last) + slack
    assert (late - early) * (last - first) >= -slack * max(first, last, 1.0)
    assert ramp.level(0) == first
    assert ramp.level(round((over_s + 1) * NS_PER_S)) == pytest.approx(last)


def test_users_of_a_closed_loop_change_at_once() -> None:
    run = Run("chat", users=20)
    run.steering.set_level(60)
    assert run.started == [(60, 40.0)]
    assert run.texts == ["users changed by hand: 20 -> 60"]
    assert run.steering.state() == {"unit": "users", "whole": True, "level": 60, "ramp": None}
    run.steering.set_level(60)
    assert len(run.entries) == 1
    assert load_text(run.spec.scenario, run.entries).users_or_rate == "20 to 60 users"


def test_the_rate_of_an_open_loop_changes_at_once() -> None:
    run = Run("chat-open")
    run.steering.set_level(3.5)
    run.steering.set_level(0)
    assert run.sent == [3.5, 0.0]
    assert [rate for _, rate in run.steering.rate_changes] == [3.5, 0.0]
    assert run.started == []
    assert run.texts[0] == "rate changed by hand: 2 -> 3.5 sessions/s"
    assert run.entries[0].sessions_per_s == 3.5
    assert load_text(run.spec.scenario, run.entries).users_or_rate.startswith("0 to 3.5/s")


def test_a_ramp_of_users_is_one_start_with_a_mark_at_each_end(clock: Clock) -> None:
    run = Run("chat", users=20)
    run.steering.ramp_to(30, 1.0)
    clock.advance(0.3)
    state = run.steering.state()
    assert (state["level"], state["ramp"]) == (23, {"to": 30, "left_s": 0.7})
    clock.advance(0.9)
    assert run.started == [(30, 10.0)]
    assert run.texts == ["ramp by hand: 20 -> 30 users in 1 s", "ramp by hand ended at 30 users"]
    assert run.steering.state()["ramp"] is None
    assert run.steering.level() == 30


def test_a_ramp_of_the_rate_sends_rising_rates(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "_STEP_S", 0.2)
    run = Run("chat-open")
    run.steering.ramp_to(12, 1.0)
    begun_ns = clock.at_ns
    clock.advance(1.3)
    assert run.sent == pytest.approx([4, 6, 8, 10, 12])
    sent_s = [(at_ns - begun_ns) / NS_PER_S for at_ns, _ in run.steering.rate_changes]
    assert sent_s == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert run.texts == ["ramp by hand: 2 -> 12 sessions/s in 1 s", "ramp by hand ended at 12 sessions/s"]


@pytest.mark.parametrize("scenario", ["chat", "chat-open"])
def test_hold_ends_a_ramp_at_its_level(scenario: str, clock: Clock) -> None:
    run = Run(scenario)
    first = run.steering.level()
    run.steering.hold()
    assert run.entries == []
    run.steering.ramp_to(first + 100, 10.0)
    clock.advance(0.5)
    run.steering.hold()
    held = run.steering.level()
    assert held == first + 5
    clock.advance(0.3)
    assert run.steering.level() == held
    assert run.texts[-1] == f"ramp held by hand at {held:g} {run.steering.unit}"
    assert run.steering.state()["ramp"] is None


@pytest.mark.parametrize("order", ["set", "ramp"])
def test_an_order_of_the_current_level_holds_a_ramp(order: str) -> None:
    run = Run("chat", users=20)
    run.steering.ramp_to(500, 600.0)
    if order == "set":
        run.steering.set_level(20)
    else:
        run.steering.ramp_to(20, 10.0)
    assert run.started[-1] == (20, 1.0)
    assert run.texts[-1] == "ramp held by hand at 20 users"
    assert run.steering.state()["ramp"] is None


def test_the_current_number_of_users_on_locusts_page_ends_a_ramp_with_a_mark() -> None:
    run = Run("chat", users=20)
    run.steering.ramp_to(500, 600.0)
    run.steering.change_users(20, "hand")
    assert run.texts[-1] == "ramp by hand ended at 20 users"


def test_a_new_level_and_a_change_on_locusts_page_end_a_ramp() -> None:
    for change in (lambda run: run.steering.set_level(7), lambda run: run.steering.change_users(7, "hand")):
        run = Run("chat", users=20)
        run.steering.ramp_to(500, 1.0)
        gevent.sleep(0.1)
        change(run)
        gevent.sleep(1.2)
        assert run.steering.level() == 7
        assert not any("ended" in text for text in run.texts)


@pytest.mark.parametrize("scenario", ["chat", "chat-open"])
def test_the_end_of_the_load_ends_a_ramp_with_a_mark_of_its_level(
    scenario: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "_STEP_S", 0.1)
    run = Run(scenario)
    first = run.steering.level()
    run.steering.end_load()
    assert run.entries == []
    run.steering.ramp_to(first + 100, 10.0)
    clock.advance(0.5)
    run.steering.end_load()
    reached, sent = run.steering.level(), list(run.sent)
    assert reached == first + 5
    assert run.texts[1:] == [f"ramp by hand ended with the load at {reached:g} {run.steering.unit}"]
    shown = load_text(run.spec.scenario, run.entries).users_or_rate
    assert shown.startswith(f"{number(first)} to {number(reached)}")
    clock.advance(0.3)
    assert (run.sent, run.starts_ended, len(run.entries)) == (sent, 1, 2)
    assert run.steering.state()["ramp"] is None


@pytest.mark.parametrize("order", ["hold", "set_level", "ramp_to", "end_load"])
def test_a_due_step_of_an_ended_ramp_is_not_sent(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "_STEP_S", 0.1)
    run = Run("chat-open")
    run.steering.ramp_to(102, 10.0)
    gevent.spawn_later(0.05, time.sleep, 0.15)  # blocks the event loop: the order and the step are due together
    gevent.sleep(0.09)
    arguments = {"set_level": (7.0,), "ramp_to": (7.0, 100.0)}.get(order, ())
    getattr(run.steering, order)(*arguments)
    sent = list(run.sent)
    gevent.sleep(0.01)  # less than a step
    assert run.sent == sent


@pytest.mark.parametrize("level", [0, -1, 2.5, 1e9, float("nan"), float("inf")])
def test_an_impossible_number_of_users_is_refused(level: float) -> None:
    run = Run("chat")
    with pytest.raises(UsageError, match="users: "):
        run.steering.set_level(level)
    with pytest.raises(UsageError, match="users: "):
        run.steering.ramp_to(level, 10)
    assert run.entries == run.started == []


@pytest.mark.parametrize("over_s", [0, 0.5, 1e9, float("nan")])
def test_an_impossible_duration_is_refused(over_s: float) -> None:
    with pytest.raises(UsageError, match="out of range"):
        Run("chat-open").steering.ramp_to(5, over_s)
