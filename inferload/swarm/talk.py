"""One session on the wire: its script says what to ask next, this sends it in time and says what came back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import gevent

from inferload.measure.clock import NS_PER_S, now_ns
from inferload.measure.record import PhaseWindow
from inferload.measure.tally import TallySet
from inferload.swarm.limits import Gate, Quota
from inferload.swarm.messages import Assignment
from inferload.wire.turn import Turn, TurnRequest, TurnResult
from inferload.workload.bodies import BodyWriter, Isolation, Settings, Texts
from inferload.workload.models import model_of
from inferload.workload.scenario import Scenario
from inferload.workload.script import Ask, Fork, Reply, Script, Sent, Session, Work, Worked
from inferload.workload.sessions import Sessions

logger = logging.getLogger(__name__)

# A person whose request failed does not ask again at once; without this a server that is down would be asked in a loop.
AFTER_FAILURE_NS = NS_PER_S


class Host(Protocol):
    """What sessions need of the run that they belong to."""

    @property
    def assignment(self) -> Assignment: ...
    @property
    def scenario(self) -> Scenario: ...
    @property
    def sessions(self) -> Sessions: ...
    @property
    def texts(self) -> Texts: ...
    @property
    def tallies(self) -> TallySet: ...
    @property
    def open(self) -> bool: ...
    @property
    def quota(self) -> Quota: ...
    @property
    def gate(self) -> Gate | None: ...

    live: int

    def look_whether_spent(self) -> None: ...
    def window_of(self, at_ns: int) -> PhaseWindow: ...
    def load_start_ns(self) -> int | None: ...
    def load_end_ns(self) -> int | None: ...
    def await_turn(self) -> None: ...
    def beside_the_loop(self, call: Callable[[], Any]) -> Any: ...
    def start_turn(self, request: TurnRequest, session: int) -> Turn: ...


def sleep_until(at_ns: int) -> None:
    """Sleep to an instant, never for an interval: what is late does not make the next one late."""
    while (left_ns := at_ns - now_ns()) > 0:
        gevent.sleep(left_ns / NS_PER_S)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a script ended: since when its caller is free, whether it was run to its end, and its last reply."""

    at_ns: int
    complete: bool
    last: Reply | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """Leave to send one turn. `place`: what it holds of the turns in flight; None: there is no limit."""

    place: Gate | None

    def leave(self) -> None:
        """Give the place back, whatever became of the turn."""
        if self.place is not None:
            self.place.leave()


def entered(run: Host, class_name: str, window: PhaseWindow) -> bool:
    """Wait until a turn more may be in flight, and count the wait; False: the run takes no more turns."""
    gate = run.gate
    if gate is None or gate.try_enter():
        return True
    since_ns = now_ns()
    inside = gate.enter()
    if inside:
        run.tallies.turn_held(window.phase, class_name, now_ns() - since_ns, step=window.step)
    return inside


