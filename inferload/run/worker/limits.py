"""Limit of a worker's turns in flight."""

from collections import deque

from gevent.event import AsyncResult


class InFlightLimiter:
    """Limit of turns in flight; waiting turns enter first come, first served."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: deque[AsyncResult] = deque()
        self._closed = False

    def try_enter(self) -> bool:
        """Take a slot if one is free and no turn waits for it."""
        if self._closed or self._waiting or not self._free:
            return False
        self._free -= 1
        return True

    def enter(self) -> bool:
        """Wait for a slot; False if the limiter was closed meanwhile."""
        if self._closed or self.try_enter():
            return not self._closed
        admitted = AsyncResult()
        self._waiting.append(admitted)
        return bool(admitted.get())

    def leave(self) -> None:
        """Release a slot, to the turn that has waited longest if any waits."""
        if self._waiting:
            self._waiting.popleft().set(True)
        else:
            self._free += 1

    def close(self) -> None:
        self._closed = True
        while self._waiting:
            self._waiting.popleft().set(False)
