"""Execution of one session: send the turns of its script on time, and pass the answers back to the script."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import gevent

from inferload.base.clock import NS_PER_S, now_ns
from inferload.client.requests.bodies import BodySettings, BodyWriter
from inferload.client.turn_record import AFTER_FAILURE_NS, SessionCookies, TurnRequest, TurnResult
from inferload.run.process.greenlets import sleep_until
from inferload.run.worker.session_context import TOO_LARGE, SessionContext, entered
from inferload.workload.content.script import (
    Ask,
    EffectResult,
    ScriptEnd,
    Session,
    Sink,
    TurnReply,
    Work,
    Worked,
    interpret,
)
from inferload.workload.isolation import Isolation
from inferload.workload.sessions import model_of

_UNKNOWN_S = 0.05  # between two looks for the start of the measure phase
_UNMADE = Ask((), None)  # for a turn that could not be built


class SessionRunner:
    """A session whose first turn has its slot in flight. `arrived_ns`: instant at which it was due."""

    def __init__(self, run: SessionContext, session: Session, isolated: Isolation, arrived_ns: int) -> None:
        self._run = run
        self._session = session
        self._arrived_ns = arrived_ns
        self._shifted_ns = 0 if run.idle is None else run.idle.shifted_ns  # before it
        self._slot = run.part.limiter  # of the first turn, taken by the caller
        self._first = True  # the next turn is the first: it has its slot, and is sent even after the end of the load
        self._counted = True  # the next turn is in the run's quota already
        self._isolated = isolated
        scenario, assignment = run.part.scenario, run.part.assignment
        of_class = run.class_options.get(session.class_name)
        model = model_of(scenario, session.index, session.class_name) or assignment.model
        request = scenario.request if of_class is None else of_class.request
        self._settings = BodySettings(model, request, scenario.seed)
        affinity = scenario.request.affinity_header
        self._undo: list[Callable[[], Any]] = []  # cleanup at the end of the session
        self._affinity = ((affinity, f"{assignment.run_id}-s{session.index}"),) if affinity else ()
        self._of_class = of_class
        self._token_header = scenario.request.session_token_header
        self._headers = self._affinity
        self._cookies = SessionCookies() if scenario.request.cookies else None

    def perform(self) -> ScriptEnd[int]:
        """Run the session's script to its end, to the first failed turn, or until the run takes no more turns."""
        closing: gevent.Greenlet | None = None
        idle = self._run.idle
        if idle is not None:
            idle.change(1)
        try:
            ended = interpret(self._session.script, _TurnSink(self, ""), self._arrived_ns)
        finally:
            if idle is not None:
                idle.change(-1)
            self._leave()
            self._run.turns.clients.forget(self._session.index)
            if self._undo:  # a stopped user does not wait for it
                closing = gevent.spawn(self._close)
        if closing is not None:
            closing.join()
        return ended

    def _close(self) -> None:
        for undo in self._undo:
            outcome = self._run.in_thread(partial(_outcome, undo))
            if outcome.error is not None:
                self._note("exceptions when a session's own code was closed", outcome.error)

    def bodies(self) -> BodyWriter:
        """Return a writer for the request bodies of one script."""
        return BodyWriter(self._run.part.texts, self._settings, self._isolated)

    def turn(self, ask: Ask, path: str, number: int, at_ns: int, bodies: BodyWriter) -> EffectResult[int]:
        """Send one turn at its planned time and wait for its answer."""
        if ask.phase == "warmup" and self._run.windows.at(max(at_ns, now_ns())).phase != "warmup":
            self._run.part.sessions.notes["turns of the warm-up left out: it had ended"] += 1
            return EffectResult(at_ns, TurnReply(None, 0))
        planned_ns = self._planned_ns(ask, at_ns)
        if not self._admitted(planned_ns):
            return EffectResult(now_ns())
        try:
            result = self._ask(self._request(ask, path, number, planned_ns, bodies.body(ask, f"{path}.{number}")), ask)
            if result.session_token and self._token_header is not None:
                self._headers = (*self._affinity, (self._token_header, result.session_token))
        except Exception as error:  # noqa: BLE001  values of a session's own code may raise anything
            return EffectResult(self.unmade(error, path, number, planned_ns))
        finally:
            self._run.leave()
        if result.native is None:
            self._note(TOO_LARGE)
        return EffectResult(result.free_ns, result.reply() if result.record.ok and result.native is not None else None)

    def work(self, work: Work, path: str, number: int, at_ns: int) -> EffectResult[int]:
        """Execute a session's own code in a thread."""
        if not work.pure:
            self._leave()
        with self._run.turns.starting() if self._first else nullcontext():
            outcome = self._work(work)
        at_ns = at_ns if work.pure else now_ns() - outcome.waited_ns
        if outcome.error is not None:
            return EffectResult(self._broken(outcome.error, path, number, at_ns))
        return EffectResult(at_ns, Worked(outcome.value))

    def together(self, scripts: Sequence[Callable[[], ScriptEnd[int]]]) -> list[ScriptEnd[int]]:
        """Run scripts at the same time, each in a greenlet."""
        self._leave()
        if self._run.idle is not None:
            scripts = self._run.idle.forked(scripts)
        greenlets = [gevent.spawn(script) for script in scripts]
        try:
            gevent.joinall(greenlets, raise_error=True)
        finally:  # when the user is stopped, its sub-agents are stopped too
            gevent.killall([greenlet for greenlet in greenlets if not greenlet.dead], block=False)
        return [greenlet.value for greenlet in greenlets]

    def unmade(self, error: Exception, path: str, number: int, planned_ns: int) -> int:
        """Count a turn that could not be built; return the instant from which its user is free."""
        self._note("turns that could not be made", error)
        return self._broken(error, path, number, planned_ns)

    def _work(self, work: Work) -> "_Outcome":
        called_ns = now_ns()
        outcome: _Outcome = self._run.in_thread(partial(_outcome, work.call))
        outcome.waited_ns = max(0, outcome.began_ns - called_ns)
        if work.undo is not None and outcome.error is None:
            self._undo.append(partial(work.undo, outcome.value))
        if outcome.error is not None:
            self._note("sessions ended by an exception of their own code", outcome.error)
        return outcome

    def _note(self, problem: str, error: Exception | None = None) -> None:
        self._run.note(self._session.class_name, problem, error)

    def _broken(self, error: Exception, path: str, number: int, planned_ns: int) -> int:
        """Count a turn that could not be built as a client error; return the instant from which its user is free."""
        request = self._request(None, path, number, planned_ns)
        self._run.turns.fail(request, self._session.index, f"{type(error).__name__}: {error}")
        return now_ns() + AFTER_FAILURE_NS

    def _planned_ns(self, ask: Ask, at_ns: int) -> int:
        """Return the planned instant of a turn, after the waits on which it depends."""
        run, since_ns, idle = self._run, self._arrived_ns, self._run.idle
        if ask.phase == "measure":
            if self._first:  # it is not sent if the load ends before
                self._leave()
                self._counted = False
            while (start_ns := run.windows.measure_start_ns) is None and run.open:
                gevent.sleep(_UNKNOWN_S)
            since_ns = since_ns if start_ns is None else start_ns
        if idle is None:
            return ask.planned_ns(at_ns, since_ns)
        before_ns = 0 if ask.phase == "measure" else self._shifted_ns
        return idle.wait(ask.planned_ns(at_ns, since_ns - (idle.shifted_ns - before_ns)))

    def _admitted(self, planned_ns: int) -> bool:
        """Wait for a turn's planned instant and its slot; False if the run takes no more turns. The first turn is always sent."""
        run = self._run
        sleep_until(planned_ns)
        counted, self._counted = self._counted, False
        if self._first:
            self._first, self._slot = False, None
            run.turns.await_turn()
            return True
        window = run.windows.at(planned_ns)
        if not run.takes(window) or not (counted or run.part.quota.take_turn(window.phase)):
            return False
        if not entered(run, self._session.class_name, window):
            return False
        run.turns.await_turn()
        if not run.open:
            run.leave()
        return run.open

    def _request(self, ask: Ask | None, path: str, number: int, planned_ns: int, body: bytes = b"") -> TurnRequest:
        """Return the request of a turn. `ask` None: of a turn that could not be built."""
        session, window = self._session, self._run.windows.at(planned_ns)
        session_id, asked = f"s{session.index}{path}", ask or _UNMADE
        return TurnRequest(
            body=body,
            turn_id=f"{session_id}.{number}",
            session_id=session_id,
            turn_index=number,
            class_name=session.class_name,
            phase=window.phase,
            planned_ns=planned_ns,
            max_tokens=asked.output_tokens,
            step=window.step,
            pause=asked.pause if ask is not None and (path or number) else None,
            final=asked.final,
            headers=(*self._class_headers(), *self._headers, *asked.headers),
            model=asked.model or self._settings.model,
            cookies=self._cookies,
            keep=asked.keep,
        )

    def _class_headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers of the class. A session can move to another server, which may get no key."""
        of_class, clients = self._of_class, self._run.turns.clients
        if of_class is None:
            return ()
        return of_class.headers_to(of_class.key is not None and clients.may_have_key(self._session.index))

    def _ask(self, request: TurnRequest, ask: Ask) -> TurnResult:
        turn = self._run.turns.send(request, self._session.index)
        cut_ns = None if ask.cancel_after_s is None else request.planned_ns + round(ask.cancel_after_s * NS_PER_S)
        if cut_ns is not None and not turn.wait_until(cut_ns):
            turn.cancel()
        return turn.wait()

    def _leave(self) -> None:
        """Release the first turn's slot: there is no first turn, or another step precedes it."""
        slot, self._slot, self._first = self._slot, None, False
        if slot is not None:
            slot.leave()


