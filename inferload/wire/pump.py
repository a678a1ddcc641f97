"""Work put off until the event loop has nothing to read, in slices, so that a burst of endings delays nobody's stamp."""

from collections import deque
from typing import Any, Protocol

from inferload.measure.clock import now_ns

# Under a load that never leaves the loop idle, work older than this is done all the same, for so long at a time.
_PATIENCE_S = 0.05
_TURN_NS = 2_000_000


class Job(Protocol):
    """Something that can be done in slices of about a tenth of a millisecond, and must not block."""

    def step(self) -> bool:
        """Do one slice; True when nothing is left."""
        ...

    def fail(self, error: Exception) -> None:
        """Take note that a step raised; the job is not stepped again."""
        ...


class Pump:
    """Steps jobs in order whenever the loop is idle. Everything runs in the event loop itself: no greenlet is switched."""

    def __init__(self, loop: Any) -> None:
        self._jobs: deque[Job] = deque()
        self._idle = loop.idle()
        self._patience = loop.timer(_PATIENCE_S, _PATIENCE_S)
        self._last_step_ns = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Put a job at the end of the line."""
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._last_step_ns = now_ns()
            self._idle.start(self._step)
            self._patience.again(self._catch_up)

    def close(self) -> None:
        """Leave the loop; jobs that wait are forgotten."""
        self._jobs.clear()
        for watcher in (self._idle, self._patience):
            watcher.stop()
            watcher.close()

    def _step(self) -> None:
        if self._jobs:
            job = self._jobs[0]
            try:
                finished = job.step()
            except Exception as error:  # noqa: BLE001  the loop's own boundary: the job books it as a fault of ours
                job.fail(error)
                finished = True
            if finished:
                self._jobs.popleft()
            self._last_step_ns = now_ns()
        if not self._jobs:
            self._idle.stop()
            self._patience.stop()

    def _catch_up(self) -> None:
        begun_ns = now_ns()
        if begun_ns - self._last_step_ns < _PATIENCE_S * 1e9:
            return
        while self._jobs and now_ns() - begun_ns < _TURN_NS:
            self._step()
