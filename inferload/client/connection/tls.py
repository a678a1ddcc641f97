"""TLS on memory buffers."""

import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple

from inferload.client.connection.reply import NO_CLOSE_NOTIFY, ConnectionLost, tls_failure

_READ_BYTES = 2_048
_HEADER_BYTES = 5  # of a record; its last two are the length of the rest


class Decrypted(NamedTuple):
    """Plain bytes of one read, and the end of the stream if it follows them.

    `error`: why nothing follows, None after close_notify, with which the server ends a stream in order.
    """

    data: bytes
    ended: bool
    error: ConnectionLost | None


class TlsLayer:
    """TLS on memory buffers, so that reads of the socket below have timestamps as those of a plain one."""

    __slots__ = ("_incoming", "_object", "_outgoing")

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)

    def handshake(self, sock: Any) -> None:
        """Perform the handshake over a socket whose `sendall` and `recv` may block. Raise ssl.SSLError if it fails.

        Each record is read by itself: bytes after the last one are left to the reads with timestamps.
        """
        parts = _record_parts(sock)
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                sock.sendall(self._outgoing.read())
                self._incoming.write(next(parts))
            else:
                if self._outgoing.pending:
                    sock.sendall(self._outgoing.read())
                return

    @property
    def raw(self) -> "tuple[Any, ssl.SSLContext]":
        """`_ssl._SSLSocket` and context of the connection, which another reader may take over after the handshake."""
        return self._object._sslobj, self._object.context  # type: ignore[attr-defined]

    def encrypt(self, data: bytes) -> bytes:
        self._object.write(data)
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> Decrypted:
        """Return the plain bytes of the records that `data` completes. b"" is the end of the connection.

        After a result with `ended` there is nothing to decrypt: bytes behind the end are ignored.
        """
        if not data:
            return Decrypted(b"", True, ConnectionLost(NO_CLOSE_NOTIFY))
        self._incoming.write(data)
        pieces: list[bytes] = []
        try:
            while self._incoming.pending or self._object.pending():
                piece = self._object.read(_READ_BYTES)
                if not piece:  # close_notify
                    return Decrypted(b"".join(pieces), True, None)
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            return Decrypted(b"".join(pieces), True, tls_failure(error.reason or str(error)))
        return Decrypted(b"".join(pieces), False, None)


def _record_parts(sock: Any) -> Iterator[bytes]:
    """Yield header and rest of each record. A header that is not one of TLS fails before its rest is awaited."""
    while True:
        header = _received(sock, _HEADER_BYTES)
        yield header
        yield _received(sock, int.from_bytes(header[3:], "big"))


def _received(sock: Any, n_bytes: int) -> bytes:
    """Return exactly this number of bytes. Raise ssl.SSLError if the server closes before them."""
    received = b""
    while len(received) < n_bytes:
        data = sock.recv(n_bytes - len(received))
        if not data:
            closed = ssl.SSLError(1, "the server closed the connection during the handshake")
            closed.reason = closed.strerror or ""  # of OpenSSL's errors only
            raise closed
        received += data
    return received
