"""One keep-alive connection whose reads are stamped before anything else is done with them.

A read watcher stays registered for the connection's whole life and calls back from the event loop: no greenlet is woken and no
`recv` fails for a chunk. The callback stamps, keeps the bytes and looks at their last four; parsing happens elsewhere
(`Reply.body`). The kernel's receive stamp, where it can be had, dates a chunk that waited while this process was busy.
"""

import socket
import ssl
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from inferload.measure.clock import NS_PER_S, now_ns, wall_ns
from inferload.wire.http1 import ChunkedDecoder, Framing, Http1Error, ReplyHead, parse_head

SO_TIMESTAMPNS = 35  # Linux; the socket module has no name for it
_READ_BYTES = 2_048  # more would be allocated, cleared by the kernel and given back for each token of 200 bytes
_ANCILLARY_BYTES = socket.CMSG_SPACE(16)
# The largest ancillary payload that says nothing: a read without a kernel stamp.
_NO_STAMP = bytes(16)


class ConnectionLost(Exception):
    """The peer closed or reset the connection."""


class Arrivals(NamedTuple):
    """Some reads of a reply, parallel lists: bytes as they came, the instant of each, and what it waited in our process."""

    data: list[bytes]
    at_ns: list[int]
    delay_ns: list[int]  # of those reads that carried a kernel stamp that can be believed; in order, but fewer
    unstamped: int


class Reply:
    """What came back for one request: stamped reads, in order, and whether they are all there.

    Nothing is parsed when a read is taken. Where its last bytes may be the end of a chunked body, `on_tail` is called: whoever
    reads the body then finds out. `on_done` is called once, when the reply is complete or broken. Both are called from the event
    loop and must not block. Reads lie in flat arrays and lists of bytes, none of which the garbage collector has to look at.
    """

    __slots__ = (
        "_chunks",
        "_data",
        "_left",
        "_mono_ns",
        "_stamps",
        "_wall_ns",
        "body_bytes",
        "complete",
        "done",
        "error",
        "floor_ns",
        "head",
        "last_ns",
        "on_done",
        "on_tail",
    )

    def __init__(self, on_done: Callable[[], None], on_tail: Callable[[], None] | None = None) -> None:
        self.on_done = on_done
        self.on_tail = on_tail or self._look_for_end
        self.head: ReplyHead | None = None
        self.complete = False
        self.done = False
        self.error: Exception | None = None
        self.last_ns: int | None = None  # monotonic time of the newest read
        self.floor_ns = 0  # no read can have arrived before: the request's sending, then the newest read handed over
        self.body_bytes = 0  # that came and were not handed over yet
        self._chunks: ChunkedDecoder | None = None
        self._left = 0
        self._mono_ns, self._wall_ns = array("q"), array("q")
        self._stamps: list[bytes] = []
        self._data: list[bytes] = []

    @property
    def waiting(self) -> int:
        """How many reads have not been handed over."""
        return len(self._data)

    @property
    def at_end(self) -> bool:
        """Whether the last chunk has been handed over."""
        return self._chunks is not None and self._chunks.done

    def take(self, data: bytes, mono_ns: int, wall_ns: int, ancillary: list[Any]) -> None:
        """Keep a read; called from the event loop, so nothing here may be slow."""
        self.last_ns = mono_ns
        self._mono_ns.append(mono_ns)
        self._wall_ns.append(wall_ns)
        self._stamps.append(ancillary[0][2] if ancillary else _NO_STAMP)
        self._data.append(data)
        self.body_bytes += len(data)
        if self.head is None:
            self._look_for_head()
        elif self._chunks is not None:
            # A chunked body ends in CRLF CRLF. An SSE chunk hardly ever does, so this is the only look at most reads.
            if len(data) < 4 or data.endswith(b"\r\n\r\n"):
                self.on_tail()
        elif self.head.framing is Framing.LENGTH:
            self._left -= len(data)
            if self._left <= 0:
                self.finish(complete=True)

    def eof(self) -> None:
        """The peer closed its side."""
        if self.head is not None and self.head.framing is Framing.CLOSE:
            self.finish(complete=True)
            return
        self._look_for_end()
        self.finish(complete=False, error=ConnectionLost("the server closed the connection"))

    def finish(self, complete: bool, error: Exception | None = None) -> None:
        """No more is to come; the first call counts."""
        if not self.done:
            self.done, self.complete, self.error = True, complete, error
            self.on_done()

    def drop(self) -> None:
        """Forget what was not handed over, and who was to be told."""
        self._data.clear()
        self.on_done = self.on_tail = _nothing

    def body(self, most_reads: int) -> Arrivals:
        """Hand over up to so many reads, as they came; `unframe` takes the chunk framing off each, in order.

        An instant is the kernel's receive stamp moved to the monotonic clock; where there is none, or where it would lie before
        the request or in the future (the wall clock was stepped), it is the time at which we read.
        """
        data = self._data[:most_reads]
        mono = np.array(self._mono_ns[:most_reads])
        wall = np.array(self._wall_ns[:most_reads])
        seconds, nanoseconds = np.frombuffer(b"".join(self._stamps[:most_reads]), dtype=np.int64).reshape(-1, 2).T
        for kept in (self._data, self._mono_ns, self._wall_ns, self._stamps):
            del kept[:most_reads]
        self.body_bytes -= sum(map(len, data))
        delay = wall - (seconds * NS_PER_S + nanoseconds)
        believed = (delay >= 0) & (mono - delay >= self.floor_ns)
        at = np.maximum.accumulate(np.maximum(np.where(believed, mono - delay, mono), self.floor_ns))
        if len(at):
            self.floor_ns = int(at[-1])
        return Arrivals(data, at.tolist(), delay[believed].tolist(), len(at) - int(believed.sum()))

    @property
    def unframe(self) -> Callable[[bytes], bytes]:
        """What turns the next read into bytes of the body; it raises Http1Error where the framing is broken."""
        return bytes if self._chunks is None else self._chunks.feed

    @property
    def between_chunks(self) -> bool:
        """Whether a chunked body stands between two chunks."""
        return self._chunks is not None and self._chunks.between_chunks

    def _look_for_head(self) -> None:
        try:
            found = parse_head(b"".join(self._data))
        except Http1Error as error:
            self.finish(complete=False, error=error)
            return
        if found is None:
            return
        self.head, rest = found
        for kept in (self._data, self._mono_ns, self._wall_ns, self._stamps):
            del kept[:-1]
        self._data[0] = rest  # the head ends in this read: what follows has its stamp
        self.body_bytes = len(rest)
        if self.head.framing is Framing.CHUNKED:
            self._chunks = ChunkedDecoder()
            if len(rest) < 4 or rest.endswith(b"\r\n\r\n"):
                self.on_tail()
        elif self.head.framing is Framing.LENGTH:
            self._left = (self.head.length or 0) - len(rest)
            if self._left <= 0:
                self.finish(complete=True)

    def _look_for_end(self) -> None:
        """Try the framing on a copy of what is there: is the last chunk in?"""
        if self._chunks is None or self.done:
            return
        trial = self._chunks.copy()
        try:
            for piece in self._data:
                trial.feed(piece)
        except Http1Error as error:
            self.finish(complete=False, error=error)
            return
        if trial.done:
            self.finish(complete=True)


