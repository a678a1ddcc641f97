"""Clocks: a monotonic clock for all durations, and an anchor that maps it to the wall clock; random identifiers.

No other module reads a clock (tests/unit/project/test_layers.py lists the exceptions). All instants come from one `Clock`, which is
read at each call and can be replaced: by a virtual one (`run/virtual`), or by a test. A run on a virtual clock replaces the
source of identifiers as well, so that its repetitions make the same.
"""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random, SystemRandom

from msgspec import Struct

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

_STEP_NS = 50 * NS_PER_MS  # between two readings a second apart; slewing changes the clock by less


class Clock(Struct, frozen=True):
    """Source of instants. `is_virtual`: they are not those of this machine, and its load and speed do not matter."""

    now_ns: Callable[[], int]
    wall_ns: Callable[[], int]
    cpu_ns: Callable[[], int]  # CPU time of this process
    is_virtual: bool = False


SYSTEM = Clock(time.monotonic_ns, time.time_ns, time.process_time_ns)
current = SYSTEM  # assign another clock here to replace the source of all instants
identifiers: Random = SystemRandom()  # assign another source here to replace that of all identifiers


def now_ns() -> int:
    """Return the monotonic time in nanoseconds; its zero has no meaning."""
    return current.now_ns()


def wall_ns() -> int:
    """Return the wall time in nanoseconds since the epoch."""
    return current.wall_ns()


def cpu_ns() -> int:
    """Return the CPU time of this process in nanoseconds."""
    return current.cpu_ns()


def is_virtual() -> bool:
    """Return True if the instants are those of a virtual clock."""
    return current.is_virtual


def calendar_now() -> datetime:
    """Return the date and time of this machine in UTC, whatever the clock of a run: for names and dates of documents."""
    return datetime.fromtimestamp(SYSTEM.wall_ns() / NS_PER_S, UTC)


def token_hex(size: int) -> str:
    """Return `size` random bytes for an identifier, as hexadecimal digits."""
    return token_bytes(size).hex()


def token_bytes(size: int) -> bytes:
    """Return random bytes for an identifier. Secrets must not come from here: see the module `secrets`."""
    return identifiers.getrandbits(8 * size).to_bytes(size, "big")


class Anchor(Struct, frozen=True):
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

    @property
    def utc(self) -> datetime:
        """Its date and time in UTC."""
        return datetime.fromtimestamp(self.wall_ns / NS_PER_S, UTC)

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
