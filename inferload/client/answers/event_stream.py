"""Body of a reply: from timestamped bytes to events, with chunk framing and event framing removed together, or to an error message.

There are two equivalent paths. The Python path handles every input. The native path (`native/parser/scan.c`) handles whole chunks
of whole events; of consecutive events that differ in one text only (nearly all events of a completion) it returns the texts
joined. Their frame, the common bytes, comes from the Python path: `ChatAnswer.frame_of` derives it from an event and verifies it by
decoding. Further streams of the client have the same frames.
"""

import contextlib
import re
from array import array
from collections.abc import Callable

import msgspec

from inferload.base.http_status import readable, status_text
from inferload.client.answers.answer import DONE, Answer, Frames, Scan
from inferload.client.answers.body_start import BodyKind, Inflater, inflaters, kind_of
from inferload.client.answers.number_bounds import UNDECODABLE
from inferload.client.answers.sse import SseParser, event_of_chunk
from inferload.client.connection import reader_choice
from inferload.client.connection.http1 import ChunkError, Http1Error, ReplyHead
from inferload.client.connection.reply import Arrivals, HttpReply, nothing
from inferload.turns.record import Failure
from inferload.turns.remarks import Remark

_DETAIL_BYTES = 4096  # stored bytes of an error body: the client redacts them before it cuts them to a line
_ERROR_BYTES = 1 << 20  # size of an error body after which the connection is closed
_MAX_FRAMES = 8  # attempts to derive a frame in one stream
_START_BYTES = 1024  # of an event, which contain its type
_MISMATCHES = 3  # consecutive events without a match after which another frame is derived
_SLICE, _FIRST_SLICE, _QUICK_SLICE = 64, 160, 1_000
_ALL = 1 << 30
_EVENT_STREAM = "text/event-stream"
# Starts nearly every body, with its chunk framing.
_USUAL_START = re.compile(rb"(?:[0-9A-Fa-f]{1,8}\r\n)?(?:data|event|id|retry)?:")
_LAST_CHUNK = b"0\r\n\r\n"


def scanner() -> Scan | None:
    """Return the native path; None if the compiled parser is not available."""
    compiled = reader_choice.parser()
    return None if compiled is None else compiled.scan


