"""Kind of a response body, detected from its first bytes, and decompression of its content encoding. No I/O."""

import re
import zlib
from enum import Enum

from inferload.client.connection.http1 import Http1Error

MOST_BLANK_BYTES = 4096  # after which a body without a field is no event stream
_BOM = b"\xef\xbb\xbf"
_FIELDS = (b"data", b"event", b"id", b"retry")  # of server-sent events
_LINE_END = re.compile(rb"[\r\n]")
# zlib's window sizes: the header of gzip or zlib is detected; a deflate body without header is common too.
_DETECT, _RAW = 32 + zlib.MAX_WBITS, -zlib.MAX_WBITS


class BodyKind(Enum):
    """Kind of a body whose first bytes are known."""

    EVENTS = "server-sent events"
    OTHER = "another document"
    UNKNOWN = "too few bytes"


def kind_of(start: bytes) -> BodyKind:
    """Return the kind of the body that starts with these bytes: events begin with a field or a comment, after blank lines."""
    if len(start) < len(_BOM) and _BOM.startswith(start):
        return BodyKind.UNKNOWN
    text = start.removeprefix(_BOM).lstrip(b"\r\n")
    line = _LINE_END.split(text, maxsplit=1)[0]
    name, colon, _ = line.partition(b":")
    if (colon and (not name or name in _FIELDS)) or (line != text and line in _FIELDS):
        return BodyKind.EVENTS
    is_open = not colon and line == text and any(field.startswith(name) for field in _FIELDS)
    return BodyKind.UNKNOWN if is_open and len(start) <= MOST_BLANK_BYTES else BodyKind.OTHER


class Inflater:
    """Incremental decoder of a compressed body; what the compressor has flushed is returned at once."""

    __slots__ = ("_first", "_may_be_raw", "_name", "_part")

    def __init__(self, name: str) -> None:
        self._name = name
        self._part = zlib.decompressobj(_DETECT)
        self._may_be_raw = name == "deflate"
        self._first = b""  # bytes before the first output, while they may lack a header

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that these complete. Raise Http1Error for others than those of the encoding."""
        pieces: list[bytes] = []
        try:
            while data:
                pieces.append(self._decompressed(data))
                data = self._part.unused_data
                if self._part.eof:
                    self._part = zlib.decompressobj(_DETECT)  # a gzip body may have several members
        except zlib.error as error:
            raise Http1Error(f"the body is not {self._name}, its Content-Encoding: {error}") from None
        return b"".join(pieces)

    def _decompressed(self, data: bytes) -> bytes:
        if self._may_be_raw:
            self._first += data
        try:
            plain = self._part.decompress(data)
        except zlib.error:
            if not self._may_be_raw:
                raise
            self._part = zlib.decompressobj(_RAW)
            plain = self._part.decompress(self._first)
        if plain:
            self._may_be_raw, self._first = False, b""
        return plain


def inflaters(encodings: list[str]) -> list[Inflater] | None:
    """Return the decoders of a body in the order of their use; None if there is an unknown encoding."""
    if any(name not in ("gzip", "x-gzip", "deflate") for name in encodings):
        return None
    return [Inflater(name) for name in reversed(encodings)]
