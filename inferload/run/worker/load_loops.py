"""Load loops of a worker: users of a closed loop, or scheduled arrivals of an open loop, start sessions."""

from collections.abc import Iterator

import gevent
from gevent.event import Event

from inferload.base.clock import NS_PER_S, now_ns
from inferload.run.process.greenlets import sleep_until
from inferload.run.worker.session_context import SessionContext, entered
from inferload.run.worker.session_runner import SessionRunner
from inferload.turns.record import PhaseWindow
from inferload.workload.arrivals import schedule_of, stripe
from inferload.workload.content.script import Script, Session
from inferload.workload.isolation import isolation
from inferload.workload.sessions import Sessions

_TIMER_NS = NS_PER_S // 10  # arrivals that are late by up to this are delayed by a timer or a greenlet, and still sent
IDLE_S = 0.5  # interval at which a user without a session tries again


def run_session(run: SessionContext, index: int, planned_ns: int, admitted: bool = False) -> int:
    """Run session `index`: each turn follows the previous answer and a pause. A failed turn ends the session.

    `admitted`: its first turn has its slot in flight already. Return the instant (ns) from which its user is free: the end of the
    last answer, not the later moment at which this process handled it; after a failed turn, some time later.
    """
    try:
        return _run_session(run, index, planned_ns, admitted)
    finally:
        run.end_session()


def _run_session(run: SessionContext, index: int, planned_ns: int, admitted: bool) -> int:
    sessions = run.part.sessions
    session = Session(index, sessions.class_of(index), _script(sessions, index))
    window = run.windows.at(planned_ns)
    if not admitted and not entered(run, session.class_name, window):
        _count_at_limit(run, session.class_name, window)
        return planned_ns
    run.tallies.at(window.phase, session.class_name, window.step).sessions_started += 1
    delayed = not admitted and run.part.limiter is not None
    if delayed and run.windows.at(now_ns()).phase != window.phase:
        run.tallies.at(window.phase, session.class_name, window.step).sessions_postponed += 1
    assignment = run.part.assignment
    separate = isolation(run.part.scenario.cache.isolate, assignment.salt, index, assignment.takes_salt)
    ended = SessionRunner(run, session, separate, planned_ns).perform()
    if ended.complete:
        run.tallies.at(window.phase, session.class_name, window.step).sessions_completed += 1
    return ended.at


def _count_at_limit(run: SessionContext, class_name: str, window: PhaseWindow) -> None:
    """Count a session as dropped because max_in_flight was reached."""
    tally = run.tallies.at(window.phase, class_name, window.step)
    tally.sessions_dropped += 1
    tally.sessions_at_limit += 1


def _script(sessions: Sessions, index: int) -> Script:
    """Begin a session at its first turn, which fails if the session's data cannot be read any more."""
    yield from sessions.begin(index).script


class ClosedLoop:
    """Each Locust user begins a new session when its last one is over."""

    exhausted = False  # users always begin another session

    def __init__(self, run: SessionContext) -> None:
        self._run = run
        self._indexes = self._indexes_of(None)
        # A user class with a scenario of its own takes the sessions of the mix's class with its name.
        self._by_class = {name: self._indexes_of(name) for name in run.part.sessions.classes}

    def _indexes_of(self, class_name: str | None) -> Iterator[int]:
        """Return the indexes of this worker's sessions in order, of one class or of all."""
        part = self._run.part
        sessions = part.sessions
        indexes = filter(sessions.sends, stripe(part.assignment.stripe, part.assignment.stripes))
        return indexes if class_name is None else (index for index in indexes if sessions.class_of(index) == class_name)

    def user(self, free_ns: int | None, class_name: str = "") -> int:
        """Run one session of a user that has been free since `free_ns`; None for a new user. Return the instant of its end (ns).

        `class_name`: of the user.
        """
        run = self._run
        sleep_until(run.windows.load_start_ns or 0)  # a timer of the loop may go off some milliseconds early
        planned_ns = now_ns() if free_ns is None else free_ns
        sleep_until(planned_ns)
        window = run.windows.at(planned_ns)
        if not run.takes(window) or not run.part.quota.take_session(window.phase):
            gevent.sleep(IDLE_S)
            return planned_ns
        index = next(self._by_class.get(class_name, self._indexes))
        run.sessions_running += 1
        run.tallies.at(window.phase, run.part.sessions.class_of(index), window.step).sessions_planned += 1
        return run_session(run, index, planned_ns)

    def booked_ns(self) -> int:
        """Return now: in a closed loop every due session has already started."""
        return now_ns()

    def close(self, until_ns: int) -> None:
        """Do nothing: users begin the sessions."""


