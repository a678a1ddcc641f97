"""One session of a worker: sends the turns of its script in time, and passes the answers back to the script."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gevent

from inferload.client.turn import TurnRequest, TurnResult
from inferload.content.script import Ask, Ended, Reply, Session, Sink, Step, Work, Worked, interpret
from inferload.measure.clock import NS_PER_S, now_ns
from inferload.process.greenlets import sleep_until
from inferload.requests.bodies import BodySettings, BodyWriter, Isolation
from inferload.worker.session_context import SessionContext, TurnPermit, entered
from inferload.workload.models import model_of

logger = logging.getLogger(__name__)

# A person whose request failed does not ask again at once; without this a server that is down would be asked in a loop.
AFTER_FAILURE_NS = NS_PER_S


class SessionRunner:
    """A session under way, whose first turn has its place in flight. `arrived_ns`: when it was due to begin."""

    def __init__(self, run: SessionContext, session: Session, isolated: Isolation, arrived_ns: int) -> None:
        self._run = run
        self._session = session
        self._arrived_ns = arrived_ns
        self._place = run.limiter  # in flight: the first turn's, which was taken for it
        self._first = True  # nothing came before the next turn: it has its place, and may always be sent
        self._counted = True  # the next turn is in the run's count already
        self._isolated = isolated
        self._settings = BodySettings.of(run.scenario, model_of(run.scenario, session.index) or run.assignment.model)
        affinity = run.scenario.request.affinity_header
        self._undo: list[Callable[[], Any]] = []  # what is to be done when it is over
        self._headers = ((affinity, f"{run.assignment.run_id}-s{session.index}"),) if affinity else ()

    def perform(self) -> Ended[int]:
        """Run the session's script to its end, to the first failed turn, or until the run takes no more turns."""
        closing: gevent.Greenlet | None = None
        try:
            ended = interpret(self._session.script, _Wire(self, ""), self._arrived_ns)
        finally:
            self._leave()
            if self._undo:  # a user who is stopped does not wait for it
                closing = gevent.spawn(self._close)
        if closing is not None:
            closing.join()
        return ended

    def _close(self) -> None:
        for undo in self._undo:
            outcome = self._run.beside_the_loop(partial(_outcome, undo))
            if outcome.error is not None:
                self._noted("exceptions when a session's own code was closed", outcome.error)

    def bodies(self) -> BodyWriter:
        """Return a writer for the request bodies of one script."""
        return BodyWriter(self._run.texts, self._settings, self._isolated)

    def turn(self, ask: Ask, path: str, number: int, at_ns: int, bodies: BodyWriter) -> Step[int]:
        """Send one turn in time and wait for its answer."""
        planned_ns = self._planned(ask, at_ns)
        admitted = self._admitted(planned_ns)
        if admitted is None:
            return Step(now_ns())
        try:
            result = self._ask(self._request(ask, path, number, planned_ns, bodies.body(ask)), ask)
        except Exception as error:  # noqa: BLE001  the session ends, and its failed turn is counted
            return Step(self.unmade(error, path, number, planned_ns))
        finally:
            admitted.leave()
        record = result.record
        if record.failure is not None:
            return Step(record.closed_ns + AFTER_FAILURE_NS)
        return Step(record.closed_ns, _reply(result))

    def work(self, work: Work, path: str, number: int, at_ns: int) -> Step[int]:
        """Do a session's own work in a thread."""
        if not work.pure:
            self._leave()
        outcome = self._work(work)
        at_ns = at_ns if work.pure else now_ns() - outcome.waited_ns
        if outcome.error is not None:
            return Step(self._broken(outcome.error, path, number, at_ns))
        return Step(at_ns, Worked(outcome.value))

    def together(self, scripts: Sequence[Callable[[], Ended[int]]]) -> list[Ended[int]]:
        """Run scripts at the same time, each in a greenlet."""
        self._leave()
        greenlets = [gevent.spawn(script) for script in scripts]
        try:
            gevent.joinall(greenlets, raise_error=True)
        finally:  # a user who is stopped meanwhile takes its sub-agents along
            gevent.killall([greenlet for greenlet in greenlets if not greenlet.dead], block=False)
        return [greenlet.value for greenlet in greenlets]

    def unmade(self, error: Exception, path: str, number: int, planned_ns: int) -> int:
        """Count a turn that could not be made; return when its caller is free."""
        self._noted("turns that could not be made", error)
        return self._broken(error, path, number, planned_ns)

    def _work(self, work: Work) -> _Outcome:
        """What a work came to, done in a thread."""
        asked_ns = now_ns()
        outcome: _Outcome = self._run.beside_the_loop(partial(_outcome, work.call))
        outcome.waited_ns = max(0, outcome.began_ns - asked_ns)
        if work.undo is not None and outcome.error is None:
            self._undo.append(partial(work.undo, outcome.value))
        if outcome.error is not None:
            self._noted("sessions ended by an exception of their own code", outcome.error)
        return outcome

    def _noted(self, what: str, error: Exception) -> None:
        """Say the first of a kind, and count all."""
        notes, name = self._run.sessions.notes, self._session.class_name
        note = f"{name}: {what}"
        if not notes[note]:
            logger.error("%s: %s; more like this are only counted", name, what, exc_info=error)
        notes[note] += 1

    def _broken(self, error: Exception, path: str, number: int, planned_ns: int) -> int:
        """Record a turn that could not be made as failed by a fault on this side; return when its caller is free."""
        request = self._request(None, path, number, planned_ns)
        self._run.fail_turn(request, self._session.index, f"{type(error).__name__}: {error}")
        return now_ns() + AFTER_FAILURE_NS

    def _planned(self, ask: Ask, at_ns: int) -> int:
        """When a turn is to be sent: after the answer before it and a pause, or when a trace says, if that is later."""
        if ask.due_s is not None:
            return max(at_ns, self._arrived_ns + round(ask.due_s * NS_PER_S))
        return at_ns + round(ask.pause_s * NS_PER_S)

    def _admitted(self, planned_ns: int) -> TurnPermit | None:
        """Leave to send a turn, once it is time; None: there are to be no more. A session's first turn may always."""
        run = self._run
        sleep_until(planned_ns)
        counted, self._counted = self._counted, False
        if self._first:
            self._first = False
            place, self._place = self._place, None
            run.await_turn()
            return TurnPermit(place)  # it has its place, and is not to be lost
        window = run.window_of(planned_ns)
        if not run.open or not (counted or run.quota.take_turn(window.phase)):
            return None
        if not entered(run, self._session.class_name, window):
            return None
        run.await_turn()
        if not run.open:
            if run.limiter is not None:
                run.limiter.leave()
            return None
        return TurnPermit(run.limiter)

    def _request(self, ask: Ask | None, path: str, number: int, planned_ns: int, body: bytes = b"") -> TurnRequest:
        """A turn as the wire wants it; of None, one that nobody could make."""
        session = self._session
        window = self._run.window_of(planned_ns)
        first = not path and not number
        return TurnRequest(
            body=body,
            turn_id=f"s{session.index}{path}.{number}",
            session_id=f"s{session.index}{path}",
            turn_index=number,
            class_name=session.class_name,
            phase=window.phase,
            planned_ns=planned_ns,
            step=window.step,
            max_tokens=None if ask is None else ask.output_tokens,
            pause=None if first or ask is None else ask.pause,
            final=False if ask is None else ask.final,
            model=(None if ask is None else ask.model) or self._settings.model,
            headers=(*self._headers, *(() if ask is None else ask.headers)),
        )

    def _ask(self, request: TurnRequest, ask: Ask) -> TurnResult:
        turn = self._run.start_turn(request, self._session.index)
        cut_ns = None if ask.cancel_after_s is None else request.planned_ns + round(ask.cancel_after_s * NS_PER_S)
        if cut_ns is not None and not turn.wait_until(cut_ns):
            turn.cancel()
        return turn.wait()

    def _leave(self) -> None:
        """Something comes before the first turn, or there is none: its place is given back."""
        place, self._place, self._first = self._place, None, False
        if place is not None:
            place.leave()


