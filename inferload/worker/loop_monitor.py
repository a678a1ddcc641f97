"""Overhead of a worker process: lag of its event loop, CPU time, steal time, garbage collection pauses."""

import gc
from typing import Any

import gevent

from inferload.measure import clock
from inferload.measure.client_health import Beat
from inferload.measure.clock import NS_PER_S

_PERIOD_NS = 20 * clock.NS_PER_MS
_PAUSE_NS = 50 * clock.NS_PER_MS  # a later beat is a pause of this process, with which stalls of turns are compared
_MAX_PAUSES = 64
_USER_HZ = 100  # unit of /proc/stat, fixed in Linux's ABI


class LoopMonitor:
    """Timer of the event loop with a period of 20 ms; the delay of each beat is the time for which the loop was busy or stopped."""

    def __init__(self) -> None:
        self.pauses: list[tuple[int, int]] = []  # the newest pauses of the loop: (start, end)
        self.loop_lags_ms: list[float] = []
        self.gc_pauses_ms: list[float] = []
        self._cpu_ns, self._at_ns, self._steal_s = clock.cpu_ns(), clock.now_ns(), steal_s()
        self._due_ns = clock.now_ns() + _PERIOD_NS
        self._gc_began_ns = 0
        self._timer: Any = gevent.get_hub().loop.timer(_PERIOD_NS / NS_PER_S, _PERIOD_NS / NS_PER_S)
        self._timer.start(self._beat)
        gc.callbacks.append(self._on_gc)

    def take(self) -> Beat:
        """Return the costs of event loop and process since the last call."""
        cpu_ns, at_ns, stolen_s = clock.cpu_ns(), clock.now_ns(), steal_s()
        lags, pauses = self.loop_lags_ms, self.gc_pauses_ms
        self.loop_lags_ms, self.gc_pauses_ms = [], []
        cpu_s, wall_s = (cpu_ns - self._cpu_ns) / NS_PER_S, (at_ns - self._at_ns) / NS_PER_S
        steal = None if stolen_s is None or self._steal_s is None else stolen_s - self._steal_s
        self._cpu_ns, self._at_ns, self._steal_s = cpu_ns, at_ns, stolen_s
        return Beat(lags, pauses, cpu_s, wall_s, steal)

    def close(self) -> None:
        """Stop the timer."""
        self._timer.stop()
        self._timer.close()
        gc.callbacks.remove(self._on_gc)

    def _beat(self) -> None:
        at_ns = clock.now_ns()
        self.loop_lags_ms.append(max(0, at_ns - self._due_ns) / clock.NS_PER_MS)
        if at_ns - self._due_ns > _PAUSE_NS:
            self.pauses = [*self.pauses[1 - _MAX_PAUSES :], (self._due_ns - _PERIOD_NS, at_ns)]
        # The loop's own timer slips with each late beat; the next is due a period after this one at the earliest.
        self._due_ns = max(self._due_ns + _PERIOD_NS, at_ns)

    def _on_gc(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_began_ns = clock.now_ns()
        else:
            self.gc_pauses_ms.append((clock.now_ns() - self._gc_began_ns) / clock.NS_PER_MS)


def steal_s() -> float | None:
    """Return the steal time of all processors since boot, from /proc/stat; None on systems without it."""
    try:
        with open("/proc/stat") as file:
            fields = file.readline().split()
    except OSError:
        return None
    return int(fields[8]) / _USER_HZ if len(fields) > 8 else None
