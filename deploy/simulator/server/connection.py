"""Client connection: non-blocking reads and writes, with TLS if configured."""

import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass

from ..engine.stream import Stream
from ..protocol.errors import error_document
from ..protocol.http import CONTINUE, MAX_HEAD_BYTES, HttpFault, HttpRequest, RequestReader, json_reply, reply_bytes

_READ_BYTES = 262_144
_REQUESTS_AT_ONCE = 16  # of one connection, before other connections and the engine
_AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks of the server."""

    request: "Callable[[Connection, HttpRequest], None]"  # a whole request arrived
    watch: "Callable[[Connection], None]"  # `reading` or whether bytes are kept has changed
    later: "Callable[[Connection], None]"  # complete requests are left: `serve` is to be called soon
    lost: "Callable[[Connection], None]"  # to be closed when the loop is free to
    answered: "Callable[[Connection], None]"  # an answer is over


class Connection:
    """Client connection that serves one request at a time."""

    __slots__ = (
        *("_closing", "_hooks", "_reader", "_serving", "_shaken", "asked_bytes", "begun_ns", "busy", "dead", "handler"),
        *("begun", "method", "out", "reading", "sock", "status", "streams"),
    )

    def __init__(self, sock: socket.socket, hooks: Hooks) -> None:
        self.sock = sock
        self.streams: tuple[Stream, ...] = ()  # the answers to the request that is being answered
        self.busy = False  # a request is being answered
        self.begun = False  # bytes of the answer went out
        self.dead = False
        self.reading = True  # False: as much as is kept waits for an answer to end, and no more is read
        self.out = bytearray()  # bytes that the kernel did not take yet
        self.handler = ""  # of the request that is being answered, for the metrics; empty: it is not counted
        self.method = ""
        self.asked_bytes = 0
        self.begun_ns = 0
        self.status = 0
        self._closing = False
        self._serving = False
        self._shaken = not isinstance(sock, ssl.SSLSocket)
        self._reader = RequestReader()
        self._hooks = hooks

    @property
    def idle(self) -> bool:
        """Whether it is open without a request in progress."""
        return not self.busy and self._reader.idle and not self.dead

    def readable(self, most_bytes: int = _READ_BYTES) -> None:
        """Read up to `most_bytes` and serve complete requests."""
        try:
            if not self._shake():
                return
            data = self.sock.recv(most_bytes)
            while most_bytes == _READ_BYTES and isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
                data += self.sock.recv(_READ_BYTES)
        except _AGAIN:
            return
        except OSError:
            self.lose()
            return
        if not data:
            self.lose()
            return
        if self._closing:
            return
        self._reader.feed(data)
        self.serve()

    def writable(self) -> None:
        """Send the pending bytes."""
        if self.out:
            kept, self.out = bytes(self.out), bytearray()
            self.write(kept)
        if self.out or self.dead:
            return
        if self._closing:
            self.lose()
        else:
            self.serve()

    def write(self, data: bytes) -> bool:
        """Send bytes. Return False if the kernel did not take all of them; the rest follows later."""
        self.begun = True
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
        """The answer is over: close, or go on with the next request."""
        self.busy = False
        self.streams = ()
        self._hooks.answered(self)
        if close:
            self._closing = True
            if not self.out:
                self.lose()
        elif not self.dead:
            self.serve()

    def cut(self, reset: bool) -> None:
        """Close at once; `reset`: so that the client sees RST and not an orderly end."""
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.out.clear()
        self.lose()

    def _shake(self) -> bool:
        if not self._shaken and isinstance(self.sock, ssl.SSLSocket):
            self.sock.do_handshake()
            self._shaken = True
        return self._shaken

    def serve(self) -> None:
        """Serve the complete requests that were read, one after another, until an answer takes its time or is not taken."""
        if self._serving:  # an answer was over at once: the loop below goes on
            return
        self._serving = True
        try:
            left = _REQUESTS_AT_ONCE
            while self._free and left and self._serve_next():
                left -= 1
        finally:
            self._serving = False
        if self._free and not left:
            self._hooks.later(self)
        self._choose_reading()

    @property
    def _free(self) -> bool:
        return not (self.busy or self.out or self._closing or self.dead)

    def _choose_reading(self) -> None:
        reading = self._free or self._reader.buffered_bytes <= MAX_HEAD_BYTES
        if reading != self.reading and not self.dead:
            self.reading = reading
            self._hooks.watch(self)

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
            self.busy, self.begun = True, False
            self._hooks.request(self, request)
        elif self._reader.wants_continue:
            self._reader.told_to_continue()
            self.write(CONTINUE)
        return request is not None

    def lose(self) -> None:
        """It is gone, or done with: closed when the loop is free to."""
        if not self.dead:
            self.dead = True
            self._hooks.lost(self)
