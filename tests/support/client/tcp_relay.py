"""Relay of TCP connections that delays the bytes of each direction, as a network does, in a process of its own.

The connect is not delayed: the kernel of this machine accepts it, and its round trip (TCP_INFO) is that of loopback.
"""

import contextlib
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

from scripted_server import serve_until_stdin_closes, server_process


@contextlib.contextmanager
def tcp_relay(server_port: int, round_trip_s: float) -> Iterator[int]:
    """Run a relay to a loopback port; yield its port. Requests and replies are delayed by half the round trip each."""
    with server_process(__file__, str(server_port), str(round_trip_s / 2)) as port:
        yield port


def serve(server_port: int, delay_s: float, client: socket.socket) -> None:
    """Relay one connection."""
    with client, socket.create_connection(("127.0.0.1", server_port)) as server:
        back = threading.Thread(target=forward, args=(server, client, delay_s), daemon=True)
        back.start()
        forward(client, server, delay_s)
        back.join()


def forward(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    """Send what arrives after the delay, up to the end of the connection. Each read keeps its own delay."""
    sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
    sender = threading.Thread(target=_send, args=(waiting, sink), daemon=True)
    sender.start()
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            waiting.put((time.monotonic() + delay_s, data))
    waiting.put((time.monotonic() + delay_s, b""))
    sender.join()


def _send(waiting: "queue.SimpleQueue[tuple[float, bytes]]", sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            at_s, data = waiting.get()
            time.sleep(max(0.0, at_s - time.monotonic()))
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(data)


if __name__ == "__main__":
    serve_until_stdin_closes(partial(serve, int(sys.argv[1]), float(sys.argv[2])))
