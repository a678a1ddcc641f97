#!/usr/bin/env bash
# Behind a router that leaves Nagle's algorithm on, the first token is late on every kept connection, and in time on new ones.
#
# Naive guess: a kept connection is at least as fast as a new one: the second turn of a chat saves the handshake.
# Behaviour: the head of a streamed response leaves at once, as a small segment. Without TCP_NODELAY on the router's socket the
#   first event waits until the client's kernel has acknowledged that segment. Linux acknowledges at once on a new connection
#   (quick mode), and after 40 ms on one that has sent requests before. So the first turn of a connection has its first token in
#   time, each later one has it after 40 ms, together with all events of these 40 ms; the events after them are in time.
#   sglang-router does this; so does NVIDIA's Dynamo 1.6.1 (frontend and mocker, tried by hand: 19 ms new, 43 kept). A client that
#   sets TCP_QUICKACK before each read does not see it.
# Consequence: the TTFT of two clients differs by whether they keep connections, and that of two routers by a socket option. A
#   server whose first token takes longer than 40 ms hides it.
# Seen: sglang-router 0.3.2, Python 3.11.7, Linux 6.18, 29 November 2026; a server that sends its response head at once and its
#   first event after 10 ms; least of four turns:
#   first event after 11 ms on new connections, 42 on a kept one, 11 on a kept one with quick acknowledgements
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check sglang-router==0.3.2
cat > "$folder/turns.py" <<'PYTHON'
import http.server
import socket
import subprocess
import sys
import threading
import time

TURNS = 4
EVENT = b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'


class Server(http.server.BaseHTTPRequestHandler):
    """Streams ten events, one every 10 ms; each write leaves at once."""

    protocol_version, disable_nagle_algorithm, wbufsize = "HTTP/1.1", True, 0

    def log_message(self, *_arguments):
        pass

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in [EVENT] * 10 + [b"data: [DONE]\n\n"]:
            time.sleep(0.01)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")


def first_event_ms(sock, quick):
    """Return the time from a request to its first event; read the response to its end."""
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    begun_s, first_s, data = time.monotonic(), None, b""
    sock.sendall(head % len(body) + body)
    while not data.endswith(b"0\r\n\r\n"):
        if quick:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        part = sock.recv(65536)
        if not part:
            sys.exit(f"no stream: {data[:300]}")
        data += part
        if first_s is None and b"data:" in data:
            first_s = time.monotonic()
    return 1000 * (first_s - begun_s)


def connection(port):
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def measured(port):
    """Return the least time to the first event on new connections, on a kept one, and on one with quick acknowledgements."""
    new_ms = min(first_event_ms(connection(port), False) for _ in range(TURNS))
    kept, quick = connection(port), connection(port)
    kept_ms = [first_event_ms(kept, False) for _ in range(TURNS + 1)][1:]
    return new_ms, min(kept_ms), min([first_event_ms(quick, True) for _ in range(TURNS + 1)][1:])


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
port = int(sys.argv[1])
options = ["--worker-urls", f"http://127.0.0.1:{server.server_port}", "--host", "127.0.0.1", "--port", str(port)]
router = subprocess.Popen(
    [sys.executable, "-m", "sglang_router.launch_router", *options, "--prometheus-port", str(port + 1)],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
)
try:
    for _ in range(300):
        try:
            first_event_ms(connection(port), False)
            break
        except (OSError, SystemExit):
            time.sleep(0.1)
    new_ms, kept_ms, quick_ms = measured(port)
finally:
    router.kill()
print(
    f"first event after {new_ms:.0f} ms on new connections, {kept_ms:.0f} on a kept one, "
    f"{quick_ms:.0f} on a kept one with quick acknowledgements"
)
sys.exit(not (kept_ms > 38 and max(new_ms, quick_ms) < 30))
PYTHON
timeout -s INT 120 "$folder/venv/bin/python" "$folder/turns.py" $((20000 + RANDOM % 10000)) || {
    echo "changed: see the head of this file" >&2
    exit 1
}
