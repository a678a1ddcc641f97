"""Work put off from the read path, in slices between two polls of the event loop, so that a burst of endings delays nobody's stamp.

Each turn of the loop first takes all reads that are ready, then gives so much time at the most to what waits here. A read
that is late by that much is dated by the kernel all the same; only what lasts longer than the gap between two tokens would
merge them. Left to moments in which nothing is ready to be read, the work would starve under load, and users with it.
"""

import logging
from collections import deque
from typing import Any, Protocol

from gevent.event import Event

from inferload.client.connection.error_log import FaultLog
from inferload.measure.clock import now_ns

logger = logging.getLogger(__name__)

_QUANTUM_NS = 1_000_000


class Job(Protocol):
    """Something that can be done in slices of about a tenth of a millisecond, and must not block."""

    def step(self) -> bool:
        """Do one slice; True when nothing is left."""
        ...

    def fail(self, error: Exception) -> None:
        """Take note that a step raised; the job is not stepped again."""
        ...


class _Wake:
    """Lets one greenlet go on; the loop polls for reads before the next."""

    def __init__(self) -> None:
        self.event = Event()

    def step(self) -> bool:
        self.event.set()
        return True

    def fail(self, error: Exception) -> None:
        """Nothing can go wrong."""


class Pump:
    """Steps jobs in order, in the event loop itself: no greenlet is switched.

    `wakes`: how many greenlets go on between two polls; more than one where the loop has no reads to be late for.
    """

    def __init__(self, loop: Any, wakes: int = 1) -> None:
        self._wakes = wakes
        self._jobs: deque[Job] = deque()
        self._faults = FaultLog(logger)
        self._between_polls = loop.prepare()
        self._awake = loop.idle()  # while it is active the loop does not wait for reads

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Put a job at the end of the line."""
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._between_polls.start(self._work)
            self._awake.start(_nothing)

    def wait(self) -> None:
        """Block the calling greenlet until it is its turn: of many that become ready together, a few go on between two polls."""
        wake = _Wake()
        self.add(wake)
        wake.event.wait()

    def close(self) -> None:
        """Leave the loop; jobs that wait are forgotten."""
        self._jobs.clear()
        for watcher in (self._between_polls, self._awake):
            watcher.stop()
            watcher.close()

    def _work(self) -> None:
        until_ns = now_ns() + _QUANTUM_NS
        wakes = self._wakes
        while self._jobs:
            job = self._jobs[0]
            try:
                finished = job.step()
            except Exception as error:  # noqa: BLE001  the loop's own boundary: the job books it as a fault of ours
                self._fail(job, error)
                finished = True
            if finished:
                self._jobs.popleft()
            wakes -= isinstance(job, _Wake)
            if not wakes or now_ns() >= until_ns:
                if not finished:
                    self._jobs.rotate(-1)  # a stream that comes faster than it is parsed must not hold up the others
                break
        if not self._jobs:
            self._between_polls.stop()
            self._awake.stop()

    def _fail(self, job: Job, error: Exception) -> None:
        """Log the error and end the job; a job that raises again is left as it is."""
        self._faults.log("a turn could not be processed", error)
        try:
            job.fail(error)
        except Exception as second:  # noqa: BLE001  as above: the jobs behind this one must be stepped
            self._faults.log("a turn could not be ended", second)


def _nothing() -> None:
    """An idle watcher's callback."""
