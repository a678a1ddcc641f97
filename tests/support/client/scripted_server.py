"""Servers without HTTP logic for tests of the client: in a thread with a script of bytes for each request, or in a process."""

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from acceptor import Acceptor

_TLS_HANDSHAKE = b"\x16\x03"
Script = Callable[[socket.socket, bytes], None]


class ScriptedServer:
    """Server on a free port. Each request is passed to the next script; the last script is repeated."""

    def __init__(self, scripts: list[Script], tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._scripts = scripts
        self._tls = tls
        self._acceptor = Acceptor(self._accepted)
        self.port = self._acceptor.port

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._acceptor.close()

    def _accepted(self, sock: socket.socket) -> None:
        self.connections += 1
        threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock:
            stream = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False) if self._tls else sock
            if isinstance(stream, ssl.SSLSocket):
                try:
                    stream.do_handshake()
                except ssl.SSLError:  # a close with unread bytes would overtake the alert
                    socket.socket.shutdown(stream, socket.SHUT_WR)
                    while socket.socket.recv(stream, 4096):
                        pass
            while (request := read_request(stream)) is not None:
                number = len(self.requests)
                self.requests.append(request)
                self._scripts[min(number, len(self._scripts) - 1)](stream, request)


@contextlib.contextmanager
def server_process(program: str, *arguments: str) -> Iterator[int]:
    """Run a program that calls `serve_until_stdin_closes`; yield its port."""
    words = [sys.executable, program, *arguments]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.stdin.close()


def serve_until_stdin_closes(serve: Callable[[socket.socket], None]) -> None:
    """Print the port, and call `serve` in a thread for each connection."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1_024)

    def accept() -> None:
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=serve, args=(sock,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()


def read_request(sock: socket.socket) -> bytes | None:
    """Read a complete request; None at the end of the connection, and for a TLS record on a plain port."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        data += piece
        if not piece or data.startswith(_TLS_HANDSHAKE):
            return None
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
    )
    pieces, missing = [head, b"\r\n\r\n", body], length - len(body)
    while missing > 0:
        pieces.append(sock.recv(1 << 20))
        missing -= len(pieces[-1])
    return b"".join(pieces)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"


def chunked(*events: bytes) -> bytes:
    """Return a complete chunked reply with a chunk for each event."""
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunk(event) for event in events) + b"0\r\n\r\n"


def sse(event: Any) -> bytes:
    """Return an event of a stream. Its data: bytes as they are, other values as JSON."""
    return b"data: %s\n\n" % (event if isinstance(event, bytes) else json.dumps(event).encode())


def streamed(*events: Any) -> bytes:
    """Return a complete chunked reply of events, as of `sse`, and [DONE]."""
    return chunked(*map(sse, events), sse(b"[DONE]"))


def page(body: Any, status: int = 200, kind: str = "application/json", lines: str = "") -> bytes:
    """Return a complete reply: bytes and texts as they are, other values as JSON. `lines`: further headers."""
    data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{lines}Content-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


NOT_FOUND = page("", 404)


def body_of(request: bytes) -> Any:
    """Return the JSON of a request."""
    return json.loads(request.partition(b"\r\n\r\n")[2])


def one_model(turn: Script, path: str = "/v1/chat/completions", name: str = "m") -> Script:
    """Return a script that passes the requests of a path on, and has no other page than a list of one model."""

    def script(sock: socket.socket, request: bytes) -> None:
        asked = request.split(b" ")[1].decode()
        if asked == path:
            turn(sock, request)
        else:
            sock.sendall(page({"data": [{"id": name}]}) if asked == "/v1/models" else NOT_FOUND)

    return script


def send(data: bytes, *, close: bool = False, piece_bytes: int = 0) -> Script:
    """Return a script that sends these bytes, optionally in pieces, and optionally closes the connection."""

    def script(sock: socket.socket, _request: bytes) -> None:
        for piece in pieces_of(data, piece_bytes):
            sock.sendall(piece)
        if close:
            sock.shutdown(socket.SHUT_RDWR)

    return script


def pieces_of(data: bytes, piece_bytes: int) -> Iterator[bytes]:
    size = piece_bytes or len(data) or 1
    for start in range(0, len(data), size):
        yield data[start : start + size]
