"""HTTP reply to one request: its timestamped reads in order, and its end. The reader of the socket fills it."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from inferload.base.clock import NS_PER_S
from inferload.base.http_status import alert_text, asks_for_certificate
from inferload.base.on_use import OnUse
from inferload.client.connection import reader_choice
from inferload.client.connection.http1 import ChunkedDecoder, Framing, Http1Error, News, ReplyHead, parse_head
from inferload.client.connection.tcp_info import ConnectionEnd, TcpInfo

_timespec = struct.Struct("qq").unpack  # of the kernel's timestamp: seconds and nanoseconds
_UNCOMPILED = OnUse[Callable[[tuple[bytes, ...]], Any]](
    {"parser": "inferload.client.connection.python_parser:PythonParser"}
)
NO_CLOSE_NOTIFY = "the server closed the connection without TLS's close_notify"
MARKED_S = 0.021  # MARKED_NS in thread.c, and the error of a timer
_SLICE_BYTES = 65_536  # limit of a parse slice, for reads of any size
_FRAMINGS = {Framing.CHUNKED: 1, Framing.LENGTH: 2, Framing.CLOSE: 3}  # `enum framing` of parser.h


class ConnectionLost(Exception):
    """The peer closed or reset the connection."""


class CertificateRefused(ConnectionLost):
    """The peer ended TLS for the client's certificate, or for want of one. With TLS 1.3 this follows the handshake."""


def tls_failure(reason: str) -> ConnectionLost:
    """Return the error of a connection that TLS ended. `reason`: of OpenSSL."""
    kind = CertificateRefused if asks_for_certificate(reason) else ConnectionLost
    return kind(f"TLS: {alert_text(reason)}")


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
        "chunks", "complete", "done", "error", "floor_ns", "head", "hides_marks", "left_open", "on_done", "surplus",
    )  # fmt: skip

    # A stream with more unparsed bytes than this is parsed before its end.
    parse_bytes = 12_288

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

    @property
    def is_over(self) -> bool:
        """True if its end was read, though perhaps not reported yet."""
        return self.done

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
    def cause_of(self, error: OSError) -> Exception: ...
    def end_by_peer(self) -> ConnectionEnd | None: ...
    def is_rejected(self) -> bool: ...
    def release(self) -> None: ...
    def close(self) -> None: ...


class Parser(Protocol):
    """Reads of one reply in a parser: the thread's, or one to which they are pushed."""

    def frame(self, head_bytes: int, framing: int, length: int, /) -> int: ...
    def peek(self) -> bytes: ...
    def waiting(self) -> tuple[int, int, int, int]: ...
    def take(self, floor_ns: int, /) -> tuple[bytes, bytes, bytes, bytes, bytes, int]: ...
    def watch_next(self) -> None: ...


