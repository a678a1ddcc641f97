"""Turns of a Locust user's own tasks: sent, recorded and counted like the turns of a scenario."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import gevent
from gevent import GreenletExit

from inferload.client.turn import Turn
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.measure.clock import NS_PER_S, now_ns
from inferload.measure.record import Failure, PhaseWindow
from inferload.process.greenlets import sleep_until
from inferload.requests.calls import Call
from inferload.scenario.scenario import RequestOptions
from inferload.worker.session_context import SessionContext


class TaskContext(SessionContext, Protocol):
    """Interface of a run for turns of tasks."""

    @property
    def task_sessions(self) -> Iterator[int]: ...

    def bounded_name(self, name: str) -> str: ...


class TaskSession:
    """A session of a task: one turn, or the turns of a conversation. It is counted from its first turn on."""

    def __init__(self, run: TaskContext) -> None:
        self.run = run
        self._index = next(run.task_sessions)
        self._turns = 0
        self._begun: tuple[PhaseWindow, str] | None = None
        self._all_ok = True

    def send(
        self, call: Call, name: str, *, late_ns: int = 0, deferred: bool = False, after_tool: bool = False
    ) -> TurnResult:
        """Send a turn, planned for this instant, and wait for its end.

        `late_ns`: delay with which this process woke the user; the turn was due that much earlier.
        `deferred`: count the turn at its `release`. GreenletExit, as in a user that Locust stops, if the run takes no more turns.
        """
        run, name = self.run, self.run.bounded_name(name)
        _await_load(run)
        called_ns = now_ns()
        planned_ns = max(called_ns - late_ns, run.load_start_ns() or 0)
        body = call.request_body(request_settings(run), run.assignment.model)
        window = run.window_of(planned_ns)
        self._admit(name, window)
        number, self._turns = self._turns, self._turns + 1
        session_id = f"t{self._index}"  # "s" is the prefix of a scenario's sessions
        request = TurnRequest(
            body=body,
            turn_id=f"{session_id}.{number}",
            session_id=session_id,
            turn_index=number,
            class_name=name,
            phase=window.phase,
            planned_ns=planned_ns,
            step=window.step,
            max_tokens=call.max_tokens,
            pause=None if number == 0 else "tool" if after_tool else "think",
            headers=call.headers,
            model=call.model or run.assignment.model,
        )
        run.sessions_running += 1
        try:
            run.await_turn()
            if deferred:
                run.defer_count(request.turn_id)
            result = _ended(run.start_turn(request, self._index, call.endpoint), call, called_ns)
        except BaseException:  # the user is stopped and cannot judge the answer
            if deferred:
                run.release(request.turn_id)
            raise
        finally:
            run.sessions_running -= 1
            run.check_spent()
        self.judge(ok=result.record.ok)
        return result

    def judge(self, *, ok: bool) -> None:
        """Record the success or failure of a turn."""
        self._all_ok = self._all_ok and ok

    def close(self) -> None:
        """Count the session as completed if all of its turns succeeded. Idempotent."""
        if self._begun is None or not self._all_ok:
            return
        (window, name), self._begun = self._begun, None
        self.run.tallies.session_completed(window.phase, name, step=window.step)

    def _admit(self, name: str, window: PhaseWindow) -> None:
        run, first = self.run, self._turns == 0
        if not run.open or not (run.quota.take_session if first else run.quota.take_turn)(window.phase):
            raise GreenletExit
        if first:
            self._begun = window, name
            run.tallies.session_planned(window.phase, name, step=window.step)
            run.tallies.session_started(window.phase, name, step=window.step)


def request_settings(run: SessionContext) -> RequestOptions:
    """Return the scenario's request settings for tasks; defaults if the scenario plans sessions of its own."""
    return run.scenario.request if run.scenario.of_tasks else _PLAIN


_PLAIN = RequestOptions(ignore_eos=False)


def _await_load(run: SessionContext) -> None:
    """Wait until the load begins: Locust may start users some milliseconds early."""
    while run.open and run.load_start_ns() is None:
        gevent.sleep(0.01)
    sleep_until(run.load_start_ns() or 0)


def _ended(turn: Turn, call: Call, called_ns: int) -> TurnResult:
    """Wait for a turn; cancel it or abandon it at the call's limits, which count from the call, not from the due time."""
    cancel_s, timeout_s = call.cancel_after_s, call.timeout_s
    cancels = cancel_s is not None and (timeout_s is None or cancel_s < timeout_s)
    limit_s = cancel_s if cancels else timeout_s
    if limit_s is not None and not turn.wait_until(called_ns + round(limit_s * NS_PER_S)):
        if cancels:
            turn.cancel()
        else:
            turn.give_up(Failure.TIMEOUT_TURN, f"not over after timeout_s={limit_s:g}")
    return turn.wait()
