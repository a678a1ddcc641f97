"""A peer that connects to a master like a worker."""

import contextlib
from collections.abc import Iterator
from typing import Any

import zmq


@contextlib.contextmanager
def peer(port: int, identity: str) -> Iterator[Any]:
    """Connect like a worker without a token."""
    context = zmq.Context()
    with context.socket(zmq.DEALER) as connection:
        connection.setsockopt(zmq.IDENTITY, identity.encode())
        connection.connect(f"tcp://127.0.0.1:{port}")
        yield connection
        connection.close(linger=5000)
    context.term()
