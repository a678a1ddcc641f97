"""The engine core's loop over a clock that is handed in: steps one after another, planned ahead where vLLM does.

With async scheduling two steps are under way: one that is computed and one that was planned when it began. So a request
that arrives in the middle of a step is computed two steps later, and a step begins when the one before it ends. The core
takes in what arrived between two steps: only then a request is in the queue.
"""

from collections import deque

from .request import Request
from .scheduler import Scheduler, Step
from .step_time import StepClock


class Pipeline:
    """`submit` and `abort` as they happen; `next_ns` says when a step ends, `finish` ends it. Instants are in ns.

    Where a further step is under way, what follows may be planned a little later than it is due, by `end` and then `catch_up`:
    nothing that happened since then is in the plan.
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
        """When the oldest step under way ends; None: there is none."""
        return self._under_way[0][1] if self._under_way else None

    def submit(self, request: Request, now_ns: int) -> None:
        """Take a request; an idle engine begins at once."""
        self.catch_up()
        self._arrived.append(request)
        self.wake(now_ns)

    def wake(self, now_ns: int) -> None:
        """Begin a step if none is under way: after a submission, or after an abort that made room."""
        if not self._under_way:
            self._plan(now_ns)

    def finish(self) -> tuple[Step, int]:
        """End the oldest step under way, and plan what follows; the step and when it ended."""
        ended = self.end()
        self.catch_up()
        return ended

    def end(self) -> tuple[Step, int]:
        """End the oldest step under way; what follows is planned by the next `catch_up`, or now where nothing else is under way."""
        self.catch_up()
        step, end_ns = self._under_way.popleft()
        self.scheduler.update(step)
        self._unplanned_ns = end_ns
        if not self._under_way:
            self.catch_up()
        return step, end_ns

    @property
    def behind(self) -> bool:
        """A step has not been planned yet that should be."""
        return self._unplanned_ns is not None

    def catch_up(self) -> None:
        """Plan what should have been: before whatever changes who runs or waits."""
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
