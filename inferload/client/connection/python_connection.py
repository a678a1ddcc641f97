"""One keep-alive connection whose reads are stamped before anything else is done with them.

A read watcher stays registered for the connection's whole life and calls back from the event loop: no greenlet is woken and no
`recv` fails for a chunk. The callback stamps, keeps the bytes and looks at their last four; parsing happens elsewhere
(`Reply.body`). The kernel's receive stamp, where it can be had, dates a chunk that waited while this process was busy.
`NativeConnection` does the same in a thread that needs none of Python's time; this one reads where it cannot: TLS, and machines
on which the extension was not built.
"""

import socket
import ssl
from collections.abc import Callable
from typing import Any

from inferload.client.connection.reply import ConnectionLost, GatheredReply
from inferload.client.connection.tls import TlsLayer
from inferload.measure.clock import now_ns, wall_ns

SO_TIMESTAMPNS = 35  # Linux; the socket module has no name for it
_READ_BYTES = 2_048  # more would be allocated, cleared by the kernel and given back for each token of 200 bytes
_ANCILLARY_BYTES = socket.CMSG_SPACE(16)


def offered(sock: Any, data: bytes) -> bytes | memoryview:
    """What is left of the data when a socket of gevent's has taken all that it takes at once."""
    try:
        taken = sock._sock.send(data)
    except (BlockingIOError, InterruptedError):
        return data
    return b"" if taken == len(data) else memoryview(data)[taken:]


class Connection:
    """A connected socket that reads for one reply at a time. `watch` registers it with an event loop.

    `sock` is one of gevent's, whose `sendall` may block the calling greenlet; what need not block goes to the plain socket below.
    """

    __slots__ = ("_paused", "_plain", "_recvmsg", "_reply", "_sock", "_tls", "_watcher", "closed", "turns")

    def __init__(self, sock: Any, tls: TlsLayer | None) -> None:
        self._sock = sock
        self._tls = tls
        self._recvmsg = sock._sock.recvmsg
        self._plain = None if tls is None else tls.decrypt
        self._reply: GatheredReply | None = None
        self._watcher: Any = None
        self._paused = False
        self.closed = False
        self.turns = 0  # requests sent over it so far

    def watch(self, loop: Any) -> None:
        """Register the read watcher that stays until `close`."""
        self._watcher = loop.io(self._sock.fileno(), 1)
        self._watcher.start(self._on_readable)

    def expect(self, on_done: Callable[[], None], on_tail: Callable[[], None] | None = None) -> GatheredReply:
        """Reads from now on belong to this reply."""
        assert self._reply is None
        self._reply = GatheredReply(on_done, on_tail)
        if on_tail is not None:  # else nobody takes anything before the end
            self._reply.on_full, self._reply.on_room = self._pause, self._resume
        self.turns += 1
        return self._reply

    def offer(self, data: bytes) -> bytes | memoryview:
        """Hand it to the kernel as far as it has room; what is left. OSError where the peer is gone."""
        return offered(self._sock, data if self._tls is None else self._tls.encrypt(data))

    def send_rest(self, rest: bytes | memoryview) -> None:
        """Hand the kernel what it had no room for; OSError where the peer is gone. Blocks this greenlet."""
        self._sock.sendall(rest)

    def release(self) -> None:
        """The reply is over; what is read from now on belongs to nobody and ends the connection."""
        self._reply = None
        self._resume()

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
            try:
                self._reply.take(data, mono_ns, wall_now_ns, ancillary)
            except Exception as error:  # noqa: BLE001  the loop stops a watcher that raises
                self._lost(error)

    def _pause(self) -> None:
        """Read no more until the reply has been handed over, which is asked for."""
        if self._reply is not None and not self._paused:
            self._paused = True
            self._watcher.stop()
            self._reply.on_tail()

    def _resume(self) -> None:
        if self._paused and not self.closed:
            self._paused = False
            self._watcher.start(self._on_readable)

    def _lost(self, error: Exception | None) -> None:
        """End of the connection; an error of None is the peer's orderly close."""
        reply = self._reply
        self.close()
        if reply is None:
            return
        if error is None:
            reply.eof()
        else:
            reply.finish(complete=False, error=error)
