"""Event loop of the server: one thread and one epoll for clients and engine.

The loop waits in select() on the epoll descriptor: its timeout has microseconds, that of epoll.poll() milliseconds.
"""

import gc
import os
import select
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from inferload.base import clock
from inferload.base.errors import UsageError, explained

from ..engine.engine import Engine
from ..protocol.http import HttpRequest
from .connection import Connection, Hooks

_BACKLOG = 4096
_ENGINE_NS = 1_000_000  # maximum time of the engine between two polls
_LONGEST_WAIT_S = 0.5
_AT_ONCE = 16  # connections served between two calls of the engine; a request takes about 100 us
_IN = select.EPOLLIN | select.EPOLLRDHUP


class Server:
    """Event loop of the server. `handle` answers a request or starts its stream."""

    def __init__(self, engine: Engine, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._engine = engine
        self._tls = tls
        self._listener = _listen(host, port)
        self.port = int(self._listener.getsockname()[1])
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll.register(self._wake_in, select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        self._lost: list[Connection] = []
        self._stopping = False

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    def stop(self) -> None:
        """Stop the loop. Safe to call in a signal handler."""
        self._stopping = True
        os.write(self._wake_out, b"x")

    def run(self, handle: Callable[[Connection, HttpRequest], None]) -> None:
        """Serve until `stop`."""
        self._hooks = Hooks(handle, self._watch, self._lost.append)
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)  # a full collection delays events
        now_ns = clock.now_ns()
        while not self._stopping:
            self._wait(now_ns)
            self._poll()
            now_ns = clock.now_ns()
            now_ns = self._engine.pump(now_ns, now_ns + _ENGINE_NS)
            self._close_lost()

    def close(self) -> None:
        """Close all sockets and descriptors."""
        for connection in self._connections.values():
            connection.sock.close()
        self._listener.close()
        self._epoll.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _wait(self, now_ns: int) -> None:
        due_ns = self._engine.next_due_ns()
        wait_s = _LONGEST_WAIT_S if due_ns is None else min((due_ns - now_ns) / 1e9, _LONGEST_WAIT_S)
        if wait_s > 0:
            select.select((self._epoll,), (), (), wait_s)

    def _poll(self) -> None:
        for descriptor, events in self._epoll.poll(0, _AT_ONCE):
            ready = self._connections.get(descriptor)
            if ready is None:
                if descriptor == self._listener.fileno():
                    self._accept()
                continue
            if events & select.EPOLLOUT and not ready.dead:
                ready.writable()
                self._watch(ready)
            if events & ~select.EPOLLOUT and not ready.dead:
                if ready.reading:
                    ready.readable()
                else:  # the client closed with unread bytes
                    ready.lose()

    def _watch(self, connection: Connection) -> None:
        """Update the epoll events of a connection."""
        if not connection.dead:
            events = _IN if connection.reading else select.EPOLLRDHUP
            self._epoll.modify(connection.sock.fileno(), events | (select.EPOLLOUT if connection.out else 0))

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _peer = self._listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            self._connections[sock.fileno()] = Connection(sock, self._hooks)
            self._epoll.register(sock.fileno(), _IN)

    def _close_lost(self) -> None:
        while self._lost:
            connection = self._lost.pop()
            descriptor = connection.sock.fileno()
            self._epoll.unregister(descriptor)
            del self._connections[descriptor]
            connection.sock.close()
            if connection.stream is not None:
                self._engine.abort(connection.stream)


def _listen(host: str, port: int) -> socket.socket:
    with explained(f"--host {host} --port {port}", "choose another port"):
        family, kind, proto, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    listener.setblocking(False)
    listener.listen(_BACKLOG)
    return listener


def tls_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """TLS context of the server. Raise UsageError for invalid files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--tls-cert {certificate}: {error}; needs a PEM certificate and --tls-key") from error
    return context
