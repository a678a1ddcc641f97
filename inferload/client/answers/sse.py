"""A sans-IO parser of server-sent events: bytes in, the data of whole events out.

Works on bytes, so that a character split between two reads, or U+2028 inside JSON, cannot end a line: by the standard
(WHATWG HTML, section 9.2) only LF, CR and CRLF do.
"""

from inferload.client.connection.http1 import hex_number

MAX_EVENT_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"


class SseError(Exception):
    """An event is longer than any that a server sends."""


class SseParser:
    """Feed it the body as it comes; it gives back the `data` of each event that is complete."""

    __slots__ = ("_at_start", "_held", "_held_bytes", "_skip_lf")

    def __init__(self) -> None:
        self._held: list[bytes] = []  # what came of an event that has not ended: none of it empty
        self._held_bytes = 0
        self._skip_lf = False  # the last byte was a CR: an LF that comes next belongs to it
        self._at_start = True

    @property
    def between_events(self) -> bool:
        """Whether what comes next is the first byte of an event."""
        return not (self._held or self._skip_lf or self._at_start)

    def begun(self) -> None:
        """Take note that whole events, none of which began with a BOM, were taken elsewhere."""
        self._at_start = False

    @property
    def may_begin(self) -> bool:
        """Whether what comes next is the first byte of an event, or of the whole stream."""
        return not (self._held or self._skip_lf)

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every event that these bytes complete; comments and events without data give nothing.

        SseError where an event is longer than MAX_EVENT_BYTES; nothing of it is kept.
        """
        if self._skip_lf or b"\r" in data:
            data = self._line_feeds_only(data)
        if self._held and not self._at_start and b"\n\n" not in self._held[-1][-1:] + data:
            self._hold(data)  # each byte of a long event is looked at once, in however many reads it comes
            return []
        buffer = b"".join((*self._held, data)) if self._held else data
        self._held, self._held_bytes = [], 0
        if self._at_start:
            buffer = self._without_bom(buffer)
        if b"\n\n" not in buffer and not buffer.startswith(b"\n"):
            self._hold(buffer)
            return []
        *blocks, rest = buffer.split(b"\n\n")
        if len(buffer) > MAX_EVENT_BYTES and any(len(block) > MAX_EVENT_BYTES for block in blocks):
            raise _too_long()
        self._hold(rest)
        return [found for block in blocks if block and (found := _data_of(block)) is not None]

    def finish(self) -> list[bytes]:
        """The data of a last event whose closing blank line never came, where its line did end or its JSON may be whole.

        The standard drops such an event; servers that close right after `data: [DONE]` exist all the same.
        """
        block = b"".join(self._held)
        self._held, self._held_bytes = [], 0
        found = _data_of(block)
        return [] if found is None else [found]

    def _hold(self, data: bytes) -> None:
        if data:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes > MAX_EVENT_BYTES + 1:  # the line feed of the event's last line may be among them
                self._held, self._held_bytes = [], 0
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
    """The data of an event where a read is one whole chunk (RFC 9112, 7.1) with one whole event of one `data` line in it.

    Nearly every read of a stream is; None for all others. Only where both framings stand at a beginning.
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
    return read[cut + 8 : end] if hex_number(read[:cut]) == end - cut else None


def _too_long() -> SseError:
    return SseError(f"an event of more than {MAX_EVENT_BYTES >> 20} MiB")


def _data_of(block: bytes) -> bytes | None:
    """The data of one event, its `data` lines joined by LF; None where it has none."""
    if block.startswith(b"data: ") and b"\n" not in block:  # nearly every event of a completion
        return block[6:]
    lines = []
    for line in block.split(b"\n"):
        name, colon, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" ") if colon else b"")
    return b"\n".join(lines) if lines else None
