"""Clocks: a monotonic clock for all durations, and an anchor that maps it to the wall clock.

No other module of the load path imports `time`.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

now_ns = time.monotonic_ns
wall_ns = time.time_ns
cpu_ns = time.process_time_ns

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

_STEP_NS = 50 * NS_PER_MS  # between two readings a second apart; slewing changes the clock by less


@dataclass(frozen=True, slots=True)
class Anchor:
    """One instant on both clocks of a process, to convert monotonic instants to wall time."""

    wall_ns: int
    mono_ns: int

    @classmethod
    def take(cls) -> "Anchor":
        """Read both clocks; of five attempts, the one with the shortest delay between the readings."""
        best: Anchor | None = None
        best_spread_ns = 0
        for _ in range(5):
            before_ns = now_ns()
            wall = wall_ns()
            after_ns = now_ns()
            if best is None or after_ns - before_ns < best_spread_ns:
                best, best_spread_ns = cls(wall, (before_ns + after_ns) // 2), after_ns - before_ns
        assert best is not None
        return best

    def to_wall_ns(self, mono_ns: int) -> int:
        """Convert a monotonic instant to wall time, by the wall clock at the time of the anchor."""
        return self.wall_ns + (mono_ns - self.mono_ns)


def clock_id() -> str | None:
    """Identify the monotonic clock of this process: processes with equal ids read the same clock. None: unknown.

    Each boot of a kernel has one clock, which containers share; a time namespace shifts it (time_namespaces(7)).
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return None
    try:
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:  # a kernel before 5.6
        return boot


class WallWatch:
    """Detector of wall clock steps, and of suspends, which the monotonic clock does not count."""

    def __init__(self) -> None:
        self._last = Anchor.take()

    def stepped_ns(self) -> int:
        """Return the step of the wall clock since the last call; 0 without a step."""
        now = Anchor.take()
        moved_ns = now.wall_ns - self._last.to_wall_ns(now.mono_ns)
        self._last = now
        return moved_ns if abs(moved_ns) > _STEP_NS else 0
