"""Turns of a Locust user's own tasks: sent, recorded and counted like the turns of a scenario."""

from contextlib import ExitStack
from functools import cache
from typing import Literal

import gevent
from gevent import GreenletExit

from inferload.base.clock import NS_PER_S, now_ns
from inferload.client.requests.calls import Call
from inferload.client.turn import Turn
from inferload.client.turn_record import SessionCookies, TurnRequest, TurnResult
from inferload.run.process.greenlets import sleep_until
from inferload.run.worker.session_context import TOO_LARGE, SessionContext
from inferload.scenario.schema.endpoints import MaxTokensField
from inferload.scenario.schema.request import RequestOptions
from inferload.turns.bounded_names import BoundedNames
from inferload.turns.record import Failure, PhaseWindow
from inferload.workload.arrivals import stripe


class TaskContext:
    """State that the task sessions of a worker share: its run, the next session's index, and the bounded names of turns."""

    def __init__(self, run: SessionContext) -> None:
        self.run = run
        self.indexes = stripe(run.part.assignment.stripe, run.part.assignment.stripes)
        self.names = BoundedNames(kind="turns")


class TaskSession:
    """A session of a task: one turn, or the turns of a conversation. It is counted from its first turn on."""

    def __init__(self, tasks: TaskContext) -> None:
        self._tasks = tasks
        self._run = tasks.run
        self._index = next(tasks.indexes)
        self._turns = 0
        self._begun: tuple[PhaseWindow, str] | None = None
        self._all_ok = True
        self._cookies = SessionCookies() if self._run.part.scenario.request.cookies else None

    def send(
        self,
        call: Call,
        name: str,
        *,
        late_ns: int = 0,
        deferred: bool = False,
        after_tool: bool = False,
        keep: bool = False,
    ) -> TurnResult:
        """Send a turn, planned for this instant, and wait for its end.

        `late_ns`: delay with which this process woke the user; the turn was due that much earlier.
        `keep`: later turns carry the answer.
        `deferred`: count the turn at its `release`. GreenletExit, as in a user that Locust stops, if the run takes no more turns.
        """
        run, name = self._run, self._tasks.names.of(name)
        _await_load(run)
        called_ns = now_ns()
        planned_ns = max(called_ns - late_ns, run.windows.load_start_ns or 0)
        body = call.request_body(request_settings(run), run.part.assignment.model)
        window = run.windows.at(planned_ns)
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
            model=call.model or run.part.assignment.model,
            cookies=self._cookies,
            keep=keep,
        )
        run.sessions_running += 1
        try:
            with ExitStack() as undo:
                run.turns.await_turn()
                if deferred:
                    run.turns.defer_count(request.turn_id)
                    undo.callback(run.turns.release, request.turn_id)  # a user that is stopped cannot judge the answer
                result = _ended(run.turns.send(request, self._index, call.endpoint), call, called_ns)
                undo.pop_all()
        finally:
            run.end_session()
        if result.native is None:
            run.note(name, TOO_LARGE)
        self.judge(ok=result.record.ok and result.native is not None)
        return result

    def release(self, turn_id: str, rejected: str | None) -> None:
        """Count a deferred turn. `rejected`: reason why its caller rejected the answer."""
        self._run.turns.release(turn_id, rejected)

    def judge(self, *, ok: bool) -> None:
        """Record the success or failure of a turn."""
        self._all_ok = self._all_ok and ok

    def close(self) -> None:
        """Count the session as completed if all of its turns succeeded. Idempotent."""
        self._run.turns.clients.forget(self._index)
        if self._begun is None or not self._all_ok:
            return
        (window, name), self._begun = self._begun, None
        self._run.tallies.at(window.phase, name, window.step).sessions_completed += 1

    def _admit(self, name: str, window: PhaseWindow) -> None:
        run, first = self._run, self._turns == 0
        take = run.part.quota.take_session if first else run.part.quota.take_turn
        while run.open and not run.takes(window):  # the load has ended, and the drain is late: Locust counts the user
            gevent.sleep(0.01)
        if not run.takes(window) or not take(window.phase):
            raise GreenletExit
        if first:
            self._begun = window, name
            tally = run.tallies.at(window.phase, name, window.step)
            tally.sessions_planned += 1
            tally.sessions_started += 1


def request_settings(run: SessionContext) -> RequestOptions:
    """Return the scenario's request settings for tasks; if the scenario plans sessions of its own, only what servers require."""
    request = run.part.scenario.request
    return request if run.part.scenario.of_tasks else _plain(request.max_tokens_field, request.usage)


@cache
def _plain(max_tokens_field: Literal["auto", MaxTokensField], usage: bool) -> RequestOptions:
    return RequestOptions(ignore_eos=False, max_tokens_field=max_tokens_field, usage=usage)


def _await_load(run: SessionContext) -> None:
    """Wait until the load begins: Locust may start users some milliseconds early."""
    while run.open and run.windows.load_start_ns is None:
        gevent.sleep(0.01)
    sleep_until(run.windows.load_start_ns or 0)


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
