"""Connections to a server of this process, without sockets: bytes arrive at the instant at which they are sent."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import gevent

from inferload.base.clock import now_ns
from inferload.client.connection import reader_choice
from inferload.client.connection.reply import MARKED_S, ConnectionLost, GatheredReply
from inferload.client.connection.target import Target
from inferload.client.connection.tcp_info import TcpInfo
from inferload.turns.socket_reader import SocketReader


class ServerEnd(Protocol):
    """Server's end of a connection."""

    def send(self, data: bytes, /) -> None: ...
    def close(self) -> None: ...


class MemoryServer(Protocol):
    """Server of this process. `receive` takes the bytes of replies; `closed` is called when the server closes."""

    def connect(self, receive: Callable[[bytes], None], closed: Callable[[], None], /) -> ServerEnd: ...


# Server of all connections of this process; None: they use sockets.
server: MemoryServer | None = None


def reader_of(target: Target) -> SocketReader:
    """Return the reader of the connections to a target. Raise UsageError as `reader_choice.reader_of` does."""
    if server is None:
        return reader_choice.reader_of(target)
    return SocketReader(target=target.url, reader="memory")


class MemoryConnection:
    """Client's end of a connection, the counterpart of `PythonConnection`. Raise no error: nothing is between the ends."""

    info = TcpInfo()

    def __init__(self, peer: MemoryServer, marks: tuple[bytes, ...] = ()) -> None:
        self.turns = 0
        self.kept_ns = 0
        self.closed = False
        self._marks = marks
        self._reply: GatheredReply | None = None
        self._end = peer.connect(self._receive, self._lost)

    def expect(self, on_done: Callable[[], None], on_parse_due: Callable[[], None] | None = None) -> GatheredReply:
        assert self._reply is None
        self.turns += 1
        self._reply = reply = GatheredReply(on_done, on_parse_due, self._marks)
        if on_parse_due is not None:
            reply.on_full = on_parse_due
            reply.on_mark = partial(self._wait_for_end, reply, on_parse_due)
        return reply

    def refresh(self) -> bool:
        """Return False if the server has closed the connection."""
        return not self.closed

    def offer(self, data: bytes) -> bytes:
        self._end.send(data)
        return b""

    def send_rest(self, rest: bytes | memoryview) -> None:
        """Do nothing: `offer` leaves no rest."""

    def cause_of(self, error: OSError) -> OSError:
        """Return the error: nothing else explains it."""
        return error

    def end_by_peer(self) -> None:
        """Return None: no close crosses a request, since both arrive at the instant at which they are sent."""

    def is_rejected(self) -> bool:
        """Return False: there is no kernel between the ends."""
        return False

    def release(self) -> None:
        self._reply = None

    def close(self) -> None:
        """Close the connection; the server aborts an answer in progress. Idempotent."""
        if not self.closed:
            self.closed, self._reply = True, None
            self._end.close()

    def _wait_for_end(self, reply: GatheredReply, on_parse_due: Callable[[], None]) -> None:
        """Have a reply parsed unless it ends soon after a mark."""
        if reply.done:
            return

        def expire() -> None:
            if reply is self._reply and not reply.done:
                on_parse_due()

        gevent.get_hub().loop.timer(MARKED_S).start(expire)

    def _receive(self, data: bytes) -> None:
        if self._reply is None or self._reply.done:  # nothing was asked for
            self.close()
            return
        self._reply.push(data, now_ns(), 0)

    def _lost(self) -> None:
        self.closed = True
        if self._reply is not None:
            self._reply.end(ConnectionLost("the server closed the connection"))
