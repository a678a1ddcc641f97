"""Sessions and turns that are left of a run that ends by count."""

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
