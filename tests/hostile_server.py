"""A server that gives each request the hostile reply it names. It runs as a program of its own, so that a client cannot hold it up.

Its first line on stdout is the port. It ends when its stdin is closed. The request's body: `{"reply": "silence", "seed": 3}`;
`seed` cuts the reply in pieces, `reset` sends so many bytes of a good one.
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
from collections.abc import Iterator

from hostile_replies import Hostile, replies, reset_after, split
from scripted_server import read_request

ENDLESS_S = 8.0  # what is endless ends after this time at the latest
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


def serve(sock: socket.socket, known: dict[str, Hostile]) -> None:
    """Answer the requests of one connection."""
    with contextlib.suppress(OSError), sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (request := read_request(sock)) is not None:
            said = json.loads(request.partition(b"\r\n\r\n")[2])
            hostile = reset_after(said["reset"]) if "reset" in said else known[said["reply"]]
            send(sock, hostile, said.get("seed"))
            if hostile.then == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            if hostile.then != "open":
                return


def send(sock: socket.socket, hostile: Hostile, seed: int | None) -> None:
    """The reply, whole or cut as the seed says."""
    until_s = time.monotonic() + ENDLESS_S
    pieces = hostile.pieces()
    if seed is not None:
        for piece in split(random.Random(seed), next(pieces)):
            sock.sendall(piece)
            time.sleep(PAUSE_S)
    for piece in pieces:
        sock.sendall(piece)
        if time.monotonic() > until_s:
            break


def main() -> None:
    known = replies()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1_024)

    def accept() -> None:
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=serve, args=(sock, known), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
