"""What came back for one request: stamped reads, in order, and whether they are all there. Whoever reads the sockets fills it."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np

from inferload.client.connection.http1 import ChunkedDecoder, Framing, Http1Error, ReplyHead, parse_head
from inferload.measure.clock import NS_PER_S

# The largest ancillary payload that says nothing: a read without a kernel stamp.
_NO_STAMP = bytes(16)
_CHUNKS_END = b"\r\n\r\n"  # of the last chunk and its trailers


class ConnectionLost(Exception):
    """The peer closed or reset the connection."""


class Arrivals(NamedTuple):
    """Some reads of a reply: their bytes, where each ends among them, the instant of each, and what it waited in our process."""

    data: bytes
    ends: array[int]
    at_ns: array[int]
    delay_ns: array[int]  # of those reads that carried a kernel stamp that can be believed; in order, but fewer
    unstamped: int


class Reply:
    """Base of what the two ways to read share; by itself, the reply of a request that has no connection yet.

    `on_done` is called once, when the reply is complete or broken; from the event loop, so it must not block.
    """

    __slots__ = ("chunks", "complete", "done", "error", "floor_ns", "head", "on_done", "surplus")

    # A live stream that holds more bytes than this is parsed while it goes on.
    digest_bytes = 12_288
    # One that holds more than this is not read on until they have been handed over.
    full_bytes = 1 << 22

    def __init__(self, on_done: Callable[[], None]) -> None:
        self.on_done = on_done
        self.head: ReplyHead | None = None
        self.chunks: ChunkedDecoder | None = None  # takes the framing off a chunked body; None for other bodies
        self.complete = False
        self.done = False
        self.error: Exception | None = None
        self.surplus = False  # bytes came behind the end: the connection can carry no other reply
        self.floor_ns = 0  # when the request was sent: no read can have arrived before

    @property
    def waiting(self) -> int:
        """How many reads of the body have not been handed over."""
        return 0

    @property
    def body_bytes(self) -> int:
        """Bytes that came and were not handed over."""
        return 0

    @property
    def last_ns(self) -> int | None:
        """Monotonic time of the newest read."""
        return None

    def body(self, most_reads: int) -> Arrivals:
        """Hand over up to so many reads, as they came; `unframe` takes the chunk framing off each, in order.

        An instant is the kernel's receive stamp moved to the monotonic clock; where there is none, or where it would lie before
        the request or in the future (the wall clock was stepped), it is the time at which we read. Instants never run backwards.
        """
        raise NotImplementedError

    def finish(self, complete: bool, error: Exception | None = None) -> None:
        """No more is to come; the first call counts."""
        if not self.done:
            self.done, self.complete, self.error = True, complete, error
            self.on_done()

    def drop(self) -> None:
        """Forget what was not handed over, and who was to be told."""
        self.on_done = nothing

    @property
    def at_end(self) -> bool:
        """Whether the last chunk has been handed over."""
        return self.chunks is not None and self.chunks.done

    def parsed(self) -> None:
        """Take note that all reads handed over so far have been parsed; ends a reply whose reads are not framed before."""

    @property
    def unframe(self) -> Callable[[bytes], bytes]:
        """What turns the next bytes into bytes of the body; it raises Http1Error where the framing is broken."""
        return bytes if self.chunks is None else self.chunks.feed

    @property
    def between_chunks(self) -> bool:
        """Whether what comes next is the first byte of a chunk, or of any part of a body that has none."""
        return self.chunks is None or self.chunks.between_chunks

    def _begin_body(self, head: ReplyHead) -> None:
        self.head = head
        if head.framing is Framing.CHUNKED:
            self.chunks = ChunkedDecoder()


class AnyConnection(Protocol):
    """A keep-alive connection, whoever reads it."""

    turns: int  # requests sent over it so far

    @property
    def closed(self) -> bool: ...
    def expect(self, on_done: Callable[[], None], on_tail: Callable[[], None] | None = None, /) -> Reply: ...
    def offer(self, data: bytes) -> bytes | memoryview: ...
    def send_rest(self, rest: bytes | memoryview) -> None: ...
    def release(self) -> None: ...
    def close(self) -> None: ...


class GatheredReply(Reply):
    """A reply whose reads are handed in one by one, from the event loop.

    Nothing is parsed when a read is taken. Where its last bytes may be the end of a chunked body, `on_tail` is called: whoever
    reads the body then finds out. Reads lie in flat arrays and lists of bytes, none of which the garbage collector has to look at.
    """

    __slots__ = (
        "_body_bytes",
        "_data",
        "_last_ns",
        "_left",
        "_mono_ns",
        "_newest_ns",
        "_stamps",
        "_wall_ns",
        "on_full",
        "on_room",
        "on_tail",
    )

    def __init__(self, on_done: Callable[[], None], on_tail: Callable[[], None] | None = None) -> None:
        super().__init__(on_done)
        self.on_tail = on_tail or self._look_for_end
        self.on_full: Callable[[], None] = nothing  # no more is to be read until `on_room` is called
        self.on_room: Callable[[], None] = nothing
        self._last_ns: int | None = None
        self._newest_ns = 0  # instant of the newest read handed over
        self._body_bytes = 0
        self._left = 0
        self._mono_ns, self._wall_ns = array("q"), array("q")
        self._stamps: list[bytes] = []
        self._data: list[bytes] = []

    @property
    def waiting(self) -> int:
        """How many reads of the body have not been handed over."""
        return 0 if self.head is None else len(self._data)

    @property
    def body_bytes(self) -> int:
        """Bytes that came and were not handed over."""
        return self._body_bytes

    @property
    def last_ns(self) -> int | None:
        """Monotonic time of the newest read."""
        return self._last_ns

    def take(self, data: bytes, mono_ns: int, wall_ns: int, ancillary: list[Any]) -> None:
        """Keep a read; called from the event loop, so nothing here may be slow."""
        self._last_ns = mono_ns
        self._mono_ns.append(mono_ns)
        self._wall_ns.append(wall_ns)
        self._stamps.append(ancillary[0][2] if ancillary else _NO_STAMP)
        self._data.append(data)
        self._body_bytes += len(data)
        if self.head is None:
            self._look_for_head()
        elif self.chunks is not None:
            # A chunked body ends in CRLF CRLF, which hardly any chunk of SSE contains: the only look at most reads.
            if len(data) < 4 or _CHUNKS_END in data or (data[0] in b"\r\n" and self._may_end()):
                self.on_tail()
        elif self.head.framing is Framing.LENGTH:
            self._count_down()
        if self._body_bytes > self.full_bytes and not self.done:
            self.on_full()

    def eof(self) -> None:
        """The peer closed its side."""
        if self.head is not None and self.head.framing is Framing.CLOSE:
            self.finish(complete=True)
            return
        self._look_for_end()
        self.finish(complete=False, error=ConnectionLost("the server closed the connection"))

    def drop(self) -> None:
        """Forget what was not handed over, and who was to be told."""
        super().drop()
        for kept in (self._data, self._mono_ns, self._wall_ns, self._stamps):
            del kept[:]
        self._body_bytes = 0
        self.on_tail = self.on_full = self.on_room = nothing

    def body(self, most_reads: int) -> Arrivals:
        """As Reply.body."""
        data = self._data[:most_reads]
        mono = np.array(self._mono_ns[:most_reads])
        wall = np.array(self._wall_ns[:most_reads])
        seconds, nanoseconds = np.frombuffer(b"".join(self._stamps[:most_reads]), dtype=np.int64).reshape(-1, 2).T
        for kept in (self._data, self._mono_ns, self._wall_ns, self._stamps):
            del kept[:most_reads]
        delay = wall - (seconds * NS_PER_S + nanoseconds)
        believed = (delay >= 0) & (mono - delay >= self.floor_ns)
        least = max(self.floor_ns, self._newest_ns)
        at = np.maximum.accumulate(np.maximum(np.where(believed, mono - delay, mono), least))
        if len(at):
            self._newest_ns = int(at[-1])
        ends = array("q", accumulate(map(len, data)))
        self._body_bytes -= ends[-1] if ends else 0
        if self._body_bytes <= self.digest_bytes:
            self.on_room()
        unstamped = len(at) - int(believed.sum())
        return Arrivals(b"".join(data), ends, _flat(at), _flat(delay[believed]), unstamped)

    def parsed(self) -> None:
        """As Reply.parsed."""
        if self.chunks is not None and self.chunks.done:
            self.surplus = bool(self.chunks.surplus)
            self.finish(complete=True)

    def _look_for_head(self) -> None:
        head_so_far = b"".join(self._data)
        try:
            found = parse_head(head_so_far)
        except Http1Error as error:
            self.finish(complete=False, error=error)
            return
        for kept in (self._data, self._mono_ns, self._wall_ns, self._stamps):
            del kept[:-1]
        if found is None:
            self._data[0] = head_so_far
            return
        head, rest = found
        self._begin_body(head)
        self._data[0] = rest  # the head ends in this read: what follows has its stamp
        self._body_bytes = len(rest)
        if head.framing is Framing.CHUNKED:
            if len(rest) < 4 or _CHUNKS_END in rest:
                self.on_tail()
        elif head.framing is Framing.LENGTH:
            self._left = head.length or 0
            self._count_down()

    def _may_end(self) -> bool:
        """Whether the newest read may complete the end of a chunked body that began in the read before."""
        return len(self._data) < 2 or _CHUNKS_END in self._data[-2][-3:] + self._data[-1][:3]

    def _count_down(self) -> None:
        """Take the newest read off the length; bytes behind the end are no part of the reply."""
        data = self._data[-1]
        self._left -= len(data)
        if self._left < 0:
            self.surplus = True
            self._body_bytes += self._left
            self._data[-1] = data[: self._left]
        if self._left <= 0:
            self.finish(complete=True)

    def _look_for_end(self) -> None:
        """Try the framing on a copy of what is there: is the last chunk in?"""
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
    """The same whole numbers in an array of Python's own."""
    made = array("q")
    made.frombytes(numbers.tobytes())
    return made


def nothing() -> None:
    """What is called where nobody listens any more."""
