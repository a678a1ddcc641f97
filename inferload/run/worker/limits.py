"""Limits of a worker's load other than time: numbers of sessions and turns, and turns in flight."""

from collections import deque

from gevent.event import AsyncResult

from inferload.scenario.scenario import Scenario
from inferload.turns.record import Phase
from inferload.workload.arrivals import share


class Quota:
    """A worker's share of the sessions and turns of a run that ends by count. Only those of the measure phase count."""

    def __init__(self, sessions: int | None, turns: int | None) -> None:
        self._sessions, self._turns = sessions, turns

    @classmethod
    def of(cls, scenario: Scenario, worker: int, workers: int) -> "Quota":
        """Return one worker's quota; all quotas add up to the scenario's counts. In a closed loop each user has an equal part."""
        counts = (scenario.phases.sessions, scenario.phases.turns)
        users = scenario.arrivals.most_users
        sessions, turns = (None if count is None else _part(count, worker, workers, users) for count in counts)
        return cls(sessions, turns)

    @property
    def spent(self) -> bool:
        """True if no session or turn is left."""
        return self._sessions == 0 or self._turns == 0

    def take_session(self, phase: Phase) -> bool:
        """Take a session with its first turn; False if none is left."""
        if self.spent:
            return False
        if phase == "measure" and self._sessions is not None:
            self._sessions -= 1
        return self.take_turn(phase)

    def take_turn(self, phase: Phase) -> bool:
        """Take a later turn of a session; False if none is left."""
        if self._turns == 0:
            return False
        if phase == "measure" and self._turns is not None:
            self._turns -= 1
        return True


def _part(total: int, worker: int, workers: int, users: int | None) -> int:
    """Return a worker's part of a number. User j belongs to worker j mod n; a worker without users has no part."""
    if users is None:
        return share(total, worker, workers)
    return sum(share(total, user, users) for user in range(worker, min(users, total), workers))


class InFlightLimiter:
    """Limit of turns in flight; waiting turns enter first come, first served."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: deque[AsyncResult] = deque()
        self._closed = False

    def try_enter(self) -> bool:
        """Take a slot if one is free and no turn waits for it."""
        if self._closed or self._waiting or not self._free:
            return False
        self._free -= 1
        return True

    def enter(self) -> bool:
        """Wait for a slot; False if the limiter was closed meanwhile."""
        if self._closed or self.try_enter():
            return not self._closed
        admitted = AsyncResult()
        self._waiting.append(admitted)
        return bool(admitted.get())

    def leave(self) -> None:
        """Release a slot, to the turn that has waited longest if any waits."""
        if self._waiting:
            self._waiting.popleft().set(True)
        else:
            self._free += 1

    def close(self) -> None:
        """Close the limiter and release all waiters."""
        self._closed = True
        while self._waiting:
            self._waiting.popleft().set(False)
