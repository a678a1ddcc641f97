"""Loop of the engine core: consecutive steps, planned ahead as in vLLM. Times are arguments.

With async scheduling two steps are in progress: one is computed, the next was planned when the first started. A request
that arrives during a step is therefore computed two steps later, and a step starts when the previous one ends. Requests
enter the queue between two steps.
"""

from abc import ABC, abstractmethod
from collections import deque

from .queues import Queues
from .request import Request
from .scheduler import Scheduler, Step
from .step_time import StepClock


class Core(ABC):
    """Engine core: requests in, steps out, in order of their ends. `behind`: the plan of a step is overdue."""

    scheduler: Queues
    behind = False

    @property
    @abstractmethod
    def next_ns(self) -> int | None:
        """End of the oldest step in progress; None if idle."""

    @abstractmethod
    def submit(self, request: Request, now_ns: int) -> None:
        """Add a request."""

    @abstractmethod
    def wake(self, now_ns: int) -> None:
        """Start work that an abort made possible, since it freed blocks and a slot."""

    @abstractmethod
    def end(self) -> tuple[Step, int]:
        """End the oldest step. Return it and its end."""

    def catch_up(self) -> None:  # noqa: B027 - only a core that plans ahead can be behind
        """Plan the overdue step. Call this before any change to running or waiting requests."""


class Pipeline(Core):
    """Steps of the step model. `finish` ends the oldest step and plans the next.

    While another step is in progress, the next step may be planned later than due, with `end` and then `catch_up`; the plan
    excludes later events.
    """

    def __init__(self, scheduler: Scheduler, clock: StepClock) -> None:
        self.scheduler: Scheduler = scheduler
        self._clock = clock
        self._depth = 2 if scheduler.limits.async_scheduling else 1
        self._in_progress: deque[tuple[Step, int]] = deque()
        self._arrived: list[Request] = []  # during a step
        self._free_ns = 0  # end of the last planned step
        self._unplanned_ns = 0  # due time of an overdue plan

    @property
    def next_ns(self) -> int | None:
        return self._in_progress[0][1] if self._in_progress else None

    def submit(self, request: Request, now_ns: int) -> None:
        """Add a request. An idle engine starts a step immediately."""
        self.catch_up()
        self._arrived.append(request)
        self.wake(now_ns)

    def wake(self, now_ns: int) -> None:
        if not self._in_progress:
            self._plan(now_ns)

    def finish(self) -> tuple[Step, int]:
        """End the oldest step and plan the next. Return the step and its end."""
        ended = self.end()
        self.catch_up()
        return ended

    def end(self) -> tuple[Step, int]:
        """End the oldest step. The next step is planned at the next `catch_up`, or now if no other step is in progress."""
        self.catch_up()
        step, end_ns = self._in_progress.popleft()
        self.scheduler.update(step)
        self.behind, self._unplanned_ns = True, end_ns
        if not self._in_progress:
            self.catch_up()
        return step, end_ns

    def catch_up(self) -> None:
        if self.behind:
            self.behind = False
            self._plan(self._unplanned_ns)

    def _plan(self, now_ns: int) -> None:
        for request in self._arrived:
            if not request.over:
                request.queue(now_ns)
                self.scheduler.submit(request)
        self._arrived.clear()
        while len(self._in_progress) < self._depth:
            step = self.scheduler.schedule()
            if step is None:
                return
            for request in step.admitted:
                if request.admitted_ns < 0:
                    request.admitted_ns = now_ns
            self._free_ns = max(now_ns, self._free_ns) + self._clock.duration_ns(step)
            self._in_progress.append((step, self._free_ns))
