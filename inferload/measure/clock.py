"""The clocks: one monotonic clock for every duration, and an anchor that says when that was on the wall.

This is the only module of the load path that imports `time`.
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

_STEP_NS = (
    50 * NS_PER_MS
)  # between two looks a second apart; a clock that is slewed gains less, one that is set mostly more


@dataclass(frozen=True, slots=True)
class Anchor:
    """One instant read on both clocks of a process, so that its monotonic stamps can be placed on the wall."""

    wall_ns: int
    mono_ns: int

    @classmethod
    def take(cls) -> "Anchor":
        """Read both clocks as near together as can be: the tightest of a few tries."""
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
        """Wall time of a monotonic stamp, as the wall clock stood when the anchor was taken."""
        return self.wall_ns + (mono_ns - self.mono_ns)


def clock_id() -> str | None:
    """What this process's monotonic clock is: where it is the same in two processes, they read one clock; None: not known.

    A start of a kernel has one such clock, which containers share; a time namespace moves it (time_namespaces(7)).
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
    """Notices that somebody has set the wall clock, or that the machine slept, which the monotonic clock leaves out."""

    def __init__(self) -> None:
        self._last = Anchor.take()

    def stepped_ns(self) -> int:
        """By how much the wall clock was set since the last call; 0 where it was not."""
        now = Anchor.take()
        moved_ns = now.wall_ns - self._last.to_wall_ns(now.mono_ns)
        self._last = now
        return moved_ns if abs(moved_ns) > _STEP_NS else 0
