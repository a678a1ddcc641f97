"""HTTP/1.1 for a client (RFC 9112): requests, heads of replies, and framing of bodies. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from types import MappingProxyType

MAX_HEAD_BYTES = 65_536  # of a reply's head and all interim replies before it
MAX_LINE_BYTES = 8_192  # of a chunk's size, or of a trailer
MAX_TRAILER_BYTES = 65_536  # of all trailers
MAX_LENGTH_DIGITS = 15  # of a Content-Length or of a chunk's size
_HEX = b"0123456789abcdefABCDEF"


class News:
    """What a read of a reply has led to: bits, `enum news` of parser.h."""

    COMPLETE, BROKEN, ASKS_FOR_HEAD, MARKED, SURPLUS, FULL = 1, 2, 4, 8, 16, 32


class Http1Error(Exception):
    """A reply that violates HTTP/1.1."""


class ChunkError(Http1Error):
    """Broken chunk framing. `body`: the bytes of the body before it in the last call of `feed`."""

    def __init__(self, why: str, body: bytes = b"") -> None:
        super().__init__(why)
        self.body = body


class Framing(Enum):
    """Framing of a reply's body: chunked, by length, or up to the end of the connection."""

    CHUNKED = "chunked"
    LENGTH = "length"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """Status line and headers of a reply. `length`: the Content-Length, if any."""

    status: int
    headers: Mapping[str, str]  # names in lower case; repeated ones joined by a comma, of cookies by a line feed
    framing: Framing
    length: int | None
    keep_alive: bool

    @property
    def encodings(self) -> list[str]:
        """Content encodings in the order in which they were applied, without `identity`."""
        names = (name.strip().lower() for name in self.headers.get("content-encoding", "").split(","))
        return [name for name in names if name not in ("", "identity")]

    @property
    def is_encoded(self) -> bool:
        """True if the body has a content encoding such as gzip."""
        return bool(self.encodings)


