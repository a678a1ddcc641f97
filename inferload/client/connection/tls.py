"""TLS between buffers in memory."""

import ssl
from typing import Any

_READ_BYTES = 2_048


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
