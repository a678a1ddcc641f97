"""Overhead of a worker process: lag of its event loop, CPU time, steal time, garbage collection pauses."""

import gc
import sys
from collections.abc import Iterable
from typing import Any

import gevent

from inferload.base import clock
from inferload.base.clock import NS_PER_MS, NS_PER_S, now_ns
from inferload.client.client import Client
from inferload.turns.client_health import Beat, HealthSet
from inferload.turns.run_windows import RunWindows

SWITCH_S = 0.001
COLLECT_S = 0.1  # between two steps of garbage collection
MOST_OBJECTS = 20_000  # examined in a step, which takes 1 to 8 ms
_GROWN_SHARE = 50  # a step is made once there are MOST_OBJECTS / _GROWN_SHARE more objects

_PERIOD_NS = 20 * NS_PER_MS
_PAUSE_NS = 50 * NS_PER_MS  # a later beat is a pause of this process, with which stalls of turns are compared
_MAX_PAUSES = 64
_USER_HZ = 100  # unit of /proc/stat, fixed in Linux's ABI


class LoopMonitor:
    """Timer of the event loop with a period of 20 ms; the delay of each beat is the time for which the loop was busy or stopped.

    Call `start` first.
    """

    def __init__(self) -> None:
        self.pauses: list[tuple[int, int]] = []  # the newest pauses of the loop: (start, end)
        self.loop_lags_ms: list[float] = []
        self.gc_pauses_ms: list[float] = []
        self._cpu_ns = self._at_ns = self._due_ns = self._gc_began_ns = 0
        self._steal_s: float | None = None
        self._timer: Any = None

    def start(self) -> None:
        """Start the timer, and register for garbage collections."""
        self._cpu_ns, self._at_ns, self._steal_s = clock.cpu_ns(), now_ns(), steal_s()
        self._due_ns = now_ns() + _PERIOD_NS
        self._timer = gevent.get_hub().loop.timer(_PERIOD_NS / NS_PER_S, _PERIOD_NS / NS_PER_S)
        self._timer.start(self._beat)
        gc.callbacks.append(self._on_gc)

    def take(self) -> Beat:
        """Return the costs of event loop and process since the last call."""
        cpu_ns, at_ns, stolen_s = clock.cpu_ns(), now_ns(), steal_s()
        lags, pauses = self.loop_lags_ms, self.gc_pauses_ms
        self.loop_lags_ms, self.gc_pauses_ms = [], []
        cpu_s, wall_s = (cpu_ns - self._cpu_ns) / NS_PER_S, (at_ns - self._at_ns) / NS_PER_S
        steal = None if stolen_s is None or self._steal_s is None else stolen_s - self._steal_s
        self._cpu_ns, self._at_ns, self._steal_s = cpu_ns, at_ns, stolen_s
        return Beat(lags, pauses, cpu_s, wall_s, steal)

    def close(self) -> None:
        self._timer.stop()
        self._timer.close()
        gc.callbacks.remove(self._on_gc)

    def _beat(self) -> None:
        at_ns = now_ns()
        self.loop_lags_ms.append(max(0, at_ns - self._due_ns) / NS_PER_MS)
        if at_ns - self._due_ns > _PAUSE_NS:
            self.pauses = [*self.pauses[1 - _MAX_PAUSES :], (self._due_ns - _PERIOD_NS, at_ns)]
        # The loop's own timer slips with each late beat; the next is due a period after this one at the earliest.
        self._due_ns = max(self._due_ns + _PERIOD_NS, at_ns)

    def _on_gc(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_began_ns = now_ns()
        else:
            self.gc_pauses_ms.append((now_ns() - self._gc_began_ns) / NS_PER_MS)


class HealthReports:
    """Health of a worker process, of its event loop and of its reading threads, for each report."""

    def __init__(self, worker: str, windows: RunWindows, monitor: LoopMonitor, clients: Iterable[Client]) -> None:
        self._worker = worker
        self._windows = windows
        self._monitor = monitor
        self._clients = clients
        self._wall = clock.WallWatch()
        self._interpreter = InterpreterSettings()
        self._paused_until_ns = self._reported_ns = now_ns()

    def start(self) -> None:
        """Configure the interpreter, and start the monitor of the event loop."""
        self._interpreter.start()
        self._monitor.start()

    def close(self) -> None:
        """Stop the monitor of the event loop, and reset the interpreter."""
        self._monitor.close()
        self._interpreter.close()

    def take(self) -> HealthSet:
        """Return the health since the last call. It belongs to the phase in the middle of this time."""
        at_ns = now_ns()
        phase = self._windows.at((self._reported_ns + at_ns) // 2).phase
        self._reported_ns = at_ns
        beat = self._monitor.take()._replace(
            read_pauses_ms=self._read_pauses_ms(), clock_stepped_ns=self._wall.stepped_ns()
        )
        health = HealthSet()
        health.at(self._worker, phase).beat(beat)
        return health

    def _read_pauses_ms(self) -> list[float] | None:
        """Return the reading threads' pauses since the last call; None if the event loop reads."""
        latest = [client.pauses() for client in self._clients]
        known = [pauses for pauses in latest if pauses is not None]
        if len(known) < len(latest):
            return None
        new = [pause for pauses in known for pause in pauses if pause[1] > self._paused_until_ns]
        self._paused_until_ns = max((until for _, until in new), default=self._paused_until_ns)
        return [(until - begun) / NS_PER_MS for begun, until in new]


class InterpreterSettings:
    """Garbage collection and thread switches of a process that measures, from `start` to `close`.

    Turns leave no cycles. Those of other code are collected in steps, none of which examines more than MOST_OBJECTS objects,
    however many turns are in flight: the new objects, and all that are not frozen once their number has grown. More objects than
    that are frozen instead: their last reference still frees them, but a cycle among them is only freed after `close`. There is no
    step while the number of objects does not grow, since cycles would make it grow.
    """

    def __init__(self) -> None:
        self._new_left = 0  # new objects up to the next count
        self._kept = 0  # number of objects, without the frozen ones, after the last collection of all
        self._collecting = gevent.Greenlet(self._collect_until_killed)

    def start(self) -> None:
        """Replace automatic garbage collection by steps, and set short time slices for threads."""
        # Longest time for which another thread holds the interpreter while the event loop waits for it.
        sys.setswitchinterval(SWITCH_S)
        gevent.config.track_greenlet_tree = False  # eight objects for each greenlet
        gc.collect()
        self._freeze()
        gc.disable()
        self._collecting.start()

    def collect(self) -> None:
        """Make a step if there are more objects than after the last one. Its pause is measured like every other."""
        if gc.get_count()[0] < MOST_OBJECTS // _GROWN_SHARE:
            return
        new = len(gc.get_objects(generation=0))
        if new > MOST_OBJECTS:
            self._freeze()
            return
        gc.collect(0)
        self._new_left -= new
        if self._new_left < 0:
            self._count()

    def close(self) -> None:
        """Enable automatic garbage collection."""
        self._collecting.kill()
        gc.enable()
        gc.unfreeze()

    def _count(self) -> None:
        """Count the objects; collect all or freeze them if there are many more than after the last collection of all."""
        objects = len(gc.get_objects())
        if objects > MOST_OBJECTS:
            self._freeze()
            return
        if objects > self._kept + MOST_OBJECTS // 4:
            gc.collect()
            self._kept = len(gc.get_objects())
        self._new_left = MOST_OBJECTS // 4

    def _freeze(self) -> None:
        gc.freeze()
        self._kept, self._new_left = 0, MOST_OBJECTS // 4

    def _collect_until_killed(self) -> None:
        while True:
            gevent.sleep(COLLECT_S)
            self.collect()


def steal_s() -> float | None:
    """Return the steal time of all processors since boot, from /proc/stat; None on systems without it."""
    try:
        with open("/proc/stat") as file:
            fields = file.readline().split()
    except OSError:
        return None
    return int(fields[8]) / _USER_HZ if len(fields) > 8 else None
