"""A run through a proxy, to a server whose bodies stay open, have other types, are compressed, or whose connections close."""

import base64
import json
import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator

from e2e_runs import FinishedRun, Sandbox, check_counts, run_cases, scenario

TURNS = 40
PIECES = 5
TARGET = "http://127.0.0.1:9"
LOGIN = b"\r\nProxy-Authorization: Basic " + base64.b64encode(b"me:p@ss") + b"\r\n"
NO_PROXY = dict.fromkeys(("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"), "")
OPEN_S = 20.0  # for which a body stays open: more than the whole load
KINDS = ("usual", "stays open", "pings", "json", "gzip", "closes")


def events() -> Iterator[bytes]:
    for _ in range(PIECES):
        yield b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
    yield b'data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    yield b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":20,"completion_tokens":%d}}\n\n' % PIECES
    yield b"data: [DONE]\n\n"


class Gateway:
    """Proxy that is the server behind itself, with answers of each kind in turn."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.without_login = 0
        self.held_open = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, sock: socket.socket, request: bytes) -> None:
        """Answer one request."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        path = request.split(b" ")[1].removeprefix(TARGET.encode())
        with self._lock:
            self.without_login += LOGIN not in request
        if path == b"/v1/models":
            self._reply(sock, "application/json", [json.dumps({"data": [{"id": "m"}]}).encode()])
        elif path != b"/v1/chat/completions":
            sock.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        else:
            with self._lock:
                is_first = self.sent.total() == 0 and not self.sent["preflight"]
                kind = "preflight" if is_first else KINDS[(self.sent.total() - 1) % len(KINDS)]
                self.sent[kind] += 1
            self._answer(sock, kind)

    def _answer(self, sock: socket.socket, kind: str) -> None:
        parts, lines = list(events()), ""
        if kind == "gzip":
            packer = zlib.compressobj(wbits=31)
            parts = [packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH) for part in parts]
            lines = "Content-Encoding: gzip\r\n"
        self._reply(sock, "application/json" if kind == "json" else "text/event-stream", parts, lines, kind)
        if kind == "closes":
            sock.shutdown(socket.SHUT_RDWR)

    def _reply(self, sock: socket.socket, media: str, parts: list[bytes], lines: str = "", kind: str = "") -> None:
        sock.sendall(f"HTTP/1.1 200 OK\r\nContent-Type: {media}\r\n{lines}Transfer-Encoding: chunked\r\n\r\n".encode())
        *chunks, last = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]
        for chunk in chunks:
            sock.sendall(chunk)
            time.sleep(0.005)
        end = b"0\r\n\r\n"
        if kind == "closes":  # the close leaves with the last bytes, however long this thread pauses between them
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        if kind not in ("stays open", "pings"):  # a pause of this thread must not hold the body open
            sock.sendall(last + end)
            return
        sock.sendall(last)
        if kind == "stays open":
            self.held_open.wait(OPEN_S)
        while kind == "pings" and not self.held_open.wait(0.005):
            sock.sendall(b"8\r\n: ping\n\n\r\n")
        sock.sendall(end)


def through_gateway(sandbox: Sandbox) -> FinishedRun:
    """Run through the gateway."""
    gateway = Gateway()
    server = sandbox.server(gateway)
    phases = {"warmup_s": 0, "measure_s": None, "turns": TURNS, "drain_s": 20}
    file = scenario(sandbox.folder, phases=phases)
    env = {**NO_PROXY, "http_proxy": server.url.replace("//", "//me:p%40ss@")}
    fleet = sandbox.fleet("by_hand", "--host", TARGET, "--scenario", str(file), report=True, env=env)
    try:
        code = fleet.exit_code()
    finally:
        gateway.held_open.set()
    seen = {"sent": gateway.sent, "without_login": gateway.without_login, "proxy": server.url}
    return FinishedRun(sandbox.run_dir, code, fleet.text, seen=seen)


@run_cases(through_gateway, ())
def test_odd_connections_cost_no_turn(ended: FinishedRun) -> None:
    check_counts(ended)
    sent, turns = ended.seen["sent"], ended.summary["turns"]
    assert (turns["sent"], turns["ok"]) == (TURNS, TURNS)
    again = sum(row["attempts"] for row in ended.turns) - TURNS  # requests on a connection that was closed meanwhile
    assert sent.total() - sent["preflight"] == TURNS + again
    remarks = {kind: entry["turns"] for kind, entry in turns["remarks"].items()}
    expected = {"content_type": ["json"], "content_encoding": ["gzip"], "open_body": ["stays open", "pings"]}
    assert remarks.keys() == expected.keys()
    for remark, kinds in expected.items():
        answers = sum(sent[kind] for kind in kinds)
        assert answers - again <= remarks[remark] <= answers
    assert ended.summary["latency"]["itl_ms"]["count"] == TURNS * (PIECES - 1)


@run_cases(through_gateway, ())
def test_the_proxy_is_named_without_its_login(ended: FinishedRun) -> None:
    proxy = ended.seen["proxy"]
    assert ended.seen["without_login"] == 0
    assert ended.summary["run"]["proxies"] == {TARGET: proxy}
    (target,) = ended.manifest["targets"]
    assert target["proxy"] == proxy
    assert f"through the proxy {proxy} (HTTP_PROXY)" in ended.text
    note = f"the requests to {TARGET} went through the proxy {proxy}"
    for text in (ended.text, (ended.run_dir / "report.md").read_text().replace("\\", "")):
        assert note in text
        assert "p%40ss" not in text
        assert "p@ss" not in text