def _nothing() -> None:
    """What is called where nobody listens any more."""


class Connection:
    """A connected socket that reads for one reply at a time. `watch` registers it with an event loop.

    `sock` is one whose `sendall` may block the calling greenlet (gevent's); reads go to the plain socket below it.
    """

    __slots__ = ("_plain", "_recvmsg", "_reply", "_sock", "_tls", "_watcher", "closed", "turns")

    def __init__(self, sock: Any, tls: "TlsLayer | None") -> None:
        self._sock = sock
        self._tls = tls
        self._recvmsg = sock._sock.recvmsg
        self._plain = None if tls is None else tls.decrypt
        self._reply: Reply | None = None
        self._watcher: Any = None
        self.closed = False
        self.turns = 0  # requests sent over it so far

    def watch(self, loop: Any) -> None:
        """Register the read watcher that stays until `close`."""
        self._watcher = loop.io(self._sock.fileno(), 1)
        self._watcher.start(self._on_readable)

    def expect(self, reply: Reply) -> None:
        """Reads from now on belong to this reply."""
        assert self._reply is None
        self._reply = reply
        self.turns += 1

    def send(self, data: bytes) -> None:
        """Hand all of it to the kernel; OSError where the peer is gone. May block this greenlet."""
        self._sock.sendall(data if self._tls is None else self._tls.encrypt(data))

    def release(self) -> None:
        """The reply is over; what is read from now on belongs to nobody and ends the connection."""
        self._reply = None

    def close(self) -> None:
        """Take the watcher away and close the socket; harmless when repeated."""
        if self.closed:
            return
        self.closed = True
        self._reply = None
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher.close()
        self._sock.close()

    def _on_readable(self) -> None:
        try:
            data, ancillary, _flags, _address = self._recvmsg(_READ_BYTES, _ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(ConnectionLost(f"the connection broke: {error.strerror or error}"))
            return
        mono_ns, wall_now_ns = now_ns(), wall_ns()
        if not data:
            self._lost(None)
            return
        if self._plain is not None:
            try:
                data = self._plain(data)
            except ssl.SSLError as error:
                self._lost(
                    None if isinstance(error, ssl.SSLZeroReturnError) else ConnectionLost(f"TLS: {error.reason}")
                )
                return
            if not data:  # part of a record, or one of TLS's own
                return
        if self._reply is None or self._reply.done:
            self.close()  # nobody asked for anything
        else:
            self._reply.take(data, mono_ns, wall_now_ns, ancillary)

    def _lost(self, error: ConnectionLost | None) -> None:
        """End of the connection; an error of None is the peer's orderly close."""
        reply = self._reply
        self.close()
        if reply is None:
            return
        if error is None:
            reply.eof()
        else:
            reply.finish(complete=False, error=error)


class TlsLayer:
    """TLS between buffers in memory, so that the socket below can be read and stamped as a plain one is."""

    __slots__ = ("_incoming", "_object", "_outgoing")

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)

    def handshake(self, sock: Any) -> None:
        """Shake hands over a socket whose `sendall` and `recv` may block; ssl.SSLError where that fails."""
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                sock.sendall(self._outgoing.read())
                data = sock.recv(_READ_BYTES)
                if not data:
                    raise ssl.SSLError(1, "the server closed the connection during the handshake") from None
                self._incoming.write(data)
            else:
                if self._outgoing.pending:
                    sock.sendall(self._outgoing.read())
                return

    def encrypt(self, data: bytes) -> bytes:
        """The records that carry these bytes."""
        self._object.write(data)
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """The plain bytes that these complete; SSLZeroReturnError at the peer's orderly close."""
        self._incoming.write(data)
        pieces = []
        try:
            while piece := self._object.read(_READ_BYTES):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            if not pieces:
                raise
        return b"".join(pieces)
