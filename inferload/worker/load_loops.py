"""How sessions begin on a worker: by users of a closed loop, or by the clock of an open one."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
from gevent.event import Event

from inferload.content.script import Script, Session
from inferload.measure.clock import NS_PER_S, now_ns
from inferload.measure.record import PhaseWindow
from inferload.process.greenlets import sleep_until
from inferload.requests.bodies import isolation
from inferload.scenario.schema.arrivals import OpenArrivals
from inferload.worker.session_context import SessionContext, entered
from inferload.worker.session_runner import SessionRunner
from inferload.workload.arrivals import stripe
from inferload.workload.schedules import schedule_of

_TIMER_NS = (
    NS_PER_S // 10
)  # an arrival as late as this waits for its timer or its greenlet; one that is later was not sent
IDLE_S = 0.5  # a user who has nothing to do looks again after so long


def converse(run: SessionContext, index: int, planned_ns: int, admitted: bool = False) -> int:
    """Run session `index`: every turn after the answer to the one before and its pause. A failed turn ends it.

    `admitted`: its first turn has its place in flight already. Returns when its caller is free again: at the last answer's
    end, whenever this client got round to noticing; a while after a failure.
    """
    try:
        return _converse(run, index, planned_ns, admitted)
    finally:
        run.live -= 1
        run.look_whether_spent()


def _converse(run: SessionContext, index: int, planned_ns: int, admitted: bool) -> int:
    session = _begun(run, index)
    window = run.window_of(planned_ns)
    if not admitted and not entered(run, session.class_name, window):
        run.tallies.session_dropped(window.phase, session.class_name, step=window.step, at_limit=True)
        return planned_ns
    run.tallies.session_started(window.phase, session.class_name, step=window.step)
    separate = isolation(run.scenario.cache.isolate, run.assignment.salt, index, run.assignment.takes_salt)
    ended = SessionRunner(run, session, separate, planned_ns).perform()
    if ended.complete:
        run.tallies.session_completed(window.phase, session.class_name, step=window.step)
    return ended.at


def _begun(run: SessionContext, index: int) -> Session:
    """A session at its beginning; where its data cannot be read any more, one whose first turn says so."""
    try:
        return run.sessions.begin(index)
    except Exception as error:  # noqa: BLE001  whatever it is, the session's books show it
        return Session(index, run.sessions.class_of(index), _raising(error))


def _raising(error: Exception) -> Script:
    yield from ()
    raise error


class ClosedLoop:
    """Each Locust user is one person: a new session whenever the last one is over."""

    exhausted = False  # people always come again

    def __init__(self, run: SessionContext) -> None:
        self._run = run
        self._indexes = self._indexes_of(None)
        # User classes that play scenarios of their own take the sessions of the class that has their name.
        self._by_class = {name: self._indexes_of(name) for name in run.sessions.classes}

    def _indexes_of(self, class_name: str | None) -> Iterator[int]:
        """This worker's sessions in order, of one class or of all."""
        sessions = self._run.sessions
        indexes = filter(sessions.sends, stripe(self._run.assignment.stripe, self._run.assignment.stripes))
        return indexes if class_name is None else (one for one in indexes if sessions.class_of(one) == class_name)

    def user(self, free_ns: int | None, class_name: str = "") -> int:
        """One session of a user who has been free since `free_ns` (None: is new); returns since when it is free again.

        `class_name`: the user's.
        """
        run = self._run
        sleep_until(run.load_start_ns() or 0)  # a timer of the loop may go off some milliseconds early
        planned_ns = now_ns() if free_ns is None else free_ns
        sleep_until(planned_ns)
        window = run.window_of(planned_ns)
        if not run.open or not run.quota.take_session(window.phase):
            gevent.sleep(IDLE_S)
            return planned_ns
        index = next(self._by_class.get(class_name, self._indexes))
        run.live += 1
        run.tallies.session_planned(window.phase, run.sessions.class_of(index), step=window.step)
        return converse(run, index, planned_ns)

    def booked_ns(self) -> int:
        """Whoever is free has begun."""
        return now_ns()

    def close(self, until_ns: int) -> None:
        """Nothing of ours begins sessions."""