class ReplyParser:
    """Parser of one reply: it passes an event stream to the answer, and stores the beginning of any other body.

    `failure`: the first one, None if there is none, with the text `detail`. `delays`: client delay of each stamped read.
    """

    __slots__ = (
        "_decoded", "_encoded", "_error_bytes", "_head", "_held", "_is_error", "_is_unreadable", "_kind", "_start",
        "answer", "arrived_ns", "delays", "detail", "error_body", "failure", "stream", "unstamped",
    )  # fmt: skip

    def __init__(self, answer: Answer, frames: Frames) -> None:
        self.answer = answer
        self.stream = answer.body() or EventStream(answer, frames)
        self.delays = array("q")
        self.unstamped = 0  # reads without a plausible kernel timestamp
        self.arrived_ns: int | None = None  # time of the last parsed read
        self.failure: Failure | None = None
        self.detail = ""
        self.error_body = b""
        self._error_bytes = 0
        self._head: ReplyHead | None = None  # once it is evaluated
        self._kind = BodyKind.UNKNOWN if answer.streamed else BodyKind.EVENTS
        self._is_error = False  # the body is an error message instead of an event stream
        self._held: list[Arrivals] = []  # decoded reads of a body of unknown kind
        self._start: Callable[[bytes], bytes] | None = None  # removes the framing of the first bytes
        self._encoded: list[Inflater] = []  # removes the content encoding
        self._is_unreadable = False  # the content encoding is unknown
        self._decoded: HttpReply | None = None  # body without framing and content encoding

    def feed(self, reply: HttpReply, reads: Arrivals) -> None:
        """Parse reads. Raise Http1Error for broken framing and SseError for an event that is too long."""
        if self.delays:
            self.delays.extend(reads.delay_ns)
        else:  # nearly always the only reads
            self.delays = reads.delay_ns
        self.unstamped += reads.unstamped
        self.arrived_ns = reads.at_ns[-1]
        self.check_head(reply)
        if self._encoded or (self._kind is BodyKind.UNKNOWN and self._media_type != _EVENT_STREAM):
            self._feed_decoded(reply, reads)
        else:
            self._feed_body(reply, reads)

    def check_head(self, reply: HttpReply) -> None:
        """Evaluate status and encoding once the head has arrived. Idempotent."""
        head = reply.head
        if head is None or self._head is not None:
            return
        self._head = head
        names = ", ".join(head.encodings)
        if head.status != 200:
            self._kind, self._is_error = BodyKind.OTHER, True
            self.fail(_status_class(head.status), status_text(head.status, head.headers.get("location", "")))
        if not names:
            return
        decoders = inflaters(head.encodings)
        if decoders is None:
            self._kind, self._is_error, self._is_unreadable = BodyKind.OTHER, True, True
            self.fail(
                Failure.NOT_SSE,
                f"200, but with Content-Encoding {names}, which was not asked for; turn compression off at the server or its proxy",
            )
            return
        self._encoded = decoders
        self.answer.remark(Remark.CONTENT_ENCODING, f"Content-Encoding {names}")

    def end(self, reply: HttpReply) -> None:
        """Set the failure of a body without events. Call once, after the last read."""
        self.check_head(reply)
        if self._head is None or self._kind is BodyKind.EVENTS or self.answer.first_event_ns is not None:
            return
        if self._kind is BodyKind.UNKNOWN and self._media_type != _EVENT_STREAM:
            self._decide(BodyKind.OTHER)
        elif self._kind is BodyKind.OTHER and reply.error is None:
            self.fail(Failure.NOT_SSE, f"200 and {self._media_type}, but the body contains no events")

    def fail(self, failure: Failure, detail: str) -> None:
        """Set the failure; the first one counts."""
        if self.failure is None:
            self.failure, self.detail = failure, detail

    def fail_as_the_answer(self) -> None:
        """Set the failure of the events so far, if there is one. The errors of the bytes behind them do not count then."""
        if self.answer.failure is not None:
            self.fail(self.answer.failure, self.answer.detail)

    @property
    def shown_body(self) -> bytes:
        """Beginning of a body that is shown beside the failure."""
        return b"" if self.answer.first_event_ns is not None or self._is_unreadable else self.error_body

    @property
    def text(self) -> str:
        """Detail of the failure, with the body shown beside it."""
        head, detail, body = self._head, self.detail, self.shown_body.decode("utf-8", "replace")
        if head is not None and head.status != 200:
            detail = status_text(head.status, head.headers.get("location", ""), body)
        return f"{detail}: {readable(body)}" if body else detail

    @property
    def _media_type(self) -> str:
        """Content type without its parameters; "" if there is none."""
        assert self._head is not None
        return self._head.headers.get("content-type", "").partition(";")[0].strip().lower()

    def _feed_decoded(self, reply: HttpReply, reads: Arrivals) -> None:
        """Decode the reads one by one, which limits the memory, and parse them with their times."""
        begin = 0
        for end, at_ns in zip(reads.ends, reads.at_ns, strict=True):
            broken, data = None, reads.data[begin:end]
            try:
                data = reply.unframe(data)
            except ChunkError as error:
                broken, data = error, error.body
            for encoded in self._encoded:
                data = encoded.feed(data)
            if data:
                decoded = Arrivals(data, array("q", [len(data)]), array("q", [at_ns]), array("q"), 0)
                self._feed_body(self._without_framing(), decoded)
            if broken is not None:
                raise broken
            begin = end
        if self._error_bytes > _ERROR_BYTES:
            reply.finish(complete=False)
            reply.drop()

    def _feed_body(self, reply: HttpReply, reads: Arrivals) -> None:
        if self._kind is BodyKind.UNKNOWN:
            self._look_at_start(reply, reads)
        elif self._is_error:
            self._feed_error(reply, reads.data)
        else:
            if self._kind is BodyKind.OTHER and self.answer.first_event_ns is None:
                self._keep_start(reads.data)
            self.stream.feed(reply, reads)

    def _look_at_start(self, reply: HttpReply, reads: Arrivals) -> None:
        """Find out what the body is. A body of another type than an event stream is held until then."""
        if self._start is None:
            if _USUAL_START.match(reads.data) is not None:
                self._decide(BodyKind.EVENTS)
                self._feed_body(reply, reads)
                return
            self._start = bytes if reply.chunks is None else reply.chunks.copy().feed
        self._keep_start(reads.data)
        kind = kind_of(self.error_body)
        if self._media_type == _EVENT_STREAM:
            self._kind = kind
            self.stream.feed(reply, reads)
            return
        self._held.append(reads)
        if kind is not BodyKind.UNKNOWN:
            self._decide(kind)

    def _keep_start(self, data: bytes) -> None:
        """Store the beginning of the body without its framing, whose errors are left to the parsing."""
        if self._start is None or len(self.error_body) >= _DETAIL_BYTES:
            return
        with contextlib.suppress(Http1Error):
            self.error_body = (self.error_body + self._start(data))[:_DETAIL_BYTES]

    def _decide(self, kind: BodyKind) -> None:
        """Set the kind of the body, and parse the reads that were held until then."""
        self._kind = kind
        if kind is BodyKind.EVENTS:
            if self._media_type != _EVENT_STREAM:
                self.answer.remark(Remark.CONTENT_TYPE, f"Content-Type {self._media_type or '(none)'}")
        else:
            self.error_body, self._is_error = b"", True
            self.fail(Failure.NOT_SSE, f"200, but {self._media_type or 'no content type'} instead of {_EVENT_STREAM}")
        held, self._held = self._held, []
        for reads in held:
            self._feed_body(self._without_framing(), reads)

    def _without_framing(self) -> HttpReply:
        if self._decoded is None:
            self._decoded = HttpReply(nothing)
        return self._decoded

    def _feed_error(self, reply: HttpReply, data: bytes) -> None:
        """Store the beginning of an error body."""
        self._error_bytes += len(data)
        try:
            body = reply.unframe(data)
        except ChunkError as error:
            self.error_body = (self.error_body + error.body)[:_DETAIL_BYTES]
            raise
        self.error_body = (self.error_body + body)[:_DETAIL_BYTES]
        if self._error_bytes > _ERROR_BYTES:
            reply.finish(complete=False)
            reply.drop()