class _TurnSink(Sink[int]):
    """Executes the steps of one script; times are nanoseconds of this process's clock."""

    def __init__(self, runner: SessionRunner, path: str) -> None:
        self._runner = runner
        self._path = path
        self._bodies = runner.bodies()

    def ask(self, ask: Ask, number: int, at: int) -> EffectResult[int]:
        return self._runner.turn(ask, self._path, number, at, self._bodies)

    def work(self, work: Work, number: int, at: int) -> EffectResult[int]:
        return self._runner.work(work, self._path, number, at)

    def child(self, name: str) -> "_TurnSink":
        return _TurnSink(self._runner, f"{self._path}/{name}")

    def together(self, scripts: Sequence[Callable[[], ScriptEnd[int]]]) -> list[ScriptEnd[int]]:
        return self._runner.together(scripts)

    def raised(self, error: Exception, number: int, at: int) -> int:
        return self._runner.unmade(error, self._path, number, at)


@dataclass(slots=True)
class _Outcome:
    """Result or exception of a call in a thread. `waited_ns`: time until a thread was free."""

    began_ns: int
    value: Any = None
    error: Exception | None = None
    waited_ns: int = 0


def _outcome(call: Callable[[], Any]) -> _Outcome:
    """Call user code. Its exception must not end the user, and is returned."""
    outcome = _Outcome(now_ns())
    try:
        outcome.value = call()
    except Exception as error:  # noqa: BLE001  user code may raise anything
        outcome.error = error
    return outcome
