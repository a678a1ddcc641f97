"""The engine core's loop over a clock that is handed in: steps one after another, planned ahead where vLLM does.

With async scheduling two steps are under way: one that is computed and one that was planned when it began. So a request
that arrives in the middle of a step is computed two steps later, and a step begins when the one before it ends. The core
takes in what arrived between two steps: only then a request is in the queue.
"""

from collections import deque

from .request import Request
from .scheduler import Scheduler
from .step import Step
from .steptime import StepClock


class Pipeline:
    """`submit` and `abort` as they happen; `next_ns` says when a step ends, `finish` ends it. Instants are in ns."""

    def __init__(self, scheduler: Scheduler, clock: StepClock) -> None:
        self.scheduler = scheduler
        self._clock = clock
        self._depth = 2 if scheduler.limits.async_scheduling else 1
        self._under_way: deque[tuple[Step, int]] = deque()
        self._arrived: list[Request] = []  # while steps were under way
        self._free_ns = 0  # when the device is free

    @property
    def next_ns(self) -> int | None:
        """When the oldest step under way ends; None: there is none."""
        return self._under_way[0][1] if self._under_way else None

    def submit(self, request: Request, now_ns: int) -> None:
        """Take a request; an idle engine begins at once."""
        self._arrived.append(request)
        self.wake(now_ns)

    def wake(self, now_ns: int) -> None:
        """Begin a step if none is under way: after a submission, or after an abort that made room."""
        if not self._under_way:
            self._plan(now_ns)

    def finish(self) -> tuple[Step, int]:
        """End the oldest step under way, and plan what follows; the step and when it ended."""
        step, end_ns = self._under_way.popleft()
        self.scheduler.update(step)
        self._plan(end_ns)
        return step, end_ns

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
