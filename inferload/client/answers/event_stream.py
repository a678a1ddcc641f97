"""From a reply's stamped bytes to the events of its answer: chunk framing and event framing come off together.

Two roads that give the same. The slow one is Python and knows everything. The quick one (`native/scan.c`) takes whole chunks of
whole events, and of those that differ from each other in one text only (nearly all events of a completion do) hands over the texts
of a run together. It is taught by the slow one: `Answer.template_of` says, and proves by decoding, what such events have in common.
"""

from array import array
from collections.abc import Callable
from typing import Any

from inferload.client.answers.sse import SseParser, event_of_chunk
from inferload.client.answers.stream_answer import Answer, Template
from inferload.client.connection import reader_choice
from inferload.client.connection.http1 import ChunkError
from inferload.client.connection.reply import Arrivals, Reply

_LESSONS = 8  # templates that are looked for in one stream, in vain or not
_STRANGERS = 3  # so many events in a row that do not fit ask for another template
_SLICE, _FIRST_SLICE, _QUICK_SLICE = 64, 160, 1_000
_ALL = 1 << 30
_LAST_CHUNK = b"0\r\n\r\n"
_NO_TEMPLATE = Template(b"", b"", visible=True)

Scan = Callable[..., tuple[list[tuple[bytes, Any]], int, int]]


def scanner() -> Scan | None:
    """The quick road, where this process uses what was compiled."""
    if reader_choice.chosen() == "python":
        return None
    from inferload.client.connection import _native

    return _native.scan


class EventStream:
    """The body of one reply. `feed` it what arrived, in order; `finish` at the end."""

    __slots__ = ("_answer", "_lessons", "_scan", "_sse", "_template")

    def __init__(self, answer: Answer, scan: Scan | None) -> None:
        self._answer = answer
        self._scan = scan
        self._sse = SseParser()
        self._template = _NO_TEMPLATE
        self._lessons = _LESSONS

    @property
    def reads_per_slice(self) -> int:
        """How many reads can be fed at once within about a tenth of a millisecond."""
        if self._scan is None:
            return _SLICE
        return _QUICK_SLICE if self._template.before else _FIRST_SLICE

    def feed(self, reply: Reply, reads: Arrivals) -> None:
        """Take the events that these reads complete.

        ChunkError where the chunk framing is broken, SseError where an event is too long: what came before that has been taken.
        """
        if self._scan is None:
            self._read_by_read(reply, reads, 0, 0, len(reads.ends))
            return
        at = read = 0
        while at < len(reads.data):
            if reply.between_chunks and self._sse.may_begin:
                before = at
                at, read = self._scanned(self._scan, reply, reads, at, read)
                if at > before:
                    self._sse.begun()
                    continue
                if reply.chunks is not None and reads.data[at:] == _LAST_CHUNK:
                    reply.chunks.end()
                    return
            rest = None if reply.chunks is None else reply.chunks.rest_of_chunk
            if rest is not None and at + rest < reads.ends[read]:  # behind it all may be plain again
                self._part(reply, reads.data[at : at + rest], reads.at_ns[read])
                at += rest
                continue
            self._read_by_read(reply, reads, at, read, read + 1)
            at, read = reads.ends[read], read + 1

    def finish(self, at_ns: int) -> None:
        """Take a last event whose end never came."""
        for event in self._sse.finish():
            self._answer.event(event, at_ns)

    def _scanned(self, scan: Scan, reply: Reply, reads: Arrivals, at: int, read: int) -> tuple[int, int]:
        """The events from here to the first thing that is not plain; returns where that is."""
        template = self._template
        most = _ALL if not self._lessons else _STRANGERS if template.before else 1
        chunked = reply.chunks is not None
        found, at, read = scan(
            reads.data, reads.ends, reads.at_ns, at, read, chunked, template.before, template.after, most
        )
        strangers: list[bytes] = []
        instants: list[int] = []
        for data, when in found:
            if isinstance(when, int):
                strangers.append(data)
                instants.append(when)
                continue
            self._answer.events(strangers, instants)
            strangers, instants = [], []
            self._answer.run(template, data, when)
        self._answer.events(strangers, instants)
        if self._lessons and len(strangers) >= most and not self._answer.closed:
            self._learn(strangers[-1])
        return at, read

    def _learn(self, event: bytes) -> None:
        learned = self._answer.template_of(event)
        if learned is not None:
            self._template = learned
        self._lessons -= 1

    def _part(self, reply: Reply, data: bytes, at_ns: int) -> None:
        """Part of a read."""
        ends, instants = array("q", [len(data)]), array("q", [at_ns])
        self._read_by_read(reply, Arrivals(data, ends, instants, array("q"), 0), 0, 0, 1)

    def _read_by_read(self, reply: Reply, reads: Arrivals, at: int, first: int, stop: int) -> None:
        sse = self._sse
        events: list[bytes] = []
        instants: list[int] = []
        plain = reply.chunks is not None and reply.between_chunks and sse.between_events
        try:
            for read in range(first, stop):
                data, at, at_ns = reads.data[at : reads.ends[read]], reads.ends[read], reads.at_ns[read]
                whole = (
                    event_of_chunk(data) if plain else None
                )  # a slow read leaves both framings as they were, or clears this
                if whole is not None:
                    events.append(whole)
                    instants.append(at_ns)
                    continue
                for found in sse.feed(reply.unframe(data)):
                    events.append(found)
                    instants.append(at_ns)
                plain = reply.chunks is not None and reply.between_chunks and sse.between_events
        except ChunkError as error:
            last = sse.feed(error.body)
            events += last
            instants += [at_ns] * len(last)
            raise
        finally:
            self._answer.events(events, instants)
