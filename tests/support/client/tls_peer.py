"""Server side of TLS in memory: the records of a reply, and every end of a stream, as bytes.

Python's `ssl` sends no empty records, no key updates and no single alerts. So after a handshake of TLS 1.3 this module encrypts by
itself (RFC 8446, 5.2 and 7.3), with the secret from the key log; with TLS 1.2 an `SSLObject` encrypts.
"""

import contextlib
import functools
import re
import ssl
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import trustme
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

VERSIONS = ("TLSv1.2", "TLSv1.3")
_ALERT, _HANDSHAKE, _DATA = 21, 22, 23
_GARBAGE = b"\x17\x03\x03\x00\x20" + bytes(32)


class Peer(Protocol):
    """Server side of one connection."""

    def data(self, plain: bytes) -> bytes: ...
    def close_notify(self) -> bytes: ...
    def fatal_alert(self) -> bytes: ...


@functools.cache
def authority() -> trustme.CA:
    return trustme.CA()


@functools.cache
def server_context(version: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert("127.0.0.1").configure_cert(context)
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version.replace(".", "_")]
    context.num_tickets = 0
    context.keylog_filename = tempfile.mkstemp()[1]
    return context


class Handshake:
    """Socket of a client whose peer is in memory. `early`: sent by the server right after its last message.

    Like those of a kernel, bytes that the client does not ask for stay in `unread`.
    """

    def __init__(self, version: str, early: tuple[str, ...] = ()) -> None:
        self._context = server_context(version)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._early = early
        self.unread = b""
        self.peer: Peer | None = None

    def sendall(self, data: bytes) -> None:
        if not data:
            return
        self._incoming.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self.unread += self._outgoing.read()
            return
        self.unread += self._outgoing.read()
        self.peer = self._peer()
        for name in self._early:
            self.unread += self.peer.data(b"early") if name == "data" else getattr(self.peer, name)()

    def recv(self, most_bytes: int) -> bytes:
        taken, self.unread = self.unread[:most_bytes], self.unread[most_bytes:]
        return taken

    def _peer(self) -> Peer:
        if self._object.version() == "TLSv1.2":
            return _Peer12(self._object, self._incoming, self._outgoing)
        assert self._object.cipher()[0] == "TLS_AES_256_GCM_SHA384"  # type: ignore[index]
        log = Path(str(self._context.keylog_filename))
        secret = re.findall(r"^SERVER_TRAFFIC_SECRET_0 \w+ (\w+)", log.read_text(), re.MULTILINE)[-1]
        log.write_text("")
        return Peer13(bytes.fromhex(secret))


class _Peer12:
    def __init__(self, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._object, self._incoming, self._outgoing = tls, incoming, outgoing

    def data(self, plain: bytes) -> bytes:
        self._object.write(plain)
        return self._outgoing.read()

    def close_notify(self) -> bytes:
        with contextlib.suppress(ssl.SSLError):  # it waits for the client's
            self._object.unwrap()
        return self._outgoing.read()

    def fatal_alert(self) -> bytes:
        self._incoming.write(_GARBAGE)
        with contextlib.suppress(ssl.SSLError):
            self._object.read()
        return self._outgoing.read()


class Peer13:
    """Records of TLS 1.3 (TLS_AES_256_GCM_SHA384)."""

    def __init__(self, secret: bytes) -> None:
        self._begin(secret)

    def data(self, plain: bytes) -> bytes:
        return b"".join(self._sealed(_DATA, part) for part in _parts(plain))

    def padded(self, plain: bytes) -> bytes:
        return b"".join(self._sealed(_DATA, part, padding=100) for part in _parts(plain))

    def empty(self) -> bytes:
        return self._sealed(_DATA, b"")

    def ticket(self) -> bytes:
        """Return a NewSessionTicket."""
        body = struct.pack("!IIB1sH4sH", 60, 0, 1, b"n", 4, b"tick", 0)
        return self._sealed(_HANDSHAKE, b"\x04" + len(body).to_bytes(3, "big") + body)

    def key_update(self, requested: int = 1) -> bytes:
        record = self._sealed(_HANDSHAKE, b"\x18\x00\x00\x01" + bytes([requested]))
        self._begin(_expanded(self._secret, b"traffic upd", 48))
        return record

    def user_canceled(self) -> bytes:
        """Return the alert that announces a close."""
        return self._sealed(_ALERT, b"\x01\x5a")

    def close_notify(self) -> bytes:
        return self._sealed(_ALERT, b"\x01\x00")

    def fatal_alert(self) -> bytes:
        return self._sealed(_ALERT, b"\x02\x50")  # internal_error

    def _begin(self, secret: bytes) -> None:
        self._secret = secret
        self._key, self._iv = AESGCM(_expanded(secret, b"key", 32)), _expanded(secret, b"iv", 12)
        self._number = 0

    def _sealed(self, kind: int, plain: bytes, padding: int = 0) -> bytes:
        inner = plain + bytes([kind]) + bytes(padding)
        head = struct.pack("!BHH", _DATA, 0x0303, len(inner) + 16)
        nonce = (int.from_bytes(self._iv, "big") ^ self._number).to_bytes(12, "big")
        self._number += 1
        return head + self._key.encrypt(nonce, inner, head)


def garbage() -> bytes:
    """Return a record with a wrong checksum."""
    return _GARBAGE


def _expanded(secret: bytes, label: bytes, length: int) -> bytes:
    label = b"tls13 " + label
    info = struct.pack("!HB", length, len(label)) + label + b"\x00"
    return HKDFExpand(SHA384(), length, info).derive(secret)


def _parts(plain: bytes) -> Iterator[bytes]:
    """Yield the contents of the records for these bytes."""
    for at in range(0, len(plain), 1 << 14):
        yield plain[at : at + (1 << 14)]
