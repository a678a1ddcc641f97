"""Transfer of turn files in pieces: numbering, flow control and checks of both sides, without I/O.

A worker's parts are numbered from 1 and sent one after another, each in pieces of at most PIECE_BYTES. The receiver accepts
a piece only at the position that it expects, and each acknowledgement states that position. A lost, repeated or reordered
message therefore costs a repetition and changes nothing else.
"""

import hashlib
from collections import deque
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from inferload.base.clock import NS_PER_S

PIECE_BYTES = 128 << 10
MAX_PIECE_BYTES = 1_000_000
MAX_PART_BYTES = 1 << 30
MIN_IN_FLIGHT_BYTES, MAX_IN_FLIGHT_BYTES = 32 << 10, 1_000_000
FAST_S, SLOW_S = 0.2, 0.5  # acknowledgements that take less, or more, change the limit of bytes in flight
_DIGEST_BYTES = 32
_MAX_NUMBER = 1 << 53


class PieceError(ValueError):
    """A malformed piece: no sender of this version produces it."""


class FilePiece(Struct, frozen=True):
    """Consecutive bytes of one part. `size` and `digest` (SHA-256): of the whole part."""

    part: Annotated[int, Meta(ge=1, le=_MAX_NUMBER)]
    size: Annotated[int, Meta(ge=1, le=MAX_PART_BYTES)]
    digest: Annotated[bytes, Meta(min_length=_DIGEST_BYTES, max_length=_DIGEST_BYTES)]
    offset: Annotated[int, Meta(ge=0, le=MAX_PART_BYTES)]
    data: Annotated[bytes, Meta(min_length=1, max_length=MAX_PIECE_BYTES)]

    def to_wire(self) -> dict[str, Any]:
        return structs.asdict(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "FilePiece":
        """Read a message's data, which is not trusted; PieceError if a field is missing, of another type or out of range."""
        try:
            piece = msgspec.convert(wire, cls, builtin_types=(bytes,))  # no base64
        except msgspec.ValidationError as error:
            raise PieceError(str(error)) from error
        if piece.offset + len(piece.data) > piece.size:
            raise PieceError("offset: out of range")
        return piece


class FlightLimit:
    """Bytes that may be sent and not acknowledged: fewer if acknowledgements are slow, so that heartbeats are not delayed."""

    def __init__(self) -> None:
        self.limit_bytes = MIN_IN_FLIGHT_BYTES

    def timed_out(self) -> None:
        """Start again from the least, after a time without an acknowledgement."""
        self.limit_bytes = MIN_IN_FLIGHT_BYTES

    def acknowledged(self, after_s: float) -> None:
        """Adapt the limit to the time between a piece and its acknowledgement."""
        if after_s < FAST_S:
            self.limit_bytes = min(MAX_IN_FLIGHT_BYTES, self.limit_bytes * 2)
        elif after_s > SLOW_S:
            self.limit_bytes = max(MIN_IN_FLIGHT_BYTES, self.limit_bytes // 2)


class OutgoingPart:
    """One part at the sender: the pieces that are due, given the acknowledgements so far."""

    def __init__(self, part: int, content: bytes) -> None:
        self.part = part
        self._content = content
        self._digest = hashlib.sha256(content).digest()
        self._sent = self._acknowledged = 0
        self._in_flight: deque[tuple[int, int]] = deque()  # end offset and instant of sending of each piece

    @property
    def done(self) -> bool:
        """True once the receiver has the whole part."""
        return self._acknowledged >= len(self._content)

    def next_piece(self, limit_bytes: int, at_ns: int) -> FilePiece | None:
        """Take the piece to send now; None if the limit is reached or nothing is left to send."""
        size = min(PIECE_BYTES, limit_bytes, len(self._content) - self._sent)
        in_flight = self._sent - self._acknowledged
        if size <= 0 or (in_flight and in_flight + size > limit_bytes):
            return None
        offset, self._sent = self._sent, self._sent + size
        self._in_flight.append((self._sent, at_ns))
        return FilePiece(self.part, len(self._content), self._digest, offset, self._content[offset : self._sent])

    def acknowledge(self, part: int, offset: int, at_ns: int) -> float | None:
        """Record the position that the receiver expects next. Return the seconds since that piece was sent; None if nothing is new.

        A position before an acknowledged one, as after a damaged part, makes the pieces from there on due again.
        """
        if self.done or part < self.part:
            return None
        reached = len(self._content) if part > self.part else min(offset, len(self._content) - 1)
        if reached < self._acknowledged:
            self._acknowledged = reached
            self.repeat()
            return None
        sent_ns = None
        while self._in_flight and self._in_flight[0][0] <= reached:
            sent_ns = self._in_flight.popleft()[1]
        self._acknowledged, self._sent = reached, max(self._sent, reached)
        return None if sent_ns is None else (at_ns - sent_ns) / NS_PER_S

    def repeat(self) -> None:
        """Make all pieces that are not acknowledged due again."""
        self._sent = self._acknowledged
        self._in_flight.clear()


class IncomingParts:
    """The parts of one worker at the receiver: `part` and `offset` are the position that is expected next."""

    def __init__(self) -> None:
        self.part, self.offset = 1, 0
        self._size, self._digest = 0, b""
        self._hash = hashlib.sha256()

    def expects(self, piece: FilePiece) -> bool:
        """Return True if a piece is the next one. PieceError if it contradicts the part's first piece."""
        if (piece.part, piece.offset) != (self.part, self.offset):
            return False
        if self.offset and (piece.size, piece.digest) != (self._size, self._digest):
            raise PieceError(f"part {piece.part}: size or digest changed")
        return True

    def add(self, piece: FilePiece) -> bool:
        """Record an expected piece that has been stored. Return True if its part is complete.

        If the digest of a complete part differs, the part is expected again from its beginning.
        """
        if not self.offset:
            self._size, self._digest, self._hash = piece.size, piece.digest, hashlib.sha256()
        self._hash.update(piece.data)
        self.offset += len(piece.data)
        if self.offset < self._size:
            return False
        self.offset = 0
        return self._hash.digest() == self._digest

    def next_part(self) -> None:
        """Expect the next part, after a complete one has been stored."""
        self.part, self.offset = self.part + 1, 0
