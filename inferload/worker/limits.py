"""What bounds a worker's load beside time: how many sessions or turns there are to be, how many turns at once."""

from collections import deque

from gevent.event import AsyncResult

from inferload.measure.record import Phase
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.arrivals import Closed
from inferload.workload.arrivals import share


class Quota:
    """This worker's share of a run that ends by count: sessions and turns that are planned in the measure phase."""

    def __init__(self, sessions: int | None, turns: int | None) -> None:
        self._sessions, self._turns = sessions, turns

    @classmethod
    def of(cls, scenario: Scenario, worker: int, workers: int) -> "Quota":
        """Worker k of n's; all workers' together are what the scenario says. In a closed loop each user has a part."""
        counts = (scenario.phases.sessions, scenario.phases.turns)
        users = most_users(scenario.arrivals) if isinstance(scenario.arrivals, Closed) else None
        sessions, turns = (None if count is None else _part(count, worker, workers, users) for count in counts)
        return cls(sessions, turns)

    @property
    def spent(self) -> bool:
        """Whether nothing more may begin."""
        return self._sessions == 0 or self._turns == 0

    def take_session(self, phase: Phase) -> bool:
        """Take a session with its first turn; False: there is none left."""
        if self.spent:
            return False
        if phase == "measure" and self._sessions is not None:
            self._sessions -= 1
        return self.take_turn(phase)

    def take_turn(self, phase: Phase) -> bool:
        """Take a later turn of a session; False: there is none left."""
        if self._turns == 0:
            return False
        if phase == "measure" and self._turns is not None:
            self._turns -= 1
        return True


def _part(total: int, worker: int, workers: int, users: int | None) -> int:
    """A worker's part of a number. User j is worker j mod n's, so that a worker may have none, and no part."""
    if users is None:
        return share(total, worker, workers)
    return sum(share(total, user, users) for user in range(worker, min(users, total), workers))


def most_users(arrivals: Closed) -> int:
    """The most users that a closed loop comes to."""
    return arrivals.users if arrivals.profile is None else arrivals.profile.highest


class InFlightLimiter:
    """So many turns in flight and no more; who finds it full waits, the first come first."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: deque[AsyncResult] = deque()
        self._closed = False

    def try_enter(self) -> bool:
        """Take a place if there is one now, and nobody waits for it."""
        if self._closed or self._waiting or not self._free:
            return False
        self._free -= 1
        return True

    def enter(self) -> bool:
        """Wait for a place; False: the gate was closed meanwhile."""
        if self._closed or self.try_enter():
            return not self._closed
        mine = AsyncResult()
        self._waiting.append(mine)
        return bool(mine.get())

    def leave(self) -> None:
        """Give a place back: to who has waited longest, if anybody does."""
        if self._waiting:
            self._waiting.popleft().set(True)
        else:
            self._free += 1

    def close(self) -> None:
        """Nobody comes in any more, and nobody waits."""
        self._closed = True
        while self._waiting:
            self._waiting.popleft().set(False)
