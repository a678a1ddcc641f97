"""A worker's part of one run: scenario, sessions, quota and limits."""

import logging
from collections import deque
from dataclasses import dataclass

from gevent.event import AsyncResult

from inferload.base.errors import UsageError
from inferload.base.threads import in_thread
from inferload.client.connection import descriptors
from inferload.client.requests.bodies import Texts
from inferload.run.process.protocol import Assignment
from inferload.scenario import scenario as scenarios
from inferload.workload.arrivals import share
from inferload.workload.content.data import DataContext
from inferload.workload.content.prompts import Vocabulary
from inferload.workload.quota import Quota
from inferload.workload.sessions import Sessions


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
        self._closed = True
        while self._waiting:
            self._waiting.popleft().set(False)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunPart:
    """The scenario of a run, and the sessions, quota and limits of one of its workers. `limiter`: None without a limit."""

    assignment: Assignment
    scenario: scenarios.Scenario
    sessions: Sessions
    texts: Texts
    quota: Quota
    limiter: InFlightLimiter | None

    @classmethod
    def of(cls, assignment: Assignment) -> "RunPart":
        """Read an assignment and the data files that it names. UsageError if this process cannot take part."""
        scenario = scenarios.from_text(assignment.scenario_text, assignment.origin)
        data = DataContext.from_wire(assignment.data, assignment.origin)
        sessions = Sessions(scenario, data)
        if data.has_files:  # in a thread: heartbeats must go on while a large file is read
            in_thread(sessions.open)
        stripe, stripes = assignment.stripe, assignment.stripes
        if scenario.max_system_idle_s is not None and stripes > 1:
            raise UsageError(
                f"workload.max_system_idle_s needs all users in one process, and there are {stripes} workers; use one "
                "(no --processes, --expect-workers 1), or remove it"
            )
        most = scenario.arrivals.most_in_flight
        check_descriptors(scenario, stripe, stripes)
        return cls(
            assignment,
            scenario,
            sessions,
            Texts(Vocabulary.from_wire(assignment.vocabulary), scenario.seed),
            Quota.of(scenario, stripe, stripes),
            None if most is None else InFlightLimiter(share(most, stripe, stripes)),
        )


def check_descriptors(scenario: scenarios.Scenario, stripe: int, stripes: int) -> None:
    """Raise UsageError if a closed loop needs more file descriptors than this process has left; log a warning for an open loop."""
    descriptors.raise_limit()
    arrivals, left = scenario.arrivals, descriptors.left()
    most = arrivals.most_in_flight if arrivals.open_loop else arrivals.most_users
    needed = 0 if most is None else share(most, stripe, stripes)
    if needed <= left:
        return
    unit = "turns in flight (arrivals.max_in_flight)" if arrivals.open_loop else "users"
    text = (
        f"{needed} {unit} in one process need as many connections, and its limit of {descriptors.limit()} open files leaves "
        f"{left}; raise it to {descriptors.limit() - left + needed} with ulimit -n, or use more workers"
    )
    if not arrivals.open_loop:
        raise UsageError(text)
    logger.warning("%s", text)
