"""Simulated server on a virtual loop: its work is done when it is due, and its requests arrive between two callbacks."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from msgspec import Struct

from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.deployments import Deployment
from inferload.client.connection.in_memory import ServerEnd


class SimulatedServer(Protocol):
    """Server in memory. It reads the clock of this process, and does no work but in `pump` and when bytes arrive."""

    @property
    def deployment(self) -> Deployment: ...
    @property
    def next_due_ns(self) -> int | None: ...
    def pump(self, now_ns: int, /) -> None: ...
    def connect(self, receive: Callable[[bytes], None], closed: Callable[[], None], /) -> ServerEnd: ...
    def metrics_page(self) -> str: ...
    def empty_prefix_cache(self) -> None: ...


class LoopServer:
    """Server whose work is done by timers of a loop (`MemoryServer`)."""

    def __init__(self, simulated: SimulatedServer, loop: Any) -> None:
        self.simulated = simulated
        self._loop = loop
        self._timer: Any = None
        self._due_ns: int | None = None

    def connect(self, receive: Callable[[bytes], None], closed: Callable[[], None]) -> ServerEnd:
        return _End(self, self.simulated.connect(receive, closed))

    def later(self, call: Callable[[], None]) -> None:
        """Make a call of the server after the current callback, at the same instant."""
        self._loop.run_callback(self._call, call)

    def _call(self, call: Callable[[], None]) -> None:
        call()
        self._plan()

    def _plan(self) -> None:
        """Set the timer to the server's next work."""
        due_ns = self.simulated.next_due_ns
        if due_ns == self._due_ns:
            return
        if self._timer is not None:
            self._timer.close()
            self._timer = None
        self._due_ns = due_ns
        if due_ns is not None:
            self._timer = self._loop.timer(max(0, due_ns - now_ns()) / NS_PER_S)
            self._timer.start(self._pump)

    def _pump(self) -> None:
        self._timer = self._due_ns = None
        self.simulated.pump(now_ns())
        self._plan()


class VirtualProcess(Struct, frozen=True):
    """The loop and the server of this process."""

    loop: Any  # a VirtualLoop: its module is loaded in virtual runs only
    server: LoopServer

    @property
    def held_s(self) -> float:
        """Real time so far for which sockets, child processes and threads held the clock, in seconds."""
        return float(self.loop.held_ns / NS_PER_S)


# None: runs of this process are in real time.
current: VirtualProcess | None = None


class _End:
    """Server's end of a connection."""

    def __init__(self, server: LoopServer, end: ServerEnd) -> None:
        self._server = server
        self._end = end

    def send(self, data: bytes) -> None:
        self._server.later(partial(self._end.send, data))

    def close(self) -> None:
        self._server.later(self._end.close)
