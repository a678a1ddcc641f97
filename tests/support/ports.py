"""Ports for servers of tests."""

import contextlib
import itertools
import os
import socket

_ports = itertools.count(20_000 + os.getpid() * 61 % 8_000)
_reserved: list[socket.socket] = []  # one per port of this process, open until its end


def unused_port() -> int:
    """Return a free port that no other test gets. The kernel does not assign it either: it is below the ephemeral range."""
    while True:
        port = next(_ports)
        reservation = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            reservation.bind(f"\0inferload-test-port-{port}")
            _reserved.append(reservation)
            with socket.create_server(("127.0.0.1", port)):
                return port
