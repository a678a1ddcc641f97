"""TLS on memory buffers."""

import ssl
from typing import Any

_READ_BYTES = 2_048


class TlsLayer:
    """TLS on memory buffers, so that reads of the socket below have timestamps as those of a plain one."""

    __slots__ = ("_incoming", "_object", "_outgoing")

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)

    def handshake(self, sock: Any) -> None:
        """Perform the handshake over a socket whose `sendall` and `recv` may block. Raise ssl.SSLError if it fails."""
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
        """Return the TLS records for these bytes."""
        self._object.write(data)
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """Return the plain bytes of the records that `data` completes. Raise SSLZeroReturnError after close_notify."""
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
