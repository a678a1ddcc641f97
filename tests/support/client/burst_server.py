"""Server in a separate process that sends streamed replies of 40 to 400 kB as fast as the socket accepts them.

The body of a request selects the reply: `{"answer": 3}`.
"""

import contextlib
import json
import socket
import ssl
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scripted_server import HEAD, chunk, pieces_of, serve_until_stdin_closes, server_process

WORD = "word " * 20
EVENT = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": WORD}, "finish_reason": None}]}
SIZES_BYTES = [40_000, 60_000, 64_000, 80_000, 130_000, 150_000, 200_000, 260_000, 300_000, 400_000]
FRAMINGS = ("chunked", "length", "buffered")
BUFFER_BYTES = 16_384  # chunk size of a proxy that splits events
PIECES_BYTES = (4_000, 1_400, 0)  # sizes of the server's writes; 0: one write


@dataclass(frozen=True, slots=True)
class BurstReply:
    """Complete reply. `events`: number of events with text."""

    reply: bytes
    events: int


def answers(framing: str) -> list[BurstReply]:
    """Return a reply of each size."""
    event = b"data: " + json.dumps(EVENT).encode() + b"\n\n"
    replies = []
    for size in SIZES_BYTES:
        count = size // len(event)
        last = {**EVENT, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        blocks = [event] * count + [b"data: " + json.dumps(last).encode() + b"\n\n", b"data: [DONE]\n\n"]
        replies.append(BurstReply(_framed(blocks, framing), count))
    return replies


def _framed(blocks: list[bytes], framing: str) -> bytes:
    body = b"".join(blocks)
    if framing == "length":
        return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunks = blocks if framing == "chunked" else pieces_of(body, BUFFER_BYTES)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(map(chunk, chunks)) + b"0\r\n\r\n"


@contextlib.contextmanager
def running(framing: str, certificate: Path | None = None) -> Iterator[str]:
    """Start a server; yield its URL. `certificate`: PEM file with key and certificate, for TLS."""
    with server_process(__file__, framing, *([] if certificate is None else [str(certificate)])) as port:
        yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{port}"


def serve(tls: ssl.SSLContext | None, replies: list[bytes], sock: socket.socket) -> None:
    """Answer the requests of one connection."""
    with contextlib.suppress(OSError), sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = sock if tls is None else tls.wrap_socket(sock, server_side=True)
        request = b""
        while piece := stream.recv(65_536):
            request += piece
            if request.endswith(b"}"):
                number = int(request.rpartition(b": ")[2][:-1])
                for piece in pieces_of(replies[number], PIECES_BYTES[number % len(PIECES_BYTES)]):
                    stream.sendall(piece)
                request = b""


def main(framing: str, *certificate: str) -> None:
    replies = [answer.reply for answer in answers(framing)]
    tls = None
    if certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate[0])
    serve_until_stdin_closes(partial(serve, tls, replies))


if __name__ == "__main__":
    main(*sys.argv[1:])
