"""Server in a separate process that sends the hostile reply named in the request.

Body of a request: `{"reply": "silence", "seed": 3}`; `seed` splits the reply into pieces, `reset` resets after this many bytes
of a valid reply. An endless reply ends when the client closes the connection, after `bytes`, or after MAX_BYTES, which a client
must not read: `taken_whole` returns the names of such replies.
"""

import contextlib
import json
import random
import socket
import struct
import time
import urllib.request
from collections.abc import Iterator
from functools import partial

from hostile_replies import Hostile, replies, reset_after, split
from scripted_server import body_of, page, read_request, serve_until_stdin_closes, server_process

MAX_BYTES = 1 << 30
TAKEN_WHOLE = "taken whole"
PAUSE_S = 0.001  # between pieces, so that each is a separate read
RESET = struct.pack("ii", 1, 0)


@contextlib.contextmanager
def running() -> Iterator[str]:
    """Start a server; yield its URL."""
    with server_process(__file__) as port:
        yield f"http://127.0.0.1:{port}"


def taken_whole(url: str) -> list[str]:
    """Return the names of the endless replies that a client read up to MAX_BYTES."""
    request = urllib.request.Request(url, json.dumps({"reply": TAKEN_WHOLE}).encode())
    with urllib.request.urlopen(request, timeout=60) as reply:
        names: list[str] = json.load(reply)
    return names


def serve(known: dict[str, Hostile], whole: list[str], sock: socket.socket) -> None:
    """Answer the requests of one connection."""
    with contextlib.suppress(OSError), sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (request := read_request(sock)) is not None:
            order = body_of(request)
            if order.get("reply") == TAKEN_WHOLE:
                sock.sendall(page(whole))
                continue
            hostile = reset_after(order["reset"]) if "reset" in order else known[order["reply"]]
            send(sock, hostile, order.get("seed"), order.get("bytes", MAX_BYTES))
            if hostile.again and "bytes" not in order:
                whole.append(order["reply"])
            if hostile.then == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            if hostile.then != "open" or hostile.again:
                return


def send(sock: socket.socket, hostile: Hostile, seed: int | None, left: int) -> None:
    """Send a reply, split by the seed; at most about `left` bytes of an endless reply."""
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


if __name__ == "__main__":
    serve_until_stdin_closes(partial(serve, replies(), []))