class OpenLoop:
    """Sessions begin by schedule, independently of earlier ones; the number of Locust's users only represents the rate."""

    def __init__(self, run: SessionContext, rate: float) -> None:
        self._run = run
        part, assignment = run.part, run.part.assignment
        self._schedule = schedule_of(part.scenario, part.sessions, rate, assignment.stripe, assignment.stripes)
        self._drops = part.scenario.arrivals.drops
        self._changed = Event()
        self._greenlet: gevent.Greenlet | None = None
        self._start_ns = 0
        self._closed_ns: int | None = None  # arrivals at or after this time are not this worker's

    def begin(self, start_ns: int) -> None:
        """Begin arrivals at an instant. Idempotent."""
        if self._greenlet is None:
            self._start_ns = start_ns
            self._greenlet = gevent.spawn(self._arrive)

    @property
    def exhausted(self) -> bool:
        """True if no arrival is left at any rate."""
        return self._schedule.exhausted

    def booked_ns(self) -> int:
        """Return the instant before which all due arrivals are counted; one that waits for its greenlet is not yet."""
        if self._closed_ns is not None:
            return self._closed_ns
        at_ns, arrival = now_ns(), self._schedule.peek()
        return at_ns if arrival is None else min(at_ns, self._start_ns + round(arrival.due_s * NS_PER_S))

    def set_rate(self, at_ns: int, rate: float) -> None:
        """Set the rate of all workers together from an instant on; the sequence of arrivals stays the same."""
        self._schedule.set_rate(max(0.0, (at_ns - self._start_ns) / NS_PER_S), rate)
        self._changed.set()

    def user(self, free_ns: int | None, class_name: str = "") -> int:
        """Sleep: in an open loop users begin no sessions."""
        gevent.sleep(3600)
        return now_ns()

    def close(self, until_ns: int) -> None:
        """End the arrivals at an instant. One due before it still begins if it is late by a timer's delay only.

        Others that have not begun are counted as dropped.
        """
        if self._greenlet is not None:
            self._greenlet.kill()
        run = self._run
        end_ns = run.windows.load_end_ns
        self._closed_ns = until_ns if end_ns is None else min(until_ns, end_ns)
        while (arrival := self._schedule.peek()) is not None:
            due_ns = self._start_ns + round(arrival.due_s * NS_PER_S)
            if due_ns >= self._closed_ns:
                return
            self._schedule.next()
            window, class_name = run.windows.at(due_ns), run.part.sessions.class_of(arrival.index)
            if not run.part.quota.take_session(window.phase):
                return
            if 0 <= now_ns() - due_ns <= _TIMER_NS:
                self._begin_session(arrival.index, due_ns, window)
                continue
            tally = run.tallies.at(window.phase, class_name, window.step)
            tally.sessions_planned += 1
            tally.sessions_dropped += 1

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
            end_ns = run.windows.load_end_ns
            if not run.open or (end_ns is not None and due_ns >= end_ns):
                return
            window = run.windows.at(due_ns)
            if not run.part.quota.take_session(window.phase):
                return
            self._schedule.next()
            self._begin_session(arrival.index, due_ns, window)
            if self.exhausted:
                run.check_spent()
                return

    def _begin_session(self, index: int, due_ns: int, window: PhaseWindow) -> None:
        """Begin a due session in a greenlet of its own; drop it if the limit of turns in flight requires it."""
        run, class_name = self._run, self._run.part.sessions.class_of(index)
        run.tallies.at(window.phase, class_name, window.step).sessions_planned += 1
        admitted = run.part.limiter is None or run.part.limiter.try_enter()
        if not admitted and self._drops:
            _count_at_limit(run, class_name, window)
            return
        run.sessions_running += 1
        gevent.spawn(run_session, run, index, due_ns, admitted)
