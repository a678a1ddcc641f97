"""A server that gives each request the hostile reply it names. It runs as a program of its own, so that a client cannot hold it up.

Its first line on stdout is the port. It ends when its stdin is closed. The request's body: `{"reply": "silence", "seed": 3}`;
`seed` cuts the reply in pieces, `reset` sends so many bytes of a good one. An endless reply ends when the client closes the
connection, after `bytes`, or after MOST_BYTES, which no client may take: `taken_whole` gives the names of those that came so far.
"""

import contextlib
import json
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator

from hostile_replies import Hostile, replies, reset_after, split
from scripted_server import read_request

MOST_BYTES = 1 << 30
TAKEN_WHOLE = "taken whole"
PAUSE_S = 0.001  # between two pieces of a reply that is cut, so that they are two reads
RESET = struct.pack("ii", 1, 0)


@contextlib.contextmanager
def running() -> Iterator[str]:
    """The URL of a server."""
    with subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()


def taken_whole(url: str) -> list[str]:
    """The endless replies of a server that a client took up to MOST_BYTES."""
    request = urllib.request.Request(url, json.dumps({"reply": TAKEN_WHOLE}).encode())
    with urllib.request.urlopen(request, timeout=60) as reply:
        names: list[str] = json.load(reply)
    return names


def serve(sock: socket.socket, known: dict[str, Hostile], whole: list[str]) -> None:
    """Answer the requests of one connection."""
    with contextlib.suppress(OSError), sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (request := read_request(sock)) is not None:
            said = json.loads(request.partition(b"\r\n\r\n")[2])
            if said.get("reply") == TAKEN_WHOLE:
                text = json.dumps(whole).encode()
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
                continue
            hostile = reset_after(said["reset"]) if "reset" in said else known[said["reply"]]
            send(sock, hostile, said.get("seed"), said.get("bytes", MOST_BYTES))
            if hostile.again and "bytes" not in said:
                whole.append(said["reply"])
            if hostile.then == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            if hostile.then != "open" or hostile.again:
                return


def send(sock: socket.socket, hostile: Hostile, seed: int | None, left: int) -> None:
    """The reply, whole or cut as the seed says; no more than about `left` bytes of one without an end."""
    pieces = hostile.pieces()
    if seed is not None:
        for piece in split(random.Random(seed), next(pieces)):
            sock.sendall(piece)
            time.sleep(PAUSE_S)
    for piece in pieces:
        sock.sendall(piece)
        left -= len(piece)
        if left < 0:
            break


def main() -> None:
    known = replies()
    whole: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0), backlog=1_024)

    def accept() -> None:
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=serve, args=(sock, known, whole), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
