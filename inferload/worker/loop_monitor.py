"""What a worker costs itself, measured while it works: how late its event loop is, CPU, steal, garbage collection."""

import gc
from typing import Any

import gevent

from inferload.measure import clock
from inferload.measure.client_health import Beat

_PERIOD_NS = 20 * clock.NS_PER_MS
_PAUSE_NS = 50 * clock.NS_PER_MS  # a beat as late as this is a pause, which stalls are held against
_PAUSES_KEPT = 64
_USER_HZ = 100  # unit of /proc/stat, fixed in Linux's ABI


class LoopMonitor:
    """Beats every 20 ms from the event loop; what a beat is late by is the time that the loop was busy or held up."""

    def __init__(self) -> None:
        self.pauses: list[tuple[int, int]] = []  # the newest times at which the loop stood still: from, until
        self.loop_lags_ms: list[float] = []
        self.gc_pauses_ms: list[float] = []
        self._cpu_ns, self._at_ns, self._steal_s = clock.cpu_ns(), clock.now_ns(), steal_s()
        self._due_ns = clock.now_ns() + _PERIOD_NS
        self._gc_began_ns = 0
        self._timer: Any = gevent.get_hub().loop.timer(_PERIOD_NS / 1e9, _PERIOD_NS / 1e9)
        self._timer.start(self._beat)
        gc.callbacks.append(self._on_gc)

    def take(self) -> Beat:
        """What the event loop and the process cost since the last call."""
        cpu_ns, at_ns, stolen_s = clock.cpu_ns(), clock.now_ns(), steal_s()
        lags, pauses = self.loop_lags_ms, self.gc_pauses_ms
        self.loop_lags_ms, self.gc_pauses_ms = [], []
        cpu_s, wall_s = (cpu_ns - self._cpu_ns) / 1e9, (at_ns - self._at_ns) / 1e9
        steal = None if stolen_s is None or self._steal_s is None else stolen_s - self._steal_s
        self._cpu_ns, self._at_ns, self._steal_s = cpu_ns, at_ns, stolen_s
        return Beat(lags, pauses, cpu_s, wall_s, steal)

    def close(self) -> None:
        """Stop beating."""
        self._timer.stop()
        self._timer.close()
        gc.callbacks.remove(self._on_gc)

    def _beat(self) -> None:
        at_ns = clock.now_ns()
        self.loop_lags_ms.append(max(0, at_ns - self._due_ns) / clock.NS_PER_MS)
        if at_ns - self._due_ns > _PAUSE_NS:
            self.pauses = [*self.pauses[1 - _PAUSES_KEPT :], (self._due_ns - _PERIOD_NS, at_ns)]
        # The loop's own timer slips with each late beat; the next is due a period after this one at the earliest.
        self._due_ns = max(self._due_ns + _PERIOD_NS, at_ns)

    def _on_gc(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_began_ns = clock.now_ns()
        else:
            self.gc_pauses_ms.append((clock.now_ns() - self._gc_began_ns) / clock.NS_PER_MS)


def steal_s() -> float | None:
    """Seconds that the hypervisor took from this machine's processors since boot, all of them together; None off Linux."""
    try:
        with open("/proc/stat") as file:
            fields = file.readline().split()
    except OSError:
        return None
    return int(fields[8]) / _USER_HZ if len(fields) > 8 else None
