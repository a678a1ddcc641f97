"""Virtual clock: it jumps from one due call to the next, and greenlets wait on it."""

import heapq
import itertools
from collections.abc import Callable

from greenlet import getcurrent, greenlet

from inferload.base.clock import Anchor


class VirtualClock:
    """Clock with scheduled calls, in order of their instants, then of their numbers. It starts at an anchor."""

    def __init__(self, anchor: Anchor) -> None:
        self.anchor = anchor
        self._at_ns = anchor.mono_ns
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._number = itertools.count()
        self._main = getcurrent()  # of the thread that runs the clock

    def now_ns(self) -> int:
        """Return the current instant."""
        return self._at_ns

    def wall_ns(self) -> int:
        """Return the current instant as wall time."""
        return self.anchor.to_wall_ns(self._at_ns)

    def cpu_ns(self) -> int:
        """Return 0: work takes no time on this clock."""
        return 0

    @property
    def next_ns(self) -> int | None:
        """Instant of the next call; None without one."""
        return self._due[0][0] if self._due else None

    def at(self, at_ns: int, call: Callable[[], object]) -> None:
        """Schedule a call; an instant in the past is now."""
        heapq.heappush(self._due, (max(at_ns, self._at_ns), next(self._number), call))

    def advance(self, at_ns: int) -> None:
        """Set the clock to an instant that is not in the past."""
        if at_ns < self._at_ns:
            raise ValueError(f"{at_ns} is before {self._at_ns}")
        self._at_ns = at_ns

    def call_next(self) -> None:
        """Make the next call at its instant."""
        at_ns, _, call = heapq.heappop(self._due)
        self.advance(at_ns)
        call()

    def clear(self) -> None:
        """Remove all calls; greenlets that wait for them end."""
        self._due.clear()

    def spawn(self, call: Callable[[], object], at_ns: int | None = None) -> None:
        """Run a call in a greenlet, now or from an instant on."""
        self.at(self._at_ns if at_ns is None else at_ns, greenlet(call, self._main).switch)

    def sleep_until(self, at_ns: int) -> None:
        """Block the calling greenlet until an instant."""
        if at_ns > self._at_ns:
            self.at(at_ns, getcurrent().switch)
            wait()

    def together(self, calls: list[Callable[[], object]]) -> None:
        """Run calls in a greenlet each, and block the calling greenlet until all have returned."""
        waiter, left = getcurrent(), len(calls)

        def run(call: Callable[[], object]) -> None:
            nonlocal left
            call()
            left -= 1
            if not left:
                self.at(self._at_ns, waiter.switch)

        for call in calls:
            self.spawn(lambda call=call: run(call))  # type: ignore[misc]
        if calls:
            wait()


def wait() -> None:
    """Block the calling greenlet until another call switches to it."""
    parent = getcurrent().parent
    assert parent is not None  # the main greenlet runs the clock
    parent.switch()