class ParsedReply(HttpReply):
    """Reply whose reads a parser collects, which finds its head, its end, and the marks."""

    __slots__ = ("_handed", "_last_ns", "_parser", "_waiting", "on_parse_due")

    def __init__(self, on_done: Callable[[], None], on_parse_due: Callable[[], None], parser: Parser) -> None:
        super().__init__(on_done)
        self.on_parse_due = on_parse_due
        self._parser: Parser | None = parser  # None: it has nothing more for this reply
        self._waiting: list[Arrivals] = []
        self._handed = 0  # reads of the first item of `_waiting` that are handed over
        self._last_ns = 0

    def fetch_waiting(self) -> int:
        """Return the number of reads of the body that can be handed over, after fetching more from the parser if there are none."""
        if not self._waiting:
            self._fetch()
        return sum(len(reads.ends) for reads in self._waiting) - self._handed

    @property
    def body_bytes(self) -> int:
        """Number of received bytes that are not handed over."""
        in_parser = 0 if self._parser is None else self._parser.waiting()[1]
        return in_parser + sum(len(reads.data) for reads in self._waiting) - self._handed_bytes

    @property
    def _handed_bytes(self) -> int:
        return self._waiting[0].ends[self._handed - 1] if self._handed else 0

    @property
    def last_ns(self) -> int | None:
        """Monotonic time of the latest read."""
        if self._parser is not None:
            self._last_ns = self._parser.waiting()[2]
        return self._last_ns or None

    def body(self, most_reads: int) -> Arrivals:
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

    def watch_next(self) -> None:
        if self._parser is not None:
            self._parser.watch_next()

    def drop(self) -> None:
        super().drop()
        self.on_parse_due = nothing
        self._parser = None
        self._waiting.clear()
        self._handed = 0

    def detach(self) -> None:
        """Fetch the remaining reads: the parser may be used for the next reply."""
        if self._parser is not None:
            self._fetch()
            self._parser = None

    def end(self, error: ConnectionLost | None) -> None:
        """Handle the end of the stream, in order or with an error."""
        self.detach()  # the last reads
        ends_body = error is None and self.head is not None and self.head.framing is Framing.CLOSE
        self.finish(ends_body, None if ends_body else error or ConnectionLost("the server closed the connection"))

    def heed(self, news: int) -> None:
        if news & News.SURPLUS:
            self.surplus = True
        if news & News.ASKS_FOR_HEAD:
            self._set_framing()
        elif news & (News.COMPLETE | News.BROKEN):
            self.detach()  # the last reads
            error = self._why_broken() if news & News.BROKEN else None
            self.finish(complete=error is None, error=error)

    def _why_broken(self) -> Http1Error:
        """Return the error of the chunk framing in the reads that are not handed over."""
        data = b"".join(reads.data for reads in self._waiting)[self._handed_bytes :]
        try:
            (self.chunks or ChunkedDecoder()).copy().feed(data)
        except Http1Error as error:
            return error
        return Http1Error("the chunk framing is broken")

    def _set_framing(self) -> None:
        """Parse a head that the parser does not support, and pass the framing to it."""
        if self._parser is None:
            return
        data = self._parser.peek()
        try:
            parsed = parse_head(data)
        except Http1Error as error:
            self.finish(complete=False, error=error)
            return
        if parsed is None:
            self._parser.frame(0, 0, 0)
            return
        head, rest = parsed
        self.hides_marks = head.is_encoded
        self.heed(self._parser.frame(len(data) - len(rest), _FRAMINGS[head.framing], head.length or 0))

    def _fetch(self) -> None:
        """Fetch the reads of the parser; none while the head is incomplete."""
        if self._parser is None:
            return
        reads, _, self._last_ns, framed = self._parser.waiting()
        if not (reads and framed):
            return
        head, data, ends, at_ns, delay_ns, unstamped = self._parser.take(self.floor_ns)
        try:
            if self.head is None:
                parsed = parse_head(head)
                assert parsed is not None
                self._begin_body(parsed[0])
            self._waiting.append(Arrivals(data, _numbers(ends), _numbers(at_ns), _numbers(delay_ns), unstamped))
        except Http1Error as error:
            self._parser = None  # before `finish`, whose callback would fetch again
            self.finish(complete=False, error=error)


class GatheredReply(ParsedReply):
    """Reply whose reads are pushed one by one in the event loop, to the compiled parser if this process has it.

    `marks`: texts of which one is in the last event of each whole answer. If a read contains one, `on_mark` is called.
    """

    __slots__ = ("_push", "on_full", "on_mark", "on_room")

    def __init__(
        self, on_done: Callable[[], None], on_parse_due: Callable[[], None] | None = None, marks: tuple[bytes, ...] = ()
    ) -> None:
        compiled = reader_choice.parser()
        parser = (_UNCOMPILED["parser"] if compiled is None else compiled.Reply)(marks)
        super().__init__(on_done, on_parse_due or nothing, parser)
        self._push = parser.push
        self.on_mark: Callable[[], None] = nothing
        self.on_full: Callable[[], None] = nothing  # stop reading until `on_room` is called
        self.on_room: Callable[[], None] = nothing

    def take(self, data: bytes, mono_ns: int, wall_ns: int, ancillary: list[Any]) -> None:
        """Add a read, in the event loop; this must be fast."""
        age_ns = -1
        if ancillary:
            seconds, nanoseconds = _timespec(ancillary[0][2])
            age_ns = wall_ns - (seconds * NS_PER_S + nanoseconds)
        self.push(data, mono_ns, age_ns)

    def push(self, data: bytes, mono_ns: int, age_ns: int) -> None:
        """Add a read of bytes that arrived `age_ns` before `mono_ns`; -1: unknown."""
        news = self._push(data, mono_ns, age_ns)
        if news:
            self.heed(news)

    def heed(self, news: int) -> None:
        super().heed(news)
        if news & News.MARKED:
            self.on_mark()
        if news & News.FULL and not self.done:
            self.on_full()

    def watch_end(self) -> None:
        self.on_mark()

    def drop(self) -> None:
        super().drop()
        self.on_full = self.on_room = self.on_mark = nothing

    def body(self, most_reads: int) -> Arrivals:
        reads = super().body(most_reads)
        if self.body_bytes <= self.parse_bytes:
            self.on_room()
        return reads


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


def nothing() -> None:
    """Do nothing: the callback of replies without a listener."""
