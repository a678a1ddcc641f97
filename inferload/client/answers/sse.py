"""Parser of server-sent events (WHATWG HTML, section 9.2): from bytes to the data of whole events. No I/O.

It works on bytes, so that neither a character split between two reads nor U+2028 inside JSON ends a line: only LF, CR and CRLF do.
"""

from typing import Any

import msgspec

from inferload.client.answers.number_bounds import UNDECODABLE
from inferload.client.connection.http1 import hex_number

MAX_EVENT_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"


class SseError(Exception):
    """An event is longer than MAX_EVENT_BYTES."""


class SseParser:
    """Incremental parser: `feed` parts of the body, which returns the `data` of each complete event."""

    __slots__ = ("_at_start", "_partial", "_partial_bytes", "_skip_lf")

    def __init__(self) -> None:
        self._partial: list[bytes] = []  # parts of an incomplete event, none of them empty
        self._partial_bytes = 0
        self._skip_lf = False  # the last byte was a CR: skip an LF after it
        self._at_start = True

    @property
    def between_events(self) -> bool:
        """True if the next byte is the first of an event."""
        return not (self._partial or self._skip_lf or self._at_start)

    def begun(self) -> None:
        """Mark the start of the stream as passed: whole events without a BOM were parsed elsewhere."""
        self._at_start = False

    @property
    def may_begin(self) -> bool:
        """True if the next byte is the first of an event or of the stream."""
        return not (self._partial or self._skip_lf)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that these bytes complete, without comments and events without data.

        Raise SseError if an event is longer than MAX_EVENT_BYTES, and discard it.
        """
        if self._skip_lf or b"\r" in data:
            data = self._line_feeds_only(data)
        if self._partial and not self._at_start and b"\n\n" not in self._partial[-1][-1:] + data:
            self._hold(data)  # each byte of a long event is scanned once, for any number of reads
            return []
        buffer = b"".join((*self._partial, data)) if self._partial else data
        self._partial, self._partial_bytes = [], 0
        if self._at_start:
            buffer = self._without_bom(buffer)
        if b"\n\n" not in buffer and not buffer.startswith(b"\n"):
            self._hold(buffer)
            return []
        *blocks, rest = buffer.split(b"\n\n")
        if len(buffer) > MAX_EVENT_BYTES and any(len(block) > MAX_EVENT_BYTES for block in blocks):
            raise _too_long()
        self._hold(rest)
        return [event for block in blocks if block and (event := _data_of(block)) is not None]

    def finish(self) -> list[bytes]:
        """Return the data of a last event without its closing blank line, if it has any.

        The standard discards such an event, but some servers close the connection right after `data: [DONE]`.
        """
        event = self.unfinished()
        self._partial, self._partial_bytes = [], 0
        return [] if event is None else [event]

    def start_of_unfinished(self, n_bytes: int) -> bytes:
        """Return about this number of first bytes of the event that has begun."""
        parts: list[bytes] = []
        for part in self._partial:
            if n_bytes <= 0:
                break
            parts.append(part[:n_bytes])
            n_bytes -= len(part)
        return b"".join(parts)

    def unfinished(self) -> bytes | None:
        """Return the data of the event that has begun, if it has any."""
        return _data_of(b"".join(self._partial))

    def _hold(self, data: bytes) -> None:
        if data:
            self._partial.append(data)
            self._partial_bytes += len(data)
            if self._partial_bytes > MAX_EVENT_BYTES + 1:  # they may include the line feed of the last line
                self._partial, self._partial_bytes = [], 0
                raise _too_long()

    def _line_feeds_only(self, data: bytes) -> bytes:
        if self._skip_lf and data:
            data = data.removeprefix(b"\n")
            self._skip_lf = False
        if data.endswith(b"\r"):
            self._skip_lf = True
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _without_bom(self, buffer: bytes) -> bytes:
        if len(buffer) < len(_BOM) and _BOM.startswith(buffer):
            return buffer
        self._at_start = False
        return buffer.removeprefix(_BOM)


def event_of_chunk(read: bytes) -> bytes | None:
    """Return the data of a read that is one whole chunk (RFC 9112, 7.1) with one event of one `data` line; else None.

    Nearly every read of a stream is such a chunk. Both framings must be at a start.
    """
    cut = read.find(b"\r\ndata: ", 1, 16)
    end = len(read) - 4
    if (
        cut < 0
        or not read.endswith(b"\n\n\r\n")
        or read.find(b"\n", cut + 8) != end
        or read.find(b"\r", cut + 8) != end + 2
    ):
        return None
    return (read[cut + 8 : end] or None) if hex_number(read[:cut]) == end - cut else None


def _too_long() -> SseError:
    return SseError(f"an event of more than {MAX_EVENT_BYTES >> 20} MiB")


def _data_of(block: bytes) -> bytes | None:
    """Return the `data` lines of one event joined by LF; None without such a line. An error event is returned as JSON."""
    if block.startswith(b"data: ") and b"\n" not in block:  # nearly every event of a completion
        return block[6:] or None
    lines, comments, named = [], [], False
    for line in block.split(b"\n"):
        name, colon, value = line.partition(b":")
        value = value.removeprefix(b" ") if colon else b""
        if name == b"data":
            lines.append(value)
        elif name == b"event" and value.strip().lower() == b"error":
            named = True
        elif name == b"error":  # llama.cpp sends its errors in a field of this name
            named = True
            comments.append(value)
        elif not name:
            comments.append(value)
    if named:
        return _error_event(b"\n".join(lines or comments))
    return b"\n".join(lines) or None  # an event without data is none (WHATWG HTML, 9.2.6)


class _Named(msgspec.Struct):
    error: Any = None


def _error_event(data: bytes) -> bytes:
    """Return the data of an error event so that every endpoint's parser takes it for an error."""
    try:
        if is_error(msgspec.json.decode(data, type=_Named).error):
            return data
        error = msgspec.Raw(data)
    except UNDECODABLE:
        error = msgspec.Raw(msgspec.json.encode(data.decode("utf-8", "replace").strip() or "error event without data"))
    return msgspec.json.encode({"type": "error", "error": {"event": "error", "data": error}})


def is_error(value: object) -> bool:
    """Return True if the `error` of an event names one: false, 0, empty values, and objects of only these do not."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, dict | list):
            left += part.values() if isinstance(part, dict) else part
        elif part:
            return True
    return False