class Talk:
    """A session under way, whose first turn has its place in flight. `arrived_ns`: when it was due to begin."""

    def __init__(self, run: Host, session: Session, isolated: Isolation, arrived_ns: int) -> None:
        self._run = run
        self._session = session
        self._arrived_ns = arrived_ns
        self._place = run.gate  # in flight: the first turn's, which was taken for it
        self._first = True  # nothing came before the next turn: it has its place, and may always be sent
        self._counted = True  # the next turn is in the run's count already
        self._isolated = isolated
        self._settings = Settings.of(run.scenario, model_of(run.scenario, session.index) or run.assignment.model)
        affinity = run.scenario.request.affinity_header
        self._headers = ((affinity, f"{run.assignment.run_id}-s{session.index}"),) if affinity else ()

    def perform(self) -> Ended:
        """Run the session's script to its end, to the first failed turn, or until the run takes no more turns."""
        try:
            return self._script(self._session.script, "", self._arrived_ns)
        finally:
            self._leave()

    def _script(self, script: Script, path: str, at_ns: int) -> Ended:
        """One script from an instant on; a fork's child has a path of its own."""
        bodies = BodyWriter(self._run.texts, self._settings, self._isolated)
        sent: Sent = None
        last: Reply | None = None
        number = 0
        while True:
            try:
                effect = script.send(sent)
            except StopIteration:
                return Ended(at_ns, complete=True, last=last)
            if isinstance(effect, Work):
                self._leave()
                worked = self._work(effect)
                at_ns = now_ns()
                if worked is None:
                    return Ended(at_ns + AFTER_FAILURE_NS, complete=False)
                sent = worked
                continue
            if isinstance(effect, Fork):
                children = self._fork(effect, path, at_ns)
                at_ns = max(child.at_ns for child in children)
                if not all(child.complete for child in children):
                    return Ended(at_ns, complete=False)
                sent = tuple(child.last for child in children)
                continue
            planned_ns = self._planned(effect, at_ns)
            admitted = self._admitted(planned_ns)
            if admitted is None:
                return Ended(now_ns(), complete=False)
            try:
                result = self._ask(effect, bodies.body(effect), path, number, planned_ns)
            finally:
                admitted.leave()
            record = result.record
            if record.failure is not None:
                return Ended(record.closed_ns + AFTER_FAILURE_NS, complete=False)
            sent = last = _reply(result)
            at_ns = record.closed_ns
            number += 1

    def _work(self, work: Work) -> Worked | None:
        """What a work came to, done in a thread; None where it raised, which is the session's end."""
        worked, error = self._run.beside_the_loop(partial(_outcome, work.call))
        if error is None:
            return Worked(worked)
        notes, name = self._run.sessions.notes, self._session.class_name
        note = f"{name}: sessions ended by an exception of their own code"
        if not notes[note]:
            logger.error(
                "%s: a session's own code raised and ends it; more like this are only counted", name, exc_info=error
            )
        notes[note] += 1
        return None

    def _fork(self, fork: Fork, path: str, at_ns: int) -> list[Ended]:
        self._leave()
        greenlets = [gevent.spawn(self._script, child, f"{path}/{name}", at_ns) for name, child in fork.children]
        try:
            gevent.joinall(greenlets, raise_error=True)
        finally:  # a user who is stopped meanwhile takes its sub-agents along
            gevent.killall([greenlet for greenlet in greenlets if not greenlet.dead], block=False)
        return [greenlet.value for greenlet in greenlets]

    def _planned(self, ask: Ask, at_ns: int) -> int:
        """When a turn is to be sent: after the answer before it and a pause, or when a trace says, if that is later."""
        if ask.due_s is not None:
            return max(at_ns, self._arrived_ns + round(ask.due_s * NS_PER_S))
        return at_ns + round(ask.pause_s * NS_PER_S)

    def _admitted(self, planned_ns: int) -> Admitted | None:
        """Leave to send a turn, once it is time; None: there are to be no more. A session's first turn may always."""
        run = self._run
        sleep_until(planned_ns)
        counted, self._counted = self._counted, False
        if self._first:
            self._first = False
            place, self._place = self._place, None
            run.await_turn()
            return Admitted(place)  # it has its place, and is not to be lost
        window = run.window_of(planned_ns)
        if not run.open or not (counted or run.quota.take_turn(window.phase)):
            return None
        if not entered(run, self._session.class_name, window):
            return None
        run.await_turn()
        if not run.open:
            if run.gate is not None:
                run.gate.leave()
            return None
        return Admitted(run.gate)

    def _ask(self, ask: Ask, body: bytes, path: str, number: int, planned_ns: int) -> TurnResult:
        run, session = self._run, self._session
        window = run.window_of(planned_ns)
        first = not path and not number
        request = TurnRequest(
            body=body,
            turn_id=f"s{session.index}{path}.{number}",
            session_id=f"s{session.index}{path}",
            turn_index=number,
            class_name=session.class_name,
            phase=window.phase,
            planned_ns=planned_ns,
            step=window.step,
            max_tokens=ask.output_tokens,
            pause=None if first else ask.pause,
            final=ask.final,
            model=ask.model or self._settings.model,
            headers=(*self._headers, *ask.headers),
        )
        turn = run.start_turn(request, session.index)
        cut_ns = None if ask.cancel_after_s is None else planned_ns + round(ask.cancel_after_s * NS_PER_S)
        if cut_ns is not None and not turn.wait_until(cut_ns):
            turn.cancel()
        return turn.wait()

    def _leave(self) -> None:
        """Something comes before the first turn, or there is none: its place is given back."""
        place, self._place, self._first = self._place, None, False
        if place is not None:
            place.leave()


def _outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What a call returned, or raised: somebody's own code must not end a user, nor go unseen."""
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001
        return None, error


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
