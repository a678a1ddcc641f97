"""Deferred parsing in slices between two polls of the event loop, so that parsing does not delay reads.

Each iteration of the loop first handles all reads that are ready, then the queued parse jobs for a limited time. A read that is
delayed by that time still has the kernel's timestamp; only a longer delay than the gap between two tokens would merge them. Parsing
only in idle iterations would never finish under load.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from gevent.event import Event

from inferload.base.clock import now_ns

_QUANTUM_NS = 1_000_000


class ParseJob(Protocol):
    """Work in slices of about 0.1 ms, which must neither block nor raise."""

    def step(self) -> bool:
        """Run one slice; return True if nothing is left."""
        ...


class _Wake:
    """Job that resumes one greenlet."""

    def __init__(self) -> None:
        self.event = Event()

    def step(self) -> bool:
        self.event.set()
        return True


class ParseQueue:
    """FIFO queue of parse jobs, which run in the event loop without a greenlet switch.

    `wakes`: number of greenlets that are resumed between two polls; more than 1 if the loop does not read sockets.
    """

    def __init__(self, loop: Any, wakes: int = 1) -> None:
        self._wakes = wakes
        self._jobs: deque[ParseJob] = deque()
        self._between_polls = loop.prepare()
        self._idle = loop.idle()  # while it is active the loop polls without waiting
        self._holding = False

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: ParseJob) -> None:
        self._jobs.append(job)
        if len(self._jobs) == 1 and not self._holding:
            self._wait_for_poll()

    def run_after(self, add_jobs: Callable[[], None]) -> None:
        """Call a function that adds jobs, and run them at once, for a limited time: no poll is needed between the two."""
        held = not self._jobs
        self._holding = held
        try:
            add_jobs()
            self._holding = False
            if held:
                self._run()
        finally:
            self._holding = False
            if held and self._jobs:
                self._wait_for_poll()

    def wait(self) -> None:
        """Block the calling greenlet until the jobs before it are done: few greenlets are resumed between two polls."""
        wake = _Wake()
        self.add(wake)
        wake.event.wait()

    def close(self) -> None:
        """Unregister from the event loop and discard the jobs."""
        self._jobs.clear()
        for watcher in (self._between_polls, self._idle):
            watcher.stop()
            watcher.close()

    def _wait_for_poll(self) -> None:
        self._between_polls.start(self._work)
        self._idle.start(_nothing)

    def _work(self) -> None:
        self._run()
        if not self._jobs:
            self._between_polls.stop()
            self._idle.stop()

    def _run(self) -> None:
        """Run jobs for a limited time."""
        until_ns = now_ns() + _QUANTUM_NS
        wakes = self._wakes
        while self._jobs:
            job = self._jobs[0]
            finished = job.step()
            if finished:
                self._jobs.popleft()
            wakes -= isinstance(job, _Wake)
            if not wakes or now_ns() >= until_ns:
                if not finished:
                    self._jobs.rotate(-1)  # a stream that is faster than its parsing must not block the others
                break


def _nothing() -> None:
    """Callback of the idle watcher."""
