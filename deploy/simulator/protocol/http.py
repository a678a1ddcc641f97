"""Server side of HTTP/1.1 (RFC 9112) without I/O: request parser and response serialisation."""

import json
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

MAX_HEAD_BYTES = 65_536
MAX_BODY_BYTES = 64 * 1024 * 1024
_MAX_LENGTH_DIGITS = 19  # of a Content-Length


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
    headers: dict[str, str]
    keep_alive: bool
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Complete reply. Empty `content_type`: no such header."""

    status: int
    body: bytes
    content_type: str = "application/json"


def json_reply(document: Any, status: int = 200) -> HttpResponse:
    """Reply with a JSON document."""
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return HttpResponse(status, body)


def head_bytes(status: int, content_type: str, framing: str, keep_alive: bool) -> bytes:
    """Status line and headers. `framing` is a header line."""
    lines = [f"HTTP/1.1 {status} {_phrase(status)}", "server: inferload-simulator"]
    lines += [f"content-type: {content_type}"] if content_type else []
    lines.append(framing)
    if not keep_alive:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def reply_bytes(reply: HttpResponse, keep_alive: bool) -> bytes:
    """Bytes of a complete reply."""
    framing = f"content-length: {len(reply.body)}"
    return head_bytes(reply.status, reply.content_type, framing, keep_alive) + reply.body


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
    """Incremental parser of requests."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: HttpRequest | None = None  # without its body

    @property
    def buffered_bytes(self) -> int:
        """Bytes of incomplete requests."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def next(self) -> HttpRequest | None:
        """Return the next complete request, or None. Raise HttpFault if the bytes are malformed."""
        head = self._head = self._head or self._read_head()
        if head is None:
            return None
        length = _length(head.headers)
        if len(self._buffer) < length:
            return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        self._head = None
        return replace(head, body=body)

    def _read_head(self) -> HttpRequest | None:
        end = self._buffer.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES + 4)
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise HttpFault(431, f"the head of the request is longer than {MAX_HEAD_BYTES} bytes")
            return None
        text = self._buffer[:end].decode("latin-1")
        del self._buffer[: end + 4]
        return _parse_head(text)


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
        path = urlsplit(parts[1]).path
    except ValueError as error:
        raise HttpFault(400, f"invalid request target: {error}") from None
    return HttpRequest(parts[0], path, headers, keep_alive)


def _length(headers: dict[str, str]) -> int:
    """Length of the body. Raise HttpFault if it is invalid or not given."""
    if "transfer-encoding" in headers:
        raise HttpFault(411, "a request in chunks is not supported; send its length")
    value = headers.get("content-length", "0")
    if not (value.isascii() and value.isdigit()):
        raise HttpFault(400, "invalid content length")
    digits = value.lstrip("0")  # int() refuses thousands of digits
    if len(digits) > _MAX_LENGTH_DIGITS or int(digits or "0") > MAX_BODY_BYTES:
        raise HttpFault(413, f"the body of the request is longer than {MAX_BODY_BYTES} bytes")
    return int(digits or "0")
