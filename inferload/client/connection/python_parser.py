"""Parser of a reply in Python, for machines without the compiled one (`native/parser/reply.c`), by the same rules."""

from array import array
from bisect import bisect_left

import numpy as np

from inferload.client.connection.http1 import ChunkedDecoder, ChunkError, News

_CHUNKED, _LENGTH = 1, 2  # `enum framing`
_FULL_BYTES = 1 << 22
_LONGEST_MARK = 32


class PythonParser:
    """Counterpart of `_parser.Reply`, which documents the methods."""

    def __init__(self, marks: tuple[bytes, ...] = ()) -> None:
        self._marks = marks
        self._tail = b""  # end of the body so far, behind the latest mark
        self._found = self._ended = False
        self._framing = self._head = self._left = self._used = self._last_ns = self._newest_ns = 0
        self._chunks = ChunkedDecoder()
        self._pieces: list[bytes] = []
        self._ends, self._mono_ns, self._age_ns = array("q"), array("q"), array("q")  # of each read

    def push(self, data: bytes, mono_ns: int, age_ns: int, /) -> int:
        if self._ended:
            return News.SURPLUS
        self._pieces.append(data)
        self._used += len(data)
        self._last_ns = mono_ns
        self._ends.append(self._used)
        self._mono_ns.append(mono_ns)
        self._age_ns.append(age_ns)
        return self._advance(data) if self._framing else News.ASKS_FOR_HEAD

    def frame(self, head_bytes: int, framing: int, length: int, /) -> int:
        """Answer ASKS_FOR_HEAD; return the news of the body. The head ends in the latest read."""
        if not framing:
            return 0
        self._framing, self._head, self._left = framing, head_bytes, length
        return self._advance(self.peek()[head_bytes:])

    def peek(self) -> bytes:
        """Return the bytes that have not been taken."""
        return b"".join(self._pieces)

    def waiting(self) -> tuple[int, int, int, int]:
        """Return number of reads and bytes, time of the latest read, and framing or 0."""
        return len(self._pieces), self._used, self._last_ns, self._framing

    def watch_next(self) -> None:
        """Have the next read marked."""
        self._found = True

    def take(self, floor_ns: int, /) -> tuple[bytes, bytes, bytes, bytes, bytes, int]:
        """Return head, data, ends, times and delays of the reads, and the number of those without a timestamp."""
        data, head, first = self.peek(), self._head, bisect_left(self._ends, self._head)
        ends, mono_ns, age_ns = map(np.array, (self._ends, self._mono_ns, self._age_ns))
        believed = (age_ns >= 0) & (mono_ns - age_ns >= floor_ns)
        least_ns = max(floor_ns, self._newest_ns)
        at_ns = np.maximum.accumulate(np.maximum(np.where(believed, mono_ns - age_ns, mono_ns), least_ns))
        self._newest_ns = int(at_ns[-1]) if len(at_ns) else least_ns
        self._head = self._used = 0
        for column in (self._pieces, self._ends, self._mono_ns, self._age_ns):
            del column[:]
        columns = (ends[first:] - head, at_ns[first:], age_ns[first:][believed[first:]])
        of_ends, of_times, of_delays = (column.tobytes() for column in columns)
        return data[:head], data[head:], of_ends, of_times, of_delays, int((~believed[first:]).sum())

    def _advance(self, data: bytes) -> int:
        surplus = 0
        if self._framing == _CHUNKED:
            try:
                data = self._chunks.feed(data)
            except ChunkError:
                self._ended = True
                return News.BROKEN
            self._ended, surplus = self._chunks.done, len(self._chunks.surplus)
        elif self._framing == _LENGTH:
            self._left -= len(data)
            self._ended, surplus = self._left <= 0, max(0, -self._left)
        if surplus:
            self._used -= surplus
            self._pieces[-1] = self._pieces[-1][:-surplus]
            self._ends[-1] = self._used
        if self._ended:
            return News.COMPLETE | (News.SURPLUS if surplus else 0)
        return (News.MARKED if self._is_marked(data) else 0) | (News.FULL if self._used > _FULL_BYTES else 0)

    def _is_marked(self, body: bytes) -> bool:
        """Return True if a mark ends in these bytes of the body."""
        joined, found = self._tail + body, self._found
        self._found = False
        for mark in self._marks:
            if mark in joined:
                joined, found = joined[joined.rfind(mark) + len(mark) :], True
        self._tail = joined[1 - _LONGEST_MARK :]
        return found
