"""Server side of HTTP/1.1 (RFC 9112) without I/O: request parser and response serialisation."""

import json
import re
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

MAX_HEAD_BYTES = 65_536
MAX_BODY_BYTES = 64 * 1024 * 1024
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_MAX_CHUNK_LINE_BYTES = 4096
_MAX_LENGTH_DIGITS = 19  # of a Content-Length or, in hexadecimal, a chunk size
_HEX = re.compile(rb"[0-9A-Fa-f]+")


class HttpFault(Exception):
    """Malformed or too large request, answered with this status before the connection is closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Complete request. Header names are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    keep_alive: bool
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Complete reply. Empty `content_type`: no such header."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


def json_reply(document: Any, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> HttpResponse:
    """Reply with a JSON document."""
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return HttpResponse(status, body, headers=headers)


def head_bytes(
    status: int, content_type: str, framing: str, keep_alive: bool, more: tuple[tuple[str, str], ...]
) -> bytes:
    """Status line and headers. `framing` is a header line, or empty for a body that the connection ends."""
    lines = [f"HTTP/1.1 {status} {_phrase(status)}", "server: inferload-simulator"]
    lines += [f"content-type: {content_type}"] if content_type else []
    lines += [f"{name}: {value}" for name, value in more]
    if framing:
        lines.append(framing)
    if not keep_alive:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def reply_bytes(reply: HttpResponse, keep_alive: bool) -> bytes:
    """Bytes of a complete reply."""
    framing = f"content-length: {len(reply.body)}"
    return head_bytes(reply.status, reply.content_type, framing, keep_alive, reply.headers) + reply.body


def chunk(data: bytes) -> bytes:
    """Chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


class RequestReader:
    """Incremental parser of requests. `wants_continue`: the client waits for 100 Continue."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: HttpRequest | None = None  # without its body
        self._body = bytearray()  # of a chunked request
        self._continue_sent = False
        self.wants_continue = False

    @property
    def idle(self) -> bool:
        """True between two requests."""
        return self._head is None and not self._buffer

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an incomplete request."""
        return len(self._buffer) + len(self._body)

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def next(self) -> HttpRequest | None:
        """Return the next complete request, or None. Raise HttpFault if the bytes are malformed."""
        if self._head is None:
            self._head = self._read_head()
            if self._head is None:
                return None
        head = self._head
        length = _length(head.headers)
        body = self._read_chunked() if length < 0 else self._read_plain(length)
        expects = head.headers.get("expect", "").lower() == "100-continue"
        self.wants_continue = body is None and expects and not self._continue_sent
        if body is None:
            return None
        self._head, self._continue_sent = None, False
        return replace(head, body=body)

    def continue_sent(self) -> None:
        """Record that 100 Continue was sent; it is sent once per request."""
        self._continue_sent = True

    def _read_head(self) -> HttpRequest | None:
        end = self._buffer.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES + 4)
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise HttpFault(431, f"the head of the request is longer than {MAX_HEAD_BYTES} bytes")
            return None
        text = self._buffer[:end].decode("latin-1")
        del self._buffer[: end + 4]
        return _parse_head(text)

    def _read_plain(self, length: int) -> bytes | None:
        if len(self._buffer) < length:
            return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    def _read_chunked(self) -> bytes | None:
        while (end := self._line_end()) is not None:
            size = _chunk_size(self._buffer[:end])
            if len(self._body) + size > MAX_BODY_BYTES:
                raise HttpFault(413, f"the body of the request is longer than {MAX_BODY_BYTES} bytes")
            if size == 0:
                return self._read_trailer(end + 2)
            data_end = end + 2 + size
            if len(self._buffer) < data_end + 2:
                return None
            if self._buffer[data_end : data_end + 2] != b"\r\n":
                raise HttpFault(400, "chunk size and chunk data differ")
            self._body += self._buffer[end + 2 : data_end]
            del self._buffer[: data_end + 2]
        return None

    def _line_end(self) -> int | None:
        """End of the first line of a chunk; None if not received yet."""
        end = self._buffer.find(b"\r\n", 0, _MAX_CHUNK_LINE_BYTES + 2)
        if end < 0 and len(self._buffer) > _MAX_CHUNK_LINE_BYTES + 1:
            raise HttpFault(400, f"the first line of a chunk is longer than {_MAX_CHUNK_LINE_BYTES} bytes")
        return None if end < 0 else end

    def _read_trailer(self, start: int) -> bytes | None:
        """Return the body once the trailer section is complete, else None. Trailer fields are ignored."""
        if self._buffer[start : start + 2] == b"\r\n":
            end = start + 2
        else:
            blank_line = self._buffer.find(b"\r\n\r\n", start, start + MAX_HEAD_BYTES + 4)
            if blank_line < 0 and len(self._buffer) > start + MAX_HEAD_BYTES:
                raise HttpFault(431, f"the trailer of the request is longer than {MAX_HEAD_BYTES} bytes")
            if blank_line < 0:
                return None
            end = blank_line + 4
        del self._buffer[:end]
        body, self._body = bytes(self._body), bytearray()
        return body


def _chunk_size(line: bytearray) -> int:
    digits = bytes(line.split(b";")[0].rstrip(b" \t"))
    if not _HEX.fullmatch(digits):
        raise HttpFault(400, "invalid chunk size")
    digits = digits.lstrip(b"0")
    return int(digits or b"0", 16) if len(digits) <= _MAX_LENGTH_DIGITS else MAX_BODY_BYTES + 1


def _parse_head(text: str) -> HttpRequest:
    first, *lines = text.split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise HttpFault(400, "invalid HTTP/1.1 request line")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip() or not name:
            raise HttpFault(400, "invalid header line")
        headers[name.lower()] = value.strip()
    connection = headers.get("connection", "").lower()
    keep_alive = "close" not in connection if parts[2] == "HTTP/1.1" else "keep-alive" in connection
    try:
        target = urlsplit(parts[1])
    except ValueError as error:
        raise HttpFault(400, f"invalid request target: {error}") from None
    return HttpRequest(parts[0], target.path, dict(parse_qsl(target.query)), headers, keep_alive)


def _length(headers: dict[str, str]) -> int:
    """Length of the body; -1: chunked."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return -1
    value = headers.get("content-length", "0")
    if not (value.isascii() and value.isdigit()):
        raise HttpFault(400, "invalid content length")
    digits = value.lstrip("0")  # int() refuses thousands of digits
    if len(digits) > _MAX_LENGTH_DIGITS or int(digits or "0") > MAX_BODY_BYTES:
        raise HttpFault(413, f"the body of the request is longer than {MAX_BODY_BYTES} bytes")
    return int(digits or "0")
