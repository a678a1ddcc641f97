"""Limit of the time in which no turn of a run is in flight: the pauses of all users are shortened by the same time."""

from collections.abc import Callable, Sequence
from functools import partial

import gevent
from gevent.event import Event

from inferload.base.clock import NS_PER_S, now_ns
from inferload.turns.run_windows import RunWindows
from inferload.workload.content.data import Notes
from inferload.workload.content.script import ScriptEnd

Script = Callable[[], ScriptEnd[int]]

_SETTLE_S = 0.05  # until a user whose session has ended has begun the next one


class _Wait:
    """Wait of one script for its next turn."""

    def __init__(self, due_ns: int) -> None:
        self.due_ns = due_ns
        self.changed = Event()


class SystemIdleCap:
    """Limit on the idle time of a run in the measure phase. `shifted_ns`: time left out so far. `notes`: counts the cuts.

    The run is idle while all its scripts wait for planned instants. All users are in this process: another process would have to
    be asked.
    """

    def __init__(self, most_s: float, windows: RunWindows, notes: Notes) -> None:
        self.shifted_ns = 0
        self._most_ns = round(most_s * NS_PER_S)
        self._windows, self._notes = windows, notes
        self._busy = 0  # scripts that do not wait
        self._waits: list[_Wait] = []
        self._idle_ns = 0  # since when none is busy

    def change(self, scripts: int) -> None:
        """Count scripts that begin, or end (negative)."""
        self._busy += scripts
        if not self._busy:
            self._idle_ns = now_ns()
            gevent.spawn_later(_SETTLE_S, self._cut)

    def forked(self, scripts: Sequence[Script]) -> list[Script]:
        """Return scripts that run at the same time in place of one; the last that ends goes on as that one."""
        left = list(scripts)
        self.change(len(left) - 1)

        def counted(script: Script) -> ScriptEnd[int]:
            try:
                return script()
            finally:
                left.pop()
                if left:
                    self.change(-1)

        return [partial(counted, script) for script in scripts]

    def wait(self, due_ns: int) -> int:
        """Wait until a planned instant; return the instant to which it was moved."""
        own = _Wait(due_ns)
        self._waits.append(own)
        self.change(-1)
        try:
            while (left_ns := own.due_ns - now_ns()) > 0:
                own.changed.clear()
                own.changed.wait(left_ns / NS_PER_S)
        finally:
            self._waits.remove(own)
            self._busy += 1
        return own.due_ns

    def _cut(self) -> None:
        start_ns = self._windows.measure_start_ns
        if self._busy or not self._waits or start_ns is None:  # scripts that wait for an unknown start are busy
            return
        if (left_ns := start_ns - now_ns()) > 0:
            gevent.spawn_later(left_ns / NS_PER_S + _SETTLE_S, self._cut)
            return
        excess_ns = min(wait.due_ns for wait in self._waits) - max(self._idle_ns, start_ns) - self._most_ns
        if excess_ns <= 0:
            return
        self._notes["idle times of the whole system cut to max_system_idle_s"] += 1
        self.shifted_ns += excess_ns
        for wait in self._waits:
            wait.due_ns -= excess_ns
            wait.changed.set()
