"""HTTP server of one file that follows a script: a reply for each request, then whole replies."""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Reply:
    """One reply. `cut_after`: bytes of the body after which the connection ends; `ranges`: a Range is honoured."""

    cut_after: int | None = None
    ranges: bool = True
    chunked: bool = False
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    shift: int = 0  # of the range that is sent


class FileServer(ThreadingHTTPServer):
    """Server on a free loopback port."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = b""
        self.script: list[Reply] = []
        self.ranges: list[str | None] = []  # of the requests

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file.json"

    def reset(self, content: bytes, *script: Reply) -> None:
        self.content, self.script, self.ranges = content, list(script), []


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        server = self.server
        asked = self.headers["Range"]
        server.ranges.append(asked)
        reply = server.script.pop(0) if server.script else Reply()
        content = server.content if reply.content is None else reply.content
        begins, total = 0, len(content)
        if asked and reply.ranges:
            begins = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) + reply.shift
        status = reply.status or (206 if asked and reply.ranges else 200)
        body = content[begins:]
        headers = {"Content-Range": f"bytes {begins}-{total - 1}/{total}"} if status == 206 else {}
        headers |= {"Transfer-Encoding": "chunked"} if reply.chunked else {"Content-Length": str(len(body))}
        self.send_response(status)
        for name, value in {**headers, "Connection": "close", **reply.headers}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        sent = body if reply.cut_after is None else body[: reply.cut_after]
        if not reply.chunked:
            self.wfile.write(sent)
        elif sent:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(sent), sent))
        if reply.chunked and reply.cut_after is None:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_arguments: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[FileServer]:
    """Run the server in a thread."""
    server = FileServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
