"""Connections that a native thread reads, without callback, GIL or Python code per token (ADR 6).

The thread (`native/reader.c`) collects the timestamped reads of each reply, detects its end, and wakes the event loop once; the
reads are then fetched together.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from inferload.client.connection import _native
from inferload.client.connection.http1 import Framing, Http1Error, parse_head
from inferload.client.connection.python_connection import offered
from inferload.client.connection.reply import Arrivals, ConnectionLost, HttpReply, nothing
from inferload.client.connection.tcp_info import ConnectionEnd, TcpInfo, connection_end, is_rejected, tcp_info

# `enum ending` of reader.c and `enum framing` of native.h.
_ASKS_FOR_HEAD, _COMPLETE, _BROKEN_FRAMING, _PEER_CLOSED, _READ_FAILED, _STRAY, _MUCH, _MARKED = range(8)
_ENDINGS = {1: _COMPLETE, 2: _BROKEN_FRAMING}  # by result of `frame`
_SLICE_BYTES = 65_536  # limit of a parse slice, for reads of any size
_BEAT_NS = 20_000_000  # BEAT_MS of reader.c: the thread polls at least that often
_FRAMINGS = {Framing.CHUNKED: 1, Framing.LENGTH: 2, Framing.CLOSE: 3}


class ReaderThread:
    """Reader thread of one client, and the watcher for its notifications. The thread starts with the first connection.

    `marks`: texts of which one is in the last event of each whole answer.
    """

    def __init__(self, loop: Any, marks: tuple[bytes, ...]) -> None:
        self.raw = _native.Reader(marks)
        self._connections: dict[int, NativeConnection] = {}
        self._watcher = loop.io(self.raw.fileno(), 1)
        self._watcher.start(self._on_wake)

    def connection(self, sock: Any) -> NativeConnection:
        """Return a connection that the thread reads from now on. Raise OSError if the system lacks resources."""
        return NativeConnection(sock, self)

    def add(self, connection: NativeConnection, fd: int) -> int:
        """Register a connection; return its id. Raise OSError if the system lacks resources."""
        number = self.raw.add(fd)
        self._connections[number] = connection
        return number

    def forget(self, number: int) -> None:
        """Unregister a connection; its descriptor may be closed afterwards."""
        if self._connections.pop(number, None) is not None:
            self.raw.forget(number)

    def close(self) -> None:
        """Close all connections and end the thread."""
        for connection in list(self._connections.values()):
            connection.close()
        self._watcher.stop()
        self._watcher.close()
        self.raw.close()

    def _on_wake(self) -> None:
        for number, ending, error, reply in self.raw.ended():
            connection = self._connections.get(number)
            if connection is not None:
                connection.on_ended(ending, error, reply)


class NativeConnection:
    """Counterpart of `PythonConnection` for a plain socket that the thread reads."""

    __slots__ = ("_closed", "_is_reset", "_number", "_reader", "_reply", "_sock", "info", "kept_ns", "turns")

    def __init__(self, sock: Any, reader: ReaderThread) -> None:
        self._sock = sock
        self._reader = reader
        self._reply: NativeReply | None = None
        self._closed = self._is_reset = False
        self.info = TcpInfo()
        self.turns = 0
        self.kept_ns = 0
        self._number = reader.add(self, sock.fileno())

    @property
    def closed(self) -> bool:
        """True if either side has closed the connection."""
        return self._closed or self._reader.raw.lost(self._number)

    def expect(self, on_done: Callable[[], None], on_parse_due: Callable[[], None] | None = None) -> NativeReply:
        """Start the reply to which further reads belong."""
        assert self._reply is None
        self._reply = NativeReply(on_done, on_parse_due or nothing, self._reader.raw, self._number)
        self.turns = self._reader.raw.expect(self._number)
        return self._reply

    def refresh(self) -> bool:
        """See PythonConnection.refresh."""
        if self.closed:
            return False
        self.info = tcp_info(self._sock)  # the thread may not have read the end yet
        return self.info.is_open is not False

    def offer(self, data: bytes) -> bytes | memoryview:
        """See PythonConnection.offer."""
        return offered(self._sock, data)

    def send_rest(self, rest: bytes | memoryview) -> None:
        """See PythonConnection.send_rest."""
        self._sock.sendall(rest)

    def end_by_peer(self) -> ConnectionEnd | None:
        """See PythonConnection.end_by_peer."""
        seen_ns = 0 if self._closed else self._reader.raw.lost_at(self._number)
        if not seen_ns:
            return None
        from_ns, until_ns = (self._reader.raw.pauses() or [(0, 0)])[-1]
        busy_ns = seen_ns - from_ns if until_ns <= seen_ns < until_ns + _BEAT_NS else 0
        return connection_end(self._sock, seen_ns, self.info, is_reset=self._is_reset, busy_ns=busy_ns)

    def is_rejected(self) -> bool:
        """See PythonConnection.is_rejected."""
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


class NativeReply(HttpReply):
    """Reply whose reads the thread collects.

    `on_parse_due` is called when many bytes wait to be parsed, or when the body goes on 20 ms after a part of an end marker.
    """

    __slots__ = ("_connection", "_handed", "_last_ns", "_on_parse_due", "_raw", "_waiting")

    def __init__(
        self, on_done: Callable[[], None], on_parse_due: Callable[[], None], raw: _native.Reader, number: int
    ) -> None:
        super().__init__(on_done)
        self._on_parse_due = on_parse_due
        self._raw: _native.Reader | None = raw  # None: the connection belongs to another reply
        self._connection = number
        self._waiting: list[Arrivals] = []
        self._handed = 0  # reads of the first item of `_waiting` that are handed over
        self._last_ns = 0

    def fetch_waiting(self) -> int:
        """Return the number of reads of the body that can be handed over, after fetching more from the thread if there are none."""
        if not self._waiting:
            self._fetch()
        return sum(len(reads.ends) for reads in self._waiting) - self._handed

    @property
    def body_bytes(self) -> int:
        """Number of received bytes that are not handed over."""
        in_thread = 0 if self._raw is None else self._raw.waiting(self._connection)[1]
        handed = self._waiting[0].ends[self._handed - 1] if self._handed else 0
        return in_thread + sum(len(reads.data) for reads in self._waiting) - handed

    @property
    def last_ns(self) -> int | None:
        """Monotonic time of the latest read."""
        if self._raw is not None:
            self._last_ns = self._raw.waiting(self._connection)[2]
        return self._last_ns or None

    def body(self, most_reads: int) -> Arrivals:
        """See HttpReply.body."""
        if not self._waiting:
            self._fetch()
        if not self._waiting:
            return Arrivals(b"", array("q"), array("q"), array("q"), 0)
        reads, first = self._waiting[0], self._handed
        stop = _slice_end(reads, first, most_reads)
        self._handed = stop
        if stop == len(reads.ends):
            self._handed = 0
            del self._waiting[0]
        return reads if stop - first == len(reads.ends) else _slice(reads, first, stop)

    def watch_end(self) -> None:
        """See HttpReply.watch_end."""
        if self._raw is not None:
            self._raw.watch_end(self._connection)

    def watch_next(self) -> None:
        """See HttpReply.watch_next."""
        if self._raw is not None:
            self._raw.watch_next(self._connection)

    def drop(self) -> None:
        """Discard the remaining reads and the callbacks."""
        super().drop()
        self._on_parse_due = nothing
        self._waiting.clear()
        self._handed = 0

    def detach(self) -> None:
        """Fetch the remaining reads before the connection is reused or closed."""
        if self._raw is not None:
            self._fetch()
            self._raw = None

    def ended(self, ending: int, error: int) -> None:
        """Handle a notification of the thread for this reply."""
        if ending == _ASKS_FOR_HEAD:
            self._set_framing()
            return
        if ending in (_MUCH, _MARKED):
            self._on_parse_due()
            return
        self.detach()  # the last reads
        if ending == _COMPLETE:
            self.finish(complete=True)
        elif ending == _BROKEN_FRAMING:
            self.finish(complete=False, error=Http1Error("the chunk framing is broken"))
        elif ending == _READ_FAILED:
            self.finish(complete=False, error=ConnectionLost(f"the connection broke: {os.strerror(error)}"))
        elif self.head is not None and self.head.framing is Framing.CLOSE:
            self.finish(complete=True)
        else:
            self.finish(complete=False, error=ConnectionLost("the server closed the connection"))

    def _set_framing(self) -> None:
        """Parse a head that the thread does not support, and pass the framing to it."""
        if self._raw is None:
            return
        data = self._raw.peek(self._connection)
        try:
            parsed = parse_head(data)
        except Http1Error as error:
            self.finish(complete=False, error=error)
            return
        if parsed is None:
            self._raw.frame(self._connection, 0, 0, 0)
            return
        head, rest = parsed
        self.hides_marks = head.is_encoded
        framing = _FRAMINGS[head.framing]
        ending = _ENDINGS.get(self._raw.frame(self._connection, len(data) - len(rest), framing, head.length or 0))
        if ending is not None:
            self.ended(ending, 0)

    def _fetch(self) -> None:
        """Fetch the reads of the thread; none while the head is incomplete."""
        if self._raw is None:
            return
        reads, _, self._last_ns, framed = self._raw.waiting(self._connection)
        if not (reads and framed):
            return
        head, data, ends, at_ns, delay_ns, unstamped = self._raw.take(self._connection, self.floor_ns)
        try:
            if self.head is None:
                parsed = parse_head(head)
                assert parsed is not None
                self._begin_body(parsed[0])
            self._waiting.append(Arrivals(data, _numbers(ends), _numbers(at_ns), _numbers(delay_ns), unstamped))
        except Http1Error as error:
            self._raw = None  # before `finish`, whose callback would fetch again
            self.finish(complete=False, error=error)


def _slice_end(reads: Arrivals, first: int, most_reads: int) -> int:
    """Return the end of a slice from a read on: at most `most_reads`, about _SLICE_BYTES, at least one read."""
    stop, begin = min(first + most_reads, len(reads.ends)), reads.ends[first - 1] if first else 0
    if reads.ends[stop - 1] - begin <= _SLICE_BYTES:
        return stop
    return max(first + 1, bisect_right(reads.ends, begin + _SLICE_BYTES, first, stop))


def _slice(reads: Arrivals, first: int, stop: int) -> Arrivals:
    """Return a slice of the reads. Delays are not assigned to reads: all go to the first slice."""
    begin = reads.ends[first - 1] if first else 0
    ends = array("q", [end - begin for end in reads.ends[first:stop]])
    delays = (array("q"), 0) if first else (reads.delay_ns, reads.unstamped)
    return Arrivals(reads.data[begin : begin + ends[-1]], ends, reads.at_ns[first:stop], *delays)


def _numbers(int64s: bytes) -> array[int]:
    numbers = array("q")
    numbers.frombytes(int64s)
    return numbers
