"""HTTP reply to one request: its timestamped reads in order, and its end. The reader of the socket fills it."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np

from inferload.base.clock import NS_PER_S
from inferload.client.connection.http1 import ChunkedDecoder, Framing, Http1Error, ReplyHead, parse_head
from inferload.client.connection.tcp_info import ConnectionEnd, TcpInfo

# Payload for a read without a kernel timestamp.
_NO_STAMP = bytes(16)
_CHUNKS_END = b"\r\n\r\n"  # end of the last chunk and its trailers
_BETWEEN_EVENTS = (b"\n\n", b"\n\r\n", b"\r\r")  # ends of reads behind which a mark cannot go on
_TAIL_BYTES = 256  # more than a mark in chunks of one byte
# Framing between two bytes of a body: the end of a chunk, and the size of the next one.
_CHUNK_EDGE = rb"(?:\r\n[0-9A-Fa-f]+[^\r\n]*\r\n)?"

_RARE = b"DONEg"  # bytes that few events contain


class MarkSearch(NamedTuple):
    """Search for marks in a part of a body with its chunk framing. `rare`: a byte of all of them, which is looked for first."""

    rare: int
    search: Callable[[bytes], object | None]


def mark_searches(marks: tuple[bytes, ...]) -> tuple[MarkSearch, ...]:
    """Return the searches for these texts, one for all texts with the same first byte."""
    searches = []
    for first in dict.fromkeys(mark[0] for mark in marks):
        alike = [mark for mark in marks if mark[0] == first]
        patterns = (_CHUNK_EDGE.join(re.escape(bytes([byte])) for byte in mark) for mark in alike)
        rare = next((byte for byte in _RARE if all(byte in mark for mark in alike)), first)
        searches.append(MarkSearch(rare, re.compile(b"|".join(patterns)).search))
    return tuple(searches)


class ConnectionLost(Exception):
    """The peer closed or reset the connection."""


class Arrivals(NamedTuple):
    """Some reads of a reply: their bytes, and the position of the end and the time of each read.

    `delay_ns`: time from the kernel timestamp to the read; in order, without the `unstamped` reads that have no plausible one.
    """

    data: bytes
    ends: array[int]
    at_ns: array[int]
    delay_ns: array[int]
    unstamped: int


class HttpReply:
    """Base class of the replies of both readers; by itself, the reply to a request without a connection.

    `on_done` is called once in the event loop, when the reply is complete or broken, and must not block.
    """

    __slots__ = (
        "chunks",
        "complete",
        "done",
        "error",
        "floor_ns",
        "head",
        "hides_marks",
        "left_open",
        "on_done",
        "surplus",
    )

    # A stream with more unparsed bytes than this is parsed before its end.
    parse_bytes = 12_288
    # A stream with more unparsed bytes than this is not read until they are handed over.
    full_bytes = 1 << 22

    def __init__(self, on_done: Callable[[], None]) -> None:
        self.on_done = on_done
        self.head: ReplyHead | None = None
        self.chunks: ChunkedDecoder | None = None  # None for bodies that are not chunked
        self.complete = False
        self.done = False
        self.error: Exception | None = None
        self.surplus = False  # there were bytes after the end: the connection cannot be reused
        self.left_open = False  # the answer was complete, but its body did not end: the connection cannot be reused
        self.floor_ns = 0  # time of the request: no read can have arrived before
        self.hides_marks = False  # the body is compressed: its reader cannot see the end marker

    def fetch_waiting(self) -> int:
        """Return the number of reads of the body that are not handed over."""
        return 0

    @property
    def body_bytes(self) -> int:
        """Number of received bytes that are not handed over."""
        return 0

    @property
    def last_ns(self) -> int | None:
        """Monotonic time of the latest read."""
        return None

    def body(self, most_reads: int) -> Arrivals:
        """Hand over up to `most_reads` reads with their framing, which `unframe` removes.

        The time of a read is the kernel's receive timestamp on the monotonic clock. If there is none, or if it lies before the
        request or in the future (the wall clock was stepped), it is the time of the `recv`. Times never decrease.
        """
        raise NotImplementedError

    def watch_end(self) -> None:
        """Have the reply parsed again in 20 ms, unless it ends before."""

    def watch_next(self) -> None:
        """Have the reply parsed again 20 ms after the next read, unless it ends before."""

    def leave_open(self) -> None:
        """End the reply before its body."""
        self.left_open = True
        self.finish(complete=True)

    def finish(self, complete: bool, error: Exception | None = None) -> None:
        """Mark the reply as ended and call `on_done`. Idempotent."""
        if not self.done:
            self.done, self.complete, self.error = True, complete, error
            self.on_done()

    def drop(self) -> None:
        """Discard the remaining reads and the callbacks."""
        self.on_done = nothing

    def finish_if_ended(self) -> None:
        """Finish the reply if its end was among the reads that are parsed (GatheredReply)."""

    @property
    def unframe(self) -> Callable[[bytes], bytes]:
        """Function from the next bytes to bytes of the body. It raises Http1Error for broken framing."""
        return bytes if self.chunks is None else self.chunks.feed

    @property
    def between_chunks(self) -> bool:
        """True if the next byte is the first of a chunk, or of any part of a body without chunks."""
        return self.chunks is None or self.chunks.between_chunks

    def _begin_body(self, head: ReplyHead) -> None:
        self.head = head
        self.hides_marks = head.is_encoded
        if head.framing is Framing.CHUNKED:
            self.chunks = ChunkedDecoder()


class AnyConnection(Protocol):
    """A keep-alive connection with either reader."""

    turns: int  # requests sent so far
    kept_ns: int  # time since which it is idle
    info: TcpInfo  # when the latest request was about to be sent

    @property
    def closed(self) -> bool: ...
    def expect(self, on_done: Callable[[], None], on_parse_due: Callable[[], None] | None = None, /) -> HttpReply: ...
    def refresh(self) -> bool: ...
    def offer(self, data: bytes) -> bytes | memoryview: ...
    def send_rest(self, rest: bytes | memoryview) -> None: ...
    def end_by_peer(self) -> ConnectionEnd | None: ...
    def is_rejected(self) -> bool: ...
    def release(self) -> None: ...
    def close(self) -> None: ...


class GatheredReply(HttpReply):
    """Reply whose reads are added one by one in the event loop.

    A read is not parsed when it is added. If it may contain the end of a chunked body, `on_parse_due` is called:
    parsing the body decides. If it contains a mark, which is a part of the end marker, `on_mark` is called. Reads are stored in
    arrays and lists of bytes, which are cheap for the garbage collector.
    """

    __slots__ = (
        "_body_bytes",
        "_data",
        "_last_ns",
        "_left",
        "_marks",
        "_mono_ns",
        "_newest_ns",
        "_stamps",
        "_tail",
        "_wall_ns",
        "_watches_next",
        "on_full",
        "on_mark",
        "on_parse_due",
        "on_room",
    )

    def __init__(
        self,
        on_done: Callable[[], None],
        on_parse_due: Callable[[], None] | None = None,
        marks: tuple[MarkSearch, ...] = (),
    ) -> None:
        super().__init__(on_done)
        self.on_parse_due = on_parse_due or self._look_for_end
        self.on_mark: Callable[[], None] = nothing
        self._marks = marks
        self._tail = b""  # of the body, if it may end within a mark
        self._watches_next = False  # the next read is treated as one with a mark
        self.on_full: Callable[[], None] = nothing  # stop reading until `on_room` is called
        self.on_room: Callable[[], None] = nothing
        self._last_ns: int | None = None
        self._newest_ns = 0  # time of the latest read that is handed over
        self._body_bytes = 0
        self._left = 0
        self._mono_ns, self._wall_ns = array("q"), array("q")
        self._stamps: list[bytes] = []
        self._data: list[bytes] = []

    def fetch_waiting(self) -> int:
        """Return the number of reads of the body that are not handed over."""
        return 0 if self.head is None else len(self._data)

    @property
    def body_bytes(self) -> int:
        """Number of received bytes that are not handed over."""
        return self._body_bytes

    @property
    def last_ns(self) -> int | None:
        """Monotonic time of the latest read."""
        return self._last_ns

    def take(self, data: bytes, mono_ns: int, wall_ns: int, ancillary: list[Any]) -> None:
        """Add a read, in the event loop; this must be fast."""
        self._last_ns = mono_ns
        self._mono_ns.append(mono_ns)
        self._wall_ns.append(wall_ns)
        self._stamps.append(ancillary[0][2] if ancillary else _NO_STAMP)
        self._data.append(data)
        self._body_bytes += len(data)
        if self.head is None:
            self._look_for_head()
        elif self.chunks is not None:
            # A chunked body ends in CRLF CRLF, which hardly any chunk of SSE contains: the only search of most reads.
            if len(data) < 4 or _CHUNKS_END in data or (data[0] in b"\r\n" and self._may_end()):
                self.on_parse_due()
        elif self.head.framing is Framing.LENGTH:
            self._count_down()
        for rare, search in self._marks:
            if rare in data and search(data) is not None:
                self.on_mark()
        if self._tail or not data.endswith(_BETWEEN_EVENTS):
            self._look_for_torn_mark(data)
        if self._watches_next:
            self._watches_next = False
            self.on_mark()
        if self._body_bytes > self.full_bytes and not self.done:
            self.on_full()

    def watch_end(self) -> None:
        """See HttpReply.watch_end."""
        self.on_mark()

    def watch_next(self) -> None:
        """See HttpReply.watch_next."""
        self._watches_next = True

    def end(self, error: ConnectionLost | None) -> None:
        """Handle the end of the stream, in order or with an error. A body that is complete without it stays complete."""
        self._look_for_end()
        ends_body = error is None and self.head is not None and self.head.framing is Framing.CLOSE
        self.finish(ends_body, None if ends_body else error or ConnectionLost("the server closed the connection"))

    def drop(self) -> None:
        """Discard the remaining reads and the callbacks."""
        super().drop()
        for column in (self._data, self._mono_ns, self._wall_ns, self._stamps):
            del column[:]
        self._body_bytes = 0
        self.on_parse_due = self.on_full = self.on_room = self.on_mark = nothing

    def body(self, most_reads: int) -> Arrivals:
        """See HttpReply.body."""
        data = self._data[:most_reads]
        mono = np.array(self._mono_ns[:most_reads])
        wall = np.array(self._wall_ns[:most_reads])
        seconds, nanoseconds = np.frombuffer(b"".join(self._stamps[:most_reads]), dtype=np.int64).reshape(-1, 2).T
        for column in (self._data, self._mono_ns, self._wall_ns, self._stamps):
            del column[:most_reads]
        delay = wall - (seconds * NS_PER_S + nanoseconds)
        believed = (delay >= 0) & (mono - delay >= self.floor_ns)
        least = max(self.floor_ns, self._newest_ns)
        at = np.maximum.accumulate(np.maximum(np.where(believed, mono - delay, mono), least))
        if len(at):
            self._newest_ns = int(at[-1])
        ends = array("q", accumulate(map(len, data)))
        self._body_bytes -= ends[-1] if ends else 0
        if self._body_bytes <= self.parse_bytes:
            self.on_room()
        unstamped = len(at) - int(believed.sum())
        return Arrivals(b"".join(data), ends, _flat(at), _flat(delay[believed]), unstamped)

    def finish_if_ended(self) -> None:
        """Finish the reply if its last chunk was among the reads that are parsed."""
        if self.chunks is not None and self.chunks.done:
            self.surplus = bool(self.chunks.surplus)
            self.finish(complete=True)

    def _look_for_head(self) -> None:
        head_so_far = b"".join(self._data)
        try:
            parsed = parse_head(head_so_far)
        except Http1Error as error:
            self.finish(complete=False, error=error)
            return
        for column in (self._data, self._mono_ns, self._wall_ns, self._stamps):
            del column[:-1]
        if parsed is None:
            self._data[0] = head_so_far
            return
        head, rest = parsed
        self._begin_body(head)
        self._data[0] = rest  # the head ends in this read: the rest has its time
        self._body_bytes = len(rest)
        if head.framing is Framing.CHUNKED:
            if len(rest) < 4 or _CHUNKS_END in rest:
                self.on_parse_due()
        elif head.framing is Framing.LENGTH:
            self._left = head.length or 0
            self._count_down()

    def _look_for_torn_mark(self, data: bytes) -> None:
        """Look for a mark in this read and those before it since the last end of an event."""
        joined = self._tail + data
        if any(search(joined) is not None for _, search in self._marks):
            self.on_mark()
        self._tail = b"" if joined.endswith(_BETWEEN_EVENTS) else joined[-_TAIL_BYTES:]

    def _may_end(self) -> bool:
        """Return True if the end of a chunked body may be split over the last two reads."""
        return len(self._data) < 2 or _CHUNKS_END in self._data[-2][-3:] + self._data[-1][:3]

    def _count_down(self) -> None:
        """Subtract the latest read from the remaining length; cut off bytes after the end."""
        data = self._data[-1]
        self._left -= len(data)
        if self._left < 0:
            self.surplus = True
            self._body_bytes += self._left
            self._data[-1] = data[: self._left]
        if self._left <= 0:
            self.finish(complete=True)

    def _look_for_end(self) -> None:
        """Decode the stored reads with a copy of the decoder; finish the reply if the last chunk is among them."""
        if self.chunks is None or self.done:
            return
        trial = self.chunks.copy()
        try:
            for piece in self._data:
                trial.feed(piece)
        except Http1Error as error:
            self.finish(complete=False, error=error)
            return
        if trial.done:
            self.finish(complete=True)


def _flat(numbers: Any) -> array[int]:
    """Return the integers of a NumPy array as an `array`."""
    flat = array("q")
    flat.frombytes(numbers.tobytes())
    return flat


def nothing() -> None:
    """Do nothing: the callback of replies without a listener."""
