"""One keep-alive connection whose reads are stamped before anything else is done with them.

A read watcher stays registered for the connection's whole life and calls back from the event loop: no greenlet is woken and no
`recv` fails for a chunk. The callback stamps, keeps the bytes and looks at most at their last four; parsing happens elsewhere
(`Reply.body`). The kernel's receive stamp, where it can be had, dates a chunk that waited while this process was busy.
"""

import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

from inferload.measure.clock import now_ns, wall_ns
from inferload.wire.http1 import ChunkedDecoder, Framing, Http1Error, ReplyHead, parse_head

SO_TIMESTAMPNS = 35  # Linux; the socket module has no name for it
_READ_BYTES = 65_536
_ANCILLARY_BYTES = socket.CMSG_SPACE(16)
_timespec = struct.Struct("qq").unpack

# What one read left behind: monotonic and wall time after it, the kernel's ancillary data, the bytes.
Read = tuple[int, int, list[Any], bytes]


class ConnectionLost(Exception):
    """The peer closed or reset the connection."""


class Reply:
    """What came back for one request: stamped reads, in order, and whether they are all there.

    `on_done` is called once, from the event loop, when the reply is complete or broken; it must not block.
    """

    __slots__ = (
        "_decoder",
        "_left",
        "_unframed",
        "body_bytes",
        "complete",
        "done",
        "error",
        "head",
        "last_ns",
        "on_done",
        "reads",
    )

    def __init__(self, on_done: Callable[[], None]) -> None:
        self.on_done = on_done
        self.reads: list[Read] = []  # as they came, chunk framing and all
        self._unframed: list[Read] = []  # older ones, framing taken off, not asked for yet
        self.head: ReplyHead | None = None
        self.complete = False
        self.done = False
        self.error: Exception | None = None
        self.last_ns: int | None = None  # monotonic time of the newest read
        self.body_bytes = 0  # of body that came and was not parsed yet
        self._decoder: ChunkedDecoder | None = None
        self._left = 0

    def take(self, read: Read) -> None:
        """Keep a read; called from the event loop, so nothing here may be slow."""
        data = read[3]
        self.last_ns = read[0]
        self.reads.append(read)
        self.body_bytes += len(data)
        if self.head is None:
            self._look_for_head(read)
        elif self._decoder is not None:
            # A chunked body ends in CRLF CRLF. An SSE chunk hardly ever does, so this is the only look at most reads.
            if len(data) < 4 or data.endswith(b"\r\n\r\n"):
                self._verify_end()
        elif self.head.framing is Framing.LENGTH:
            self._left -= len(data)
            if self._left <= 0:
                self.finish(complete=True)

    def eof(self) -> None:
        """The peer closed its side."""
        closes = self.head is not None and self.head.framing is Framing.CLOSE
        self.finish(complete=closes, error=None if closes else ConnectionLost("the server closed the connection"))

    def finish(self, complete: bool, error: Exception | None = None) -> None:
        """No more is to come; the first call counts."""
        if not self.done:
            self.done, self.complete, self.error = True, complete, error
            self.on_done()

    @property
    def waiting(self) -> int:
        """How many reads have not been asked for."""
        return len(self.reads) + len(self._unframed)

    def body(self, most_reads: int) -> list[tuple[bytes, int, int | None]]:
        """Hand over up to so many reads: (body bytes, instant of their arrival, client delay or None) for each.

        The instant is the kernel's stamp moved to the monotonic clock; where there is no believable stamp it is the time at
        which we read, and the delay is None. Raises Http1Error where the framing is broken.
        """
        if len(self._unframed) < most_reads:
            self._unframe(most_reads - len(self._unframed))
        batch, self._unframed = self._unframed[:most_reads], self._unframed[most_reads:]
        arrived = []
        for mono_ns, wall_now_ns, ancillary, data in batch:
            self.body_bytes -= len(data)
            delay_ns = kernel_delay_ns(ancillary, wall_now_ns)
            arrived.append((data, mono_ns - (delay_ns or 0), delay_ns))
        return arrived

    def _unframe(self, most_reads: int) -> None:
        batch, self.reads = self.reads[:most_reads], self.reads[most_reads:]
        decoder = self._decoder
        if decoder is None:
            self._unframed += batch
            return
        for mono_ns, wall_now_ns, ancillary, data in batch:
            piece = decoder.feed(data) if data and not decoder.done else b""
            self.body_bytes -= len(data) - len(piece)
            self._unframed.append((mono_ns, wall_now_ns, ancillary, piece))

    def _look_for_head(self, read: Read) -> None:
        try:
            found = parse_head(b"".join(kept[3] for kept in self.reads))
        except Http1Error as error:
            self.finish(complete=False, error=error)
            return
        if found is None:
            return
        self.head, rest = found
        self.reads = [(*read[:3], rest)]  # the head ends in this read: what follows has its stamp
        self.body_bytes = len(rest)
        if self.head.framing is Framing.CHUNKED:
            self._decoder = ChunkedDecoder()
            if len(rest) < 4 or rest.endswith(b"\r\n\r\n"):
                self._verify_end()
        elif self.head.framing is Framing.LENGTH:
            self._left = (self.head.length or 0) - len(rest)
            if self._left <= 0:
                self.finish(complete=True)

    def _verify_end(self) -> None:
        """Take the framing off all that is there, to see whether the last chunk is in."""
        decoder = self._decoder
        assert decoder is not None
        try:
            self._unframe(len(self.reads))
        except Http1Error as error:
            self.finish(complete=False, error=error)
            return
        if decoder.done:
            self.finish(complete=True)


def kernel_delay_ns(ancillary: list[Any], wall_now_ns: int) -> int | None:
    """How long a chunk waited between the kernel and the read; None without a stamp, or where the wall clock stepped back."""
    if not ancillary:
        return None
    seconds, nanoseconds = _timespec(ancillary[0][2][:16])
    delay_ns = wall_now_ns - (seconds * 1_000_000_000 + nanoseconds)
    return delay_ns if delay_ns >= 0 else None


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
            self._reply.take((mono_ns, wall_now_ns, ancillary, data))

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