class _Wire(Sink[int]):
    """Sends the turns of one script of a session; times are nanoseconds of this process's clock."""

    def __init__(self, runner: SessionRunner, path: str) -> None:
        self._runner = runner
        self._path = path
        self._bodies = runner.bodies()

    def ask(self, ask: Ask, number: int, at: int) -> Step[int]:
        return self._runner.turn(ask, self._path, number, at, self._bodies)

    def work(self, work: Work, number: int, at: int) -> Step[int]:
        return self._runner.work(work, self._path, number, at)

    def child(self, name: str) -> _Wire:
        return _Wire(self._runner, f"{self._path}/{name}")

    def together(self, scripts: Sequence[Callable[[], Ended[int]]]) -> list[Ended[int]]:
        return self._runner.together(scripts)

    def raised(self, error: Exception, number: int, at: int) -> int:
        return self._runner.unmade(error, self._path, number, at)


@dataclass(slots=True)
class _Outcome:
    """What a call in a thread returned, or raised. `waited_ns`: how long it waited for the thread."""

    began_ns: int
    value: Any = None
    error: Exception | None = None
    waited_ns: int = 0


def _outcome(call: Callable[[], Any]) -> _Outcome:
    """Somebody's own code must not end a user, nor go unseen."""
    outcome = _Outcome(now_ns())
    try:
        outcome.value = call()
    except Exception as error:  # noqa: BLE001
        outcome.error = error
    return outcome


def _reply(result: TurnResult) -> Reply:
    """What a script is told of a turn."""
    record = result.record
    return Reply(
        result.text,
        record.output_tokens,
        reasoning=result.reasoning,
        tool_calls=result.tool_calls,
        finish_reason=record.finish_reason,
    )
