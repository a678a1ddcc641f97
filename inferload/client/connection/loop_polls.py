"""When the event loop last looked at its sockets, for reads whose data may have waited for it."""

from functools import cache
from typing import Any

from inferload.base.clock import NS_PER_MS, now_ns

WAITED_NS = NS_PER_MS  # a longer poll waited: no socket was readable when it began


class LoopPolls:
    """Two watchers of an event loop that stamp the begin and the end of its latest poll."""

    def __init__(self, loop: Any) -> None:
        self._begun_ns = self._returned_ns = self._earlier_ns = now_ns()  # _earlier_ns: end of the poll before
        # The last before the poll and the first after it: callbacks of equal priority may run on the other side of the stamp.
        self._watchers = (
            loop.prepare(ref=False, priority=loop.MINPRI),
            loop.check(ref=False, priority=loop.MAXPRI),
        )
        for watcher, stamp in zip(self._watchers, (self._begin, self._return), strict=True):
            watcher.start(stamp)

    def unseen_since_ns(self) -> int:
        """Return the earliest time at which a socket that the latest poll reported may have become readable."""
        waited = self._returned_ns - self._begun_ns > WAITED_NS
        return self._returned_ns if waited else self._earlier_ns

    def _begin(self) -> None:
        self._earlier_ns, self._begun_ns = self._returned_ns, now_ns()

    def _return(self) -> None:
        self._returned_ns = now_ns()


@cache  # of an event loop, for all its connections
def polls_of(loop: Any) -> LoopPolls:
    """Return the stamps of an event loop."""
    return LoopPolls(loop)
