"""Loop of the engine core: consecutive steps, planned ahead as in vLLM. Instants are arguments.

With async scheduling two steps are in progress: one is computed, the other was planned when the first started. So a
request that arrives during a step is computed two steps later, and a step starts when the one before it ends. Requests
enter the queue between two steps.
"""

from collections import deque

from .request import Request
from .scheduler import Scheduler, Step
from .step_time import StepClock


class Pipeline:
    """Steps in progress. `next_ns` is the end of the oldest step, and `finish` ends it. Instants are in ns.

    While another step is in progress, the next one may be planned later than due, with `end` and then `catch_up`: the plan
    does not include later events.
    """

    def __init__(self, scheduler: Scheduler, clock: StepClock) -> None:
        self.scheduler = scheduler
        self._clock = clock
        self._depth = 2 if scheduler.limits.async_scheduling else 1
        self._under_way: deque[tuple[Step, int]] = deque()
        self._arrived: list[Request] = []  # while steps were under way
        self._free_ns = 0  # when the device is free
        self._unplanned_ns: int | None = None  # when a step should have been planned

    @property
    def next_ns(self) -> int | None:
        """End of the oldest running step; None if there is none."""
        return self._under_way[0][1] if self._under_way else None

    def submit(self, request: Request, now_ns: int) -> None:
        """Add a request. An idle engine starts a step at once."""
        self.catch_up()
        self._arrived.append(request)
        self.wake(now_ns)

    def wake(self, now_ns: int) -> None:
        """Start a step if none is running: after a submission, or after an abort that freed blocks."""
        if not self._under_way:
            self._plan(now_ns)

    def finish(self) -> tuple[Step, int]:
        """End the oldest running step and plan the next. Return the step and its end."""
        ended = self.end()
        self.catch_up()
        return ended

    def end(self) -> tuple[Step, int]:
        """End the oldest running step. Plan the next at the next `catch_up`, or now if no other step runs."""
        self.catch_up()
        step, end_ns = self._under_way.popleft()
        self.scheduler.update(step)
        self._unplanned_ns = end_ns
        if not self._under_way:
            self.catch_up()
        return step, end_ns

    @property
    def behind(self) -> bool:
        """Whether a step is overdue for planning."""
        return self._unplanned_ns is not None

    def catch_up(self) -> None:
        """Plan the step that is overdue. Call it before any change to running or waiting requests."""
        if self._unplanned_ns is not None:
            now_ns, self._unplanned_ns = self._unplanned_ns, None
            self._plan(now_ns)

    def _plan(self, now_ns: int) -> None:
        for request in self._arrived:
            if not request.over:
                request.queued_ns = now_ns
                self.scheduler.submit(request)
        self._arrived.clear()
        while len(self._under_way) < self._depth:
            step = self.scheduler.schedule()
            if step is None:
                return
            step.planned_ns = now_ns
            self._free_ns = max(now_ns, self._free_ns) + self._clock.duration_ns(step)
            self._under_way.append((step, self._free_ns))