class EventStream:
    """Parser of the body of one reply: `feed` the reads in order, `finish` at the end."""

    __slots__ = ("_answer", "_frames", "_frames_left", "_scan", "_sse")

    def __init__(self, answer: Answer, frames: Frames) -> None:
        self._answer = answer
        self._frames = frames
        self._scan = frames.scan
        self._sse = SseParser()
        self._frames_left = _MAX_FRAMES

    @property
    def reads_per_slice(self) -> int:
        """Number of reads that take about 0.1 ms to parse, if their events have the frames of earlier ones."""
        if self._scan is None:
            return _SLICE
        return _QUICK_SLICE if self._frames.known else _FIRST_SLICE

    def feed(self, reply: HttpReply, reads: Arrivals) -> None:
        """Parse reads and pass the completed events to the answer.

        Raise ChunkError for broken chunk framing and SseError for an event that is too long, after passing the events before it.
        """
        if self._scan is None:
            self._read_by_read(reply, reads, 0, 0, len(reads.ends))
            return
        at = read = 0
        while at < len(reads.data):
            if reply.between_chunks and self._sse.may_begin:
                if reply.chunks is not None and reads.data[at : at + 6] == _LAST_CHUNK:
                    reply.chunks.end()
                    return
                before = at
                at, read = self._scanned(self._scan, reply, reads, at, read)
                if at > before:
                    self._sse.begun()
                    continue
            rest = None if reply.chunks is None else reply.chunks.rest_of_chunk
            if rest is not None and at + rest < reads.ends[read]:  # the native path may continue after this chunk
                self._part(reply, reads.data[at : at + rest], reads.at_ns[read])
                at += rest
                continue
            self._read_by_read(reply, reads, at, read, read + 1)
            at, read = reads.ends[read], read + 1

    @property
    def is_closing(self) -> bool:
        """True if the end marker was received, or has begun."""
        if self._answer.closed:
            return True
        start = self._sse.start_of_unfinished(_START_BYTES)
        return any(mark in start for mark in self._answer.marks)

    def close_if_whole(self, at_ns: int) -> None:
        """Pass on the end marker that has begun if only its closing blank line is missing: half an event is no JSON."""
        event = self._sse.unfinished()
        if event is not None and (event.strip() == DONE or _is_json(event)):
            self.finish(at_ns)

    def finish(self, at_ns: int) -> None:
        """Pass a last event without its closing blank line to the answer."""
        for event in self._sse.finish():
            self._answer.event(event, at_ns)

    def _scanned(self, scan: Scan, reply: HttpReply, reads: Arrivals, at: int, read: int) -> tuple[int, int]:
        """Pass on the events up to the first bytes that the native path does not handle; return their position and read."""
        answer = self._answer
        frames, derives = self._frames.known, self._frames_left > 0
        if answer.keeping:
            frames = tuple(frame for frame in frames if frame.plain)
        limit = _ALL if not derives else _MISMATCHES if frames else 1
        first = answer.request_id is None  # the native path returns no ids of events with a frame
        chunked = reply.chunks is not None
        items, stop, last = scan(reads.data, reads.ends, reads.at_ns, at, read, chunked, frames, limit, first)
        others: list[bytes] = []  # events without a frame
        instants: list[int] = []
        for item in items:
            if len(item) == 2:
                others.append(item[0])
                instants.append(item[1])
                continue
            answer.events(others, instants)
            if answer.request_id is None:  # those events were damaged: the id is that of the next one
                items, stop, last = scan(reads.data, reads.ends, reads.at_ns, at, read, chunked, (), _ALL, False)
                others, instants = map(list, zip(*items[len(others) :], strict=True))
                break
            others, instants = [], []
            if not answer.closed:
                texts, at_ns, lengths, number = item
                answer.add_texts(frames[number], texts, at_ns, lengths)
        answer.events(others, instants)
        if derives and len(others) >= limit and not answer.closed:
            self._frames_left -= 1
            if (frame := answer.frame_of(others[-1])) is not None:
                self._frames.add(frame)
        return stop, last

    def _part(self, reply: HttpReply, data: bytes, at_ns: int) -> None:
        ends, instants = array("q", [len(data)]), array("q", [at_ns])
        self._read_by_read(reply, Arrivals(data, ends, instants, array("q"), 0), 0, 0, 1)

    def _read_by_read(self, reply: HttpReply, reads: Arrivals, at: int, first: int, stop: int) -> None:
        sse = self._sse
        events: list[bytes] = []
        instants: list[int] = []
        plain = reply.chunks is not None and reply.between_chunks and sse.between_events
        try:
            for read in range(first, stop):
                data, at, at_ns = reads.data[at : reads.ends[read]], reads.ends[read], reads.at_ns[read]
                # Other reads leave both framings unchanged, or clear `plain`.
                whole = event_of_chunk(data) if plain else None
                if whole is not None:
                    events.append(whole)
                    instants.append(at_ns)
                    continue
                for event in sse.feed(reply.unframe(data)):
                    events.append(event)
                    instants.append(at_ns)
                plain = reply.chunks is not None and reply.between_chunks and sse.between_events
        except ChunkError as error:
            last = sse.feed(error.body)
            events += last
            instants += [at_ns] * len(last)
            raise
        finally:
            self._answer.events(events, instants)


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except UNDECODABLE:
        return False
    return True


def _status_class(status: int) -> Failure:
    if status == 429:
        return Failure.HTTP_429
    return {4: Failure.HTTP_4XX, 5: Failure.HTTP_5XX}.get(status // 100, Failure.HTTP_OTHER)
