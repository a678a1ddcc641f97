"""Interface between a session and its run, and the permit for each turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from inferload.client.turn import Turn
from inferload.client.turn_record import TurnRequest
from inferload.measure.clock import now_ns
from inferload.measure.record import PhaseWindow
from inferload.measure.tally import TallySet
from inferload.process.protocol import Assignment
from inferload.requests.bodies import Texts
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.endpoints import Endpoint
from inferload.worker.limits import InFlightLimiter, Quota
from inferload.workload.sessions import Sessions


class SessionContext(Protocol):
    """Interface of a run for its sessions."""

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
    def limiter(self) -> InFlightLimiter | None: ...

    sessions_running: int

    def check_spent(self) -> None: ...
    def window_of(self, at_ns: int) -> PhaseWindow: ...
    def load_start_ns(self) -> int | None: ...
    def load_end_ns(self) -> int | None: ...
    def await_turn(self) -> None: ...
    def in_thread(self, call: Callable[[], Any]) -> Any: ...
    def start_turn(self, request: TurnRequest, session: int, endpoint: Endpoint | None = None) -> Turn: ...
    def defer_count(self, turn_id: str) -> None: ...
    def release(self, turn_id: str, rejected: str | None = None) -> None: ...
    def fail_turn(self, request: TurnRequest, session: int, detail: str) -> None: ...


@dataclass(frozen=True, slots=True)
class TurnPermit:
    """Permit to send one turn. `limiter`: of the slot that it holds; None without a limit of turns in flight."""

    limiter: InFlightLimiter | None

    def leave(self) -> None:
        """Release the slot."""
        if self.limiter is not None:
            self.limiter.leave()


def entered(run: SessionContext, class_name: str, window: PhaseWindow) -> bool:
    """Wait for a slot in flight, and count the wait; False if the run takes no more turns."""
    limiter = run.limiter
    if limiter is None or limiter.try_enter():
        return True
    since_ns = now_ns()
    admitted = limiter.enter()
    if admitted:
        run.tallies.turn_delayed(window.phase, class_name, now_ns() - since_ns, step=window.step)
    return admitted
