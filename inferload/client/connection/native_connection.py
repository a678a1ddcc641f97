"""Connections that a native thread reads, without callback, GIL or Python code per token (ADR 6).

The thread (`native/transport`) collects the timestamped reads of each reply, detects its end, and wakes the event loop once; the
reads are then fetched together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from inferload.client.connection import _transport
from inferload.client.connection.http1 import News
from inferload.client.connection.python_connection import offered
from inferload.client.connection.reply import NO_CLOSE_NOTIFY, ConnectionLost, ParsedReply, nothing, tls_failure
from inferload.client.connection.tcp_info import ConnectionEnd, TcpInfo, connection_end, is_rejected, tcp_info

if TYPE_CHECKING:
    from inferload.client.connection.deferred_parser import ParseQueue
    from inferload.client.connection.tls import TlsLayer

# `enum ending` of transport.h
_PEER_CLOSED, _READ_FAILED, _STRAY, _MUCH, _TLS_CUT, _TLS_FAILED = 128, 256, 512, 1024, 2048, 4096
_BEAT_NS = 20_000_000  # BEAT_MS of thread.c: the thread polls at least that often


class ReaderThread:
    """Reader thread of one client, and the watcher for its notifications. The thread starts with the first connection.

    `marks`: texts of which one is in the last event of each whole answer. `jobs`: the queue to which replies add their parsing.
    """

    def __init__(self, loop: Any, marks: tuple[bytes, ...], jobs: ParseQueue) -> None:
        self.raw = _transport.Reader(marks)
        self._connections: dict[int, NativeConnection] = {}
        self._watcher = loop.io(self.raw.fileno(), 1)
        self._watcher.start(jobs.run_after, self._pass_on)

    def connection(self, sock: Any, tls: TlsLayer | None) -> NativeConnection:
        """Return a connection that the thread reads from now on. Raise OSError if the system lacks resources.

        `tls`: after its handshake; it is not used by others from now on.
        """
        return NativeConnection(sock, self, tls)

    def add(self, connection: NativeConnection, fd: int, tls: TlsLayer | None) -> int:
        """Register a connection; return its id. Raise OSError if the system lacks resources."""
        number = self.raw.add(fd) if tls is None else self.raw.add(fd, *tls.raw)
        self._connections[number] = connection
        return number

    def forget(self, number: int) -> None:
        """Unregister a connection; its descriptor may be closed afterwards."""
        if self._connections.pop(number, None) is not None:
            self.raw.forget(number)

    def close(self) -> None:
        for connection in list(self._connections.values()):
            connection.close()
        self._watcher.stop()
        self._watcher.close()
        self.raw.close()

    def _pass_on(self) -> None:
        for number, ending, error, reply in self.raw.ended():
            connection = self._connections.get(number)
            if connection is not None:
                connection.on_ended(ending, error, reply)


class NativeConnection:
    """Counterpart of `PythonConnection` for a socket that the thread reads."""

    __slots__ = (
        "_closed", "_is_reset", "_number", "_reader", "_reply", "_slot", "_sock", "_tls", "info", "kept_ns",
        "turns",
    )  # fmt: skip

    def __init__(self, sock: Any, reader: ReaderThread, tls: TlsLayer | None = None) -> None:
        self._sock = sock
        self._tls = tls  # its Python objects must outlive their use by the thread
        self._reader = reader
        self._reply: NativeReply | None = None
        self._closed = self._is_reset = False
        self.info = TcpInfo()
        self.turns = 0
        self.kept_ns = 0
        self._number = reader.add(self, sock.fileno(), tls)
        self._slot = _Slot(reader.raw, self._number)

    @property
    def closed(self) -> bool:
        """True if either side has closed the connection."""
        return self._closed or self._reader.raw.lost(self._number)

    def expect(self, on_done: Callable[[], None], on_parse_due: Callable[[], None] | None = None) -> NativeReply:
        """Start the reply to which further reads belong."""
        assert self._reply is None
        self._reply = NativeReply(on_done, on_parse_due or nothing, self._slot)
        self.turns = self._reader.raw.expect(self._number)
        return self._reply

    def refresh(self) -> bool:
        if self.closed:
            return False
        self.info = tcp_info(self._sock)  # the thread may not have read the end yet
        return self.info.is_open is not False

    def offer(self, data: bytes) -> bytes | memoryview:
        return offered(self._sock, data if self._tls is None else self._reader.raw.encrypt(self._number, data))

    def send_rest(self, rest: bytes | memoryview) -> None:
        self._sock.sendall(rest)

    def cause_of(self, error: OSError) -> Exception:
        reason = "" if self._tls is None else self._reader.raw.tls_error(self._number)
        return tls_failure(reason) if reason else error

    def end_by_peer(self) -> ConnectionEnd | None:
        seen_ns = 0 if self._closed else self._reader.raw.lost_at(self._number)
        if not seen_ns:
            return None
        from_ns, until_ns = (self._reader.raw.pauses() or [(0, 0)])[-1]
        busy_ns = seen_ns - from_ns if until_ns <= seen_ns < until_ns + _BEAT_NS else 0
        return connection_end(self._sock, seen_ns, self.info, is_reset=self._is_reset, busy_ns=busy_ns)

    def is_rejected(self) -> bool:
        return is_rejected(self._sock, self.info)

    def release(self) -> None:
        """End the reply; any further read closes the connection."""
        if self._reply is not None:
            self._reply.detach()
            self._reply = None

    def close(self) -> None:
        """Unregister and close the socket. Idempotent."""
        if self._closed:
            return
        self.release()
        self._closed = True
        self._reader.forget(self._number)
        self._sock.close()

    def on_ended(self, ending: int, error: int, reply: int) -> None:
        """Handle a notification for the reply of this number, in the event loop."""
        if reply != self.turns:  # queued before the next reply was started
            return
        if self._reply is None:
            self.close()  # unexpected data
        else:
            self._is_reset = ending == _READ_FAILED
            self._reply.ended(ending, error)


class _Slot:
    """The methods of the thread for one connection."""

    def __init__(self, reader: _transport.Reader, number: int) -> None:
        self.frame, self.peek = partial(reader.frame, number), partial(reader.peek, number)
        self.waiting, self.take = partial(reader.waiting, number), partial(reader.take, number)
        self.over, self.tls_error = partial(reader.over, number), partial(reader.tls_error, number)
        self.watch_end, self.watch_next = partial(reader.watch_end, number), partial(reader.watch_next, number)


class NativeReply(ParsedReply):
    """Reply whose reads the thread collects.

    `on_parse_due` is called when many bytes wait to be parsed, or when the body goes on 20 ms after a part of an end marker.
    """

    __slots__ = ("_slot",)

    def __init__(self, on_done: Callable[[], None], on_parse_due: Callable[[], None], slot: _Slot) -> None:
        super().__init__(on_done, on_parse_due, slot)
        self._slot = slot

    @property
    def is_over(self) -> bool:
        return self._parser is None or self._slot.over()

    def watch_end(self) -> None:
        if self._parser is not None:
            self._slot.watch_end()

    def ended(self, ending: int, error: int) -> None:
        """Handle a notification of the thread for this reply."""
        if ending in (_MUCH, News.MARKED):
            self.on_parse_due()
        elif ending == _READ_FAILED:
            self.end(ConnectionLost(f"the connection broke: {os.strerror(error)}"))
        elif ending == _TLS_CUT:
            self.end(ConnectionLost(NO_CLOSE_NOTIFY))
        elif ending == _TLS_FAILED:
            self.end(tls_failure(self._slot.tls_error()))
        elif ending in (_PEER_CLOSED, _STRAY):
            self.end(None)
        else:
            self.heed(ending)
