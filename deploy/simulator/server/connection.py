"""Client connection: non-blocking reads and writes, with TLS if configured."""

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from ..engine.stream import Stream
from ..protocol.errors import error_document
from ..protocol.http import MAX_HEAD_BYTES, HttpFault, HttpRequest, RequestReader, json_reply, reply_bytes

_READ_BYTES = 262_144
_AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks of the server."""

    request: "Callable[[Connection, HttpRequest], None]"  # a whole request arrived
    watch: "Callable[[Connection], None]"  # `reading` or `out` has changed
    lost: "Callable[[Connection], None]"  # to be closed by the loop


class Connection:
    """Client connection that serves one request at a time."""

    __slots__ = (
        *("_closing", "_handshake_done", "_hooks", "_reader", "_serving"),
        *("busy", "dead", "out", "reading", "sock", "stream"),
    )

    def __init__(self, sock: socket.socket, hooks: Hooks) -> None:
        self.sock = sock
        self.stream: Stream | None = None  # answer in progress
        self.busy = False  # a request is being answered
        self.dead = False
        self.reading = True  # False: no more is read until the current answer ends
        self.out = bytearray()  # unsent bytes
        self._closing = False
        self._serving = False
        self._handshake_done = not isinstance(sock, ssl.SSLSocket)
        self._reader = RequestReader()
        self._hooks = hooks

    def readable(self) -> None:
        """Read, and serve complete requests."""
        try:
            if not self._handshake():
                return
            data = self.sock.recv(_READ_BYTES)
            while isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
                data += self.sock.recv(_READ_BYTES)
        except _AGAIN:
            return
        except OSError:
            data = b""
        if not data:
            self.lose()
        elif not self._closing:
            self._reader.feed(data)
            self.serve()

    def writable(self) -> None:
        """Send the pending bytes."""
        if self.out:
            unsent, self.out = bytes(self.out), bytearray()
            self.write(unsent)
        if self.out or self.dead:
            return
        if self._closing:
            self.lose()
        else:
            self.serve()

    def write(self, data: bytes) -> bool:
        """Send bytes. Return False if the kernel did not take all of them; the rest follows later."""
        if self.out or self.dead:
            self.out += data
            return False
        try:
            sent = self.sock.send(data)
        except _AGAIN:
            sent = 0
        except OSError:
            self.lose()
            return False
        if sent == len(data):
            return True
        self.out += data[sent:]
        self._hooks.watch(self)
        return False

    def answered(self, close: bool) -> None:
        """End the answer: close, or serve the next request."""
        self.busy = False
        self.stream = None
        if close:
            self._closing = True
            if not self.out:
                self.lose()
        elif not self.dead:
            self.serve()

    def cut(self) -> None:
        """Close immediately."""
        self.out.clear()
        self.lose()

    def _handshake(self) -> bool:
        if not self._handshake_done and isinstance(self.sock, ssl.SSLSocket):
            self.sock.do_handshake()
            self._handshake_done = True
        return self._handshake_done

    def serve(self) -> None:
        """Serve complete requests one after another, until an answer is in progress or has unsent bytes."""
        if self._serving:  # called from an answer that ended immediately: the loop below continues
            return
        self._serving = True
        while self._free and self._serve_next():
            pass
        self._serving = False
        reading = self._free or self._reader.buffered_bytes <= MAX_HEAD_BYTES
        if reading != self.reading and not self.dead:
            self.reading = reading
            self._hooks.watch(self)

    @property
    def _free(self) -> bool:
        return not (self.busy or self.out or self._closing or self.dead)

    def _serve_next(self) -> bool:
        """Serve a request. Return False if none is complete."""
        try:
            request = self._reader.next()
        except HttpFault as fault:
            document = error_document(str(fault), fault.status, "Bad Request")
            self.write(reply_bytes(json_reply(document, fault.status), False))
            self.answered(close=True)
            return False
        if request is not None:
            self.busy = True
            self._hooks.request(self, request)
        return request is not None

    def lose(self) -> None:
        """Mark the connection as dead; the loop closes it."""
        if not self.dead:
            self.dead = True
            self._hooks.lost(self)
