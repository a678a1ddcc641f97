"""The clocks: one monotonic clock for every duration, and an anchor that says when that was on the wall.

This is the only module of the load path that imports `time`.
"""

import time
from dataclasses import dataclass

now_ns = time.monotonic_ns
wall_ns = time.time_ns
cpu_ns = time.process_time_ns

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


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
