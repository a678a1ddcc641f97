"""Script of a server that takes no request without one of its keys, and repeats the key that it refuses."""

import socket
from typing import Any

from scripted_server import page

KEYS = {"gold": "sk-gold-7f3a91c2", "bronze": "sk-bronze-04be55d1"}


def key_of(request: str) -> str:
    """Return the key of a request, empty if it has none."""
    head = request.partition("\r\n\r\n")[0].split("\r\n")
    lines = [line.partition(": ")[2] for line in head if line.lower().startswith("authorization:")]
    assert len(lines) <= 1
    return lines[0].removeprefix("Bearer ") if lines else ""


def keyed(sock: Any | socket.socket, request: bytes) -> None:
    """Have the simulator answer a request with a known key, refuse others."""
    key = key_of(request.decode())
    if key in KEYS.values():
        sock.pass_on(request)
        return
    sock.sendall(page({"error": {"message": f"invalid key {key}"}}, 401))