class OpenLoop:
    """Sessions begin when the schedule says, whatever became of the ones before; Locust's users only stand for the rate."""

    def __init__(self, run: SessionContext, rate: float) -> None:
        self._run = run
        self._schedule = schedule_of(run.scenario, run.sessions, rate, run.assignment.stripe, run.assignment.stripes)
        self._drops = isinstance(run.scenario.arrivals, OpenArrivals) and run.scenario.arrivals.when_full == "drop"
        self._changed = Event()
        self._greenlet: gevent.Greenlet | None = None
        self._start_ns = 0
        self._closed_ns: int | None = None  # arrivals from here on are nobody's here

    def begin(self, start_ns: int) -> None:
        """Let arrivals come from this instant on."""
        if self._greenlet is None:
            self._start_ns = start_ns
            self._greenlet = gevent.spawn(self._arrive)

    @property
    def exhausted(self) -> bool:
        """Whether nothing arrives any more, whatever the rate."""
        return self._schedule.exhausted

    def booked_ns(self) -> int:
        """Arrivals due before this instant are in the books; one that is due and waits for its greenlet is not."""
        if self._closed_ns is not None:
            return self._closed_ns
        at_ns, arrival = now_ns(), self._schedule.peek()
        return at_ns if arrival is None else min(at_ns, self._start_ns + round(arrival.due_s * NS_PER_S))

    def set_rate(self, at_ns: int, rate: float) -> None:
        """The whole fleet's rate from an instant on; the sequence of arrivals stays the same."""
        self._schedule.set_rate(max(0.0, (at_ns - self._start_ns) / NS_PER_S), rate)
        self._changed.set()

    def user(self, free_ns: int | None, class_name: str = "") -> int:
        """A user has nothing to do by itself."""
        gevent.sleep(3600)
        return now_ns()

    def close(self, until_ns: int) -> None:
        """End the arrivals at an instant. Those due before it in the load still begin if they are late by a timer's delay only.

        Others that have not begun are counted as dropped.
        """
        if self._greenlet is not None:
            self._greenlet.kill()
        run = self._run
        end_ns = run.load_end_ns()
        self._closed_ns = until_ns if end_ns is None else min(until_ns, end_ns)
        while (arrival := self._schedule.peek()) is not None:
            due_ns = self._start_ns + round(arrival.due_s * NS_PER_S)
            if due_ns >= self._closed_ns:
                return
            self._schedule.next()
            window, class_name = run.window_of(due_ns), run.sessions.class_of(arrival.index)
            if not run.quota.take_session(window.phase):
                return
            if 0 <= now_ns() - due_ns <= _TIMER_NS:
                self._begin_session(arrival.index, due_ns, window)
                continue
            run.tallies.session_planned(window.phase, class_name, step=window.step)
            run.tallies.session_dropped(window.phase, class_name, step=window.step)

    def _arrive(self) -> None:
        run = self._run
        while True:
            arrival = self._schedule.peek()
            due_ns = None if arrival is None else self._start_ns + round(arrival.due_s * NS_PER_S)
            self._changed.clear()
            if due_ns is None or due_ns > now_ns():
                self._changed.wait(None if due_ns is None else (due_ns - now_ns()) / NS_PER_S)
                continue
            assert arrival is not None
            end_ns = run.load_end_ns()
            if not run.open or (end_ns is not None and due_ns >= end_ns):
                return
            window = run.window_of(due_ns)
            if not run.quota.take_session(window.phase):
                return
            self._schedule.next()
            self._begin_session(arrival.index, due_ns, window)
            if self.exhausted:
                run.look_whether_spent()
                return

    def _begin_session(self, index: int, due_ns: int, window: PhaseWindow) -> None:
        """A session that is due: begun in a greenlet of its own, or dropped where the limit on turns in flight says so."""
        run, class_name = self._run, self._run.sessions.class_of(index)
        run.tallies.session_planned(window.phase, class_name, step=window.step)
        admitted = run.limiter is None or run.limiter.try_enter()
        if not admitted and self._drops:
            run.tallies.session_dropped(window.phase, class_name, step=window.step, at_limit=True)
            return
        run.live += 1
        gevent.spawn(converse, run, index, due_ns, admitted)
