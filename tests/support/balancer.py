"""Balancers in front of servers, in turn: per request, as a reverse proxy, or per connection, as a Service of Kubernetes."""

import contextlib
import http.client
import itertools
import re
import socket
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from zlib import crc32

from acceptor import Acceptor

_NOT_FORWARDED = ("connection", "keep-alive", "transfer-encoding", "content-length")


class RequestBalancer:
    """Sends each request to the next port. `hidden`: prefix of lines that it removes from metrics pages.

    `held_bytes`: it holds an answer until it has so many bytes, or its end. `sticky`: header by whose value it chooses the port;
    `repeats`, `changes`: each n-th POST goes to the server twice, or gets another text. Answers name their server in X-Server.
    """

    def __init__(
        self,
        ports: Sequence[int],
        hidden: bytes | None = None,
        held_bytes: int = 1,
        *,
        sticky: str = "",
        repeats: int = 0,
        changes: int = 0,
    ) -> None:
        turn, posts = itertools.cycle(ports), itertools.count(1)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            changed = False

            def do_GET(self) -> None:
                self._forward(None)

            def do_POST(self) -> None:
                number = next(posts)
                self.changed = changes and number % changes == 0
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self._forward(body, repeated=bool(repeats) and number % repeats == 0)

            def _forward(self, body: bytes | None, *, repeated: bool = False) -> None:
                key = self.headers.get(sticky) if sticky else None
                self.port = next(turn) if key is None else ports[crc32(key.encode()) % len(ports)]
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _NOT_FORWARDED}
                server = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
                with contextlib.closing(server):
                    if repeated:
                        server.request(self.command, self.path, body, headers)
                        server.getresponse().read()
                    server.request(self.command, self.path, body, headers)
                    self._answer(server.getresponse())

            def _answer(self, reply: http.client.HTTPResponse) -> None:
                self.send_response(reply.status)
                for name, value in reply.getheaders():
                    if name.lower() not in _NOT_FORWARDED:
                        self.send_header(name, value)
                self.send_header("Transfer-Encoding", "chunked")
                self.send_header("X-Server", f"127.0.0.1:{self.port}")
                self.end_headers()
                if hidden is not None and self.path == "/metrics":
                    lines = reply.read().splitlines(keepends=True)
                    self._chunk(b"".join(line for line in lines if not line.startswith(hidden)))
                held = b""
                while data := reply.read1(65536):
                    held += re.sub(rb'("content": ?")(?=[^"])', rb"\1X", data) if self.changed else data
                    if len(held) >= held_bytes:
                        self._chunk(held)
                        held = b""
                if held:
                    self._chunk(held)
                self.wfile.write(b"0\r\n\r\n")

            def _chunk(self, data: bytes) -> None:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class ConnectionBalancer:
    """Sends each connection to the next port."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._turn = itertools.cycle(ports)
        self._acceptor = Acceptor(self._accepted)
        self.url = f"http://127.0.0.1:{self._acceptor.port}"

    def close(self) -> None:
        self._acceptor.close()

    def _accepted(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", next(self._turn)))
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pair in ((client, server), (server, client)):
            threading.Thread(target=_relay, args=pair, daemon=True).start()


def _relay(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