def request_bytes(method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    """Return a request, with head and body in one piece for a single segment."""
    head = request_head(method, path, headers)
    return with_body(head, body) if body or method != "GET" else head + b"\r\n"


def request_head(method: str, path: str, headers: dict[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), ""]
    return "\r\n".join(lines).encode("latin-1")


def with_body(head: bytes, body: bytes) -> bytes:
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


def parse_head(buffer: bytes) -> tuple[ReplyHead, bytes] | None:
    """Return the head of a reply and the bytes after it; None while it is incomplete. Interim replies (1xx) are skipped."""
    start = 0
    while True:
        end = buffer.find(b"\r\n\r\n", start)
        if (len(buffer) if end < 0 else end + 4) > MAX_HEAD_BYTES:
            raise Http1Error(f"a head, with the interim replies before it, of more than {MAX_HEAD_BYTES} bytes")
        if end < 0:
            if len(buffer) >= start + 5 and not buffer.startswith(b"HTTP/", start):
                raise Http1Error(f"not an HTTP reply: starts with {buffer[start : start + 20]!r}")
            return None
        head = _head(buffer[start:end])
        start = end + 4
        if not 100 <= head.status < 200:
            return head, buffer[start:]


@lru_cache(maxsize=64)  # most heads of one second are equal
def _head(text: bytes) -> ReplyHead:
    first, *lines = text.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or not (code.isascii() and code.isdigit() and len(code) == 3):
        raise Http1Error(f"not an HTTP/1.1 status line: {first[:80]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Http1Error(f"not a header: {line[:80]!r}")
        key = name.lower()
        between = "\n" if key == "set-cookie" else ", "  # a cookie's date has a comma
        headers[key] = f"{headers[key]}{between}{value.strip()}" if key in headers else value.strip()
    framing, length = _framing(int(code), headers)
    connection = headers.get("connection", "").lower()
    stays = "close" not in connection if version == "HTTP/1.1" else "keep-alive" in connection
    return ReplyHead(int(code), MappingProxyType(headers), framing, length, stays and framing is not Framing.CLOSE)


def _framing(status: int, headers: dict[str, str]) -> tuple[Framing, int | None]:
    if status in (204, 304):
        return Framing.LENGTH, 0
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower().split(",")[-1].strip() != "chunked":
            return Framing.CLOSE, None
        return Framing.CHUNKED, None
    if "content-length" in headers:
        values = {value.strip() for value in headers["content-length"].split(",")}
        value = values.pop()
        if values or not (value.isascii() and value.isdigit() and len(value) <= MAX_LENGTH_DIGITS):
            raise Http1Error(f"not a content length: {headers['content-length'][:40]!r}")
        return Framing.LENGTH, int(value)
    return Framing.CLOSE, None


class ChunkedDecoder:
    """Incremental decoder of a chunked body. `done`: the last chunk and its trailers have been fed."""

    __slots__ = ("_buffer", "_left", "_state", "_trailer_bytes", "done", "surplus")

    def __init__(self) -> None:
        self._buffer = b""
        self._state = "size"
        self._left = 0
        self._trailer_bytes = 0
        self.done = False
        self.surplus = b""  # bytes after the end, an error: the client sends one request at a time

    def copy(self) -> "ChunkedDecoder":
        other = ChunkedDecoder()
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    @property
    def between_chunks(self) -> bool:
        """True if the next byte is the first of a chunk."""
        return self._state == "size" and not self._buffer and not self.done

    @property
    def rest_of_chunk(self) -> int | None:
        """Number of bytes up to the end of the current chunk, with its line end; None between chunks and within a line."""
        if self._state == "data":
            return self._left + 2
        return 2 - len(self._buffer) if self._state == "after" and len(self._buffer) < 2 else None

    def end(self) -> None:
        """Mark the body as done: the last chunk, without trailers, was parsed elsewhere."""
        self.done = True

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of the body in `data`, none after the end. Raise ChunkError for broken framing."""
        if self.done:
            self.surplus = self.surplus or data
            return b""
        if self.between_chunks:  # nearly every read of a stream is one whole chunk
            cut = data.find(b"\r\n", 1, 16)
            size = len(data) - cut - 4
            if cut > 0 and size > 0 and data.endswith(b"\r\n") and hex_number(data[:cut]) == size:
                return data[cut + 2 : -2]
        pieces: list[bytes] = []
        buffer, at = self._buffer + data, 0
        try:
            while not self.done:
                step = self._data_step if self._state == "data" else self._line_step
                before = at, self._state
                at = step(buffer, at, pieces)
                if (at, self._state) == before:
                    break
        except Http1Error as error:
            raise ChunkError(str(error), b"".join(pieces)) from None
        self._buffer = b"" if self.done else buffer[at:]
        self.surplus = buffer[at:] if self.done else b""
        return b"".join(pieces)

    def _data_step(self, buffer: bytes, at: int, pieces: list[bytes]) -> int:
        piece = buffer[at : at + self._left]
        if piece:
            pieces.append(piece)
            self._left -= len(piece)
        if not self._left:
            self._state = "after"
        return at + len(piece)

    def _line_step(self, buffer: bytes, at: int, _pieces: list[bytes]) -> int:
        end = buffer.find(b"\r\n", at)
        length = (len(buffer) - buffer.endswith(b"\r") if end < 0 else end) - at
        if length > MAX_LINE_BYTES:
            raise Http1Error("a chunk's line has no end")
        if end < 0:
            return at
        line = buffer[at:end]
        if self._state == "after":
            if line:
                raise Http1Error(f"a chunk is longer than its size: {line[:20]!r}")
            self._state = "size"
        elif self._state == "size":
            self._left = _chunk_size(line)
            self._state = "data" if self._left else "trailers"
        elif not line:  # the blank line after the trailers
            self.done = True
        else:
            self._trailer_bytes += length + 2
            if self._trailer_bytes > MAX_TRAILER_BYTES:
                raise Http1Error(f"trailers of more than {MAX_TRAILER_BYTES} bytes")
        return end + 2


def _chunk_size(line: bytes) -> int:
    digits = line.split(b";", 1)[0].strip(b" \t")
    size = hex_number(digits) if len(digits) <= MAX_LENGTH_DIGITS else None
    if size is None:
        raise Http1Error(f"not a chunk size: {line[:20]!r}")
    return size


def hex_number(digits: bytes) -> int | None:
    """Return the value of hexadecimal digits; None if there are none, or other characters."""
    return None if not digits or digits.strip(_HEX) else int(digits, 16)
