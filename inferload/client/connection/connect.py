"""Connections to a target: name resolution, proxies from the environment, TLS, timeouts, and failure classes."""

import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import gevent
import gevent.socket

from inferload.base.http_status import asks_for_certificate, is_no_tls, is_of_other_name, tls_reason
from inferload.base.on_use import OnUse
from inferload.base.tls import Port, TlsSettings
from inferload.client.connection import descriptors, in_memory
from inferload.client.connection.http1 import Http1Error, parse_head, request_head
from inferload.client.connection.proxies import Proxy, bracketed
from inferload.client.connection.reply import AnyConnection
from inferload.client.connection.target import Target
from inferload.client.connection.tcp_info import SO_TIMESTAMPNS
from inferload.turns.record import Failure

if TYPE_CHECKING:
    from inferload.client.connection.deferred_parser import ParseQueue
    from inferload.client.connection.native_connection import ReaderThread
    from inferload.client.connection.python_connection import PythonConnection
    from inferload.client.connection.tls import TlsLayer

_LAYER = OnUse["type[TlsLayer]"]({"tls": "inferload.client.connection.tls:TlsLayer"})
_READ_HERE = OnUse["type[PythonConnection]"]({"tcp": "inferload.client.connection.python_connection:PythonConnection"})

USE_CLIENT_CERT = "use --client-cert"

# Errors of this machine, not of the server.
_LOCAL_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class DialError(Exception):
    """A failed connect, with its failure class, and what to change about the address; "" if that is unknown."""

    def __init__(self, failure: Failure, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.failure = failure
        self.why = why
        self.remedy = remedy


class Dialer:
    """Factory of connections to one target. `thread`: their reader; None: the event loop reads.

    `marks`: texts of which one is in the last event of each whole answer; () for documents. `explains`: an error has the names of
    a certificate that is not for the host, which are read from a second connection.
    """

    def __init__(
        self,
        target: Target,
        tls: TlsSettings,
        timeout_s: float,
        thread: "ReaderThread | None" = None,
        marks: tuple[bytes, ...] = (),
        *,
        explains: bool = False,
    ) -> None:
        self.target = target
        self._tls = tls
        self.proxy = Proxy.for_target(target) if in_memory.server is None else None
        self._explains = explains and self.proxy is None
        self._layer: Callable[[], TlsLayer] | None = None  # of a connection; its context is one per process
        if target.scheme == "https":
            self._layer = partial(_LAYER["tls"], tls.context(["http/1.1"]), target.host)
        self._timeout_s = timeout_s
        self._thread = thread
        self._read_here: type[PythonConnection] | None = None
        if thread is None and in_memory.server is None:
            self._read_here = _READ_HERE["tcp"]
        self._marks = marks

    @property
    def request_path_prefix(self) -> str:
        """Prefix of the path in a request line: the origin if a proxy forwards plain HTTP, else ""."""
        return self.target.origin if self.proxy is not None and self._layer is None else ""

    @property
    def request_headers(self) -> dict[str, str]:
        """Headers of each request for a proxy that forwards plain HTTP."""
        return self.proxy.headers if self.proxy is not None and self._layer is None else {}

    def dial(self, timeout_s: float | None = None) -> AnyConnection:
        """Open a connection whose socket is read from now on. Blocks this greenlet. Raise DialError if that fails."""
        timeout_s = timeout_s or self._timeout_s
        if in_memory.server is not None:
            return in_memory.MemoryConnection(in_memory.server, self._marks)
        sock, origin = None, self.target.origin
        try:
            with gevent.Timeout(timeout_s):
                sock = self._connect()
                if self.proxy is not None and self._layer is not None:
                    self._tunnel(sock)
                tls = None if self._layer is None else self._layer()
                if tls is not None:
                    tls.handshake(sock)
                return self._watched(sock, tls)
        except gevent.Timeout:
            error = DialError(Failure.TIMEOUT_CONNECT, f"no connection to {origin} within {timeout_s:g} s")
        except ssl.SSLError as problem:
            if self._explains and is_of_other_name(problem):
                Port(self.target.scheme, self.target.host, self.target.port).explained(problem, self._tls)
            error = DialError(Failure.TLS, f"TLS with {origin}: {tls_reason(problem)}", self._remedy(problem))
        except OSError as problem:
            local = problem.errno in _LOCAL_ERRORS or not descriptors.is_one_left()  # name resolution reports neither
            why = descriptors.why_none() if local else problem.strerror or problem
            failure = Failure.CLIENT_ERROR if local else Failure.CONNECT
            error = DialError(failure, f"no connection to {self._peer}: {why}")
        except (DialError, gevent.GreenletExit):
            if sock is not None:
                sock.close()
            raise
        if sock is not None:
            sock.close()
        raise error

    def _remedy(self, error: ssl.SSLError) -> str:
        if is_no_tls(error):
            return f"use {self.target.other_scheme.url}"
        if asks_for_certificate(error.reason):
            return USE_CLIENT_CERT
        if is_of_other_name(error):
            return "give the address with such a name, or use --insecure"
        return "use --ca-file or --insecure" if isinstance(error, ssl.SSLCertVerificationError) else ""

    @property
    def _peer(self) -> str:
        return self.target.origin if self.proxy is None else f"proxy {bracketed(self.proxy.host)}:{self.proxy.port}"

    def _connect(self) -> gevent.socket.socket:
        nearest = self.target if self.proxy is None else self.proxy
        _check_descriptors()
        failed: OSError | None = None
        for family, kind, protocol, _name, address in gevent.socket.getaddrinfo(
            nearest.host, nearest.port, 0, socket.SOCK_STREAM
        ):
            _check_descriptors()  # many name resolutions may have finished together
            with contextlib.ExitStack() as undo:
                sock = gevent.socket.socket(family, kind, protocol)
                undo.callback(sock.close)  # after the greenlet's timeout too
                try:
                    sock.connect(address)
                except OSError as error:
                    failed = error
                    continue
                undo.pop_all()
                return sock
        raise failed or OSError("no address")

    def _tunnel(self, sock: gevent.socket.socket) -> None:
        """Open a tunnel through the proxy (RFC 9110, 9.3.6)."""
        assert self.proxy is not None
        peer = f"{bracketed(self.target.host)}:{self.target.port}"
        sock.sendall(request_head("CONNECT", peer, {"Host": peer, **self.proxy.headers}) + b"\r\n")
        buffer = b""
        while True:
            data = sock.recv(4096)
            buffer += data
            try:
                parsed = parse_head(buffer)
            except Http1Error as error:
                raise DialError(Failure.CONNECT, f"{self._peer}: {error}") from error
            if parsed is not None and 200 <= parsed[0].status < 300:
                return
            if parsed is not None or not data:
                reaction = "closed the connection" if parsed is None else f"answered {parsed[0].status}"
                if parsed is not None and parsed[0].status == 407:
                    reaction += f" (set user and password in the URL of {self.proxy.variable})"
                raise DialError(Failure.CONNECT, f"{self._peer} {reaction} to CONNECT {peer}")

    def _watched(self, sock: gevent.socket.socket, tls: "TlsLayer | None") -> AnyConnection:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # other systems than Linux: user-space timestamps, which the verdict notes
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        if self._thread is not None:
            return self._thread.connection(sock, tls)
        assert self._read_here is not None
        connection = self._read_here(sock, tls, self._marks)
        connection.watch(gevent.get_hub().loop)
        return connection


def _check_descriptors() -> None:
    """Raise OSError if only the descriptors reserved for the run's files are left."""
    if not descriptors.is_one_left():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def reader_thread(loop: Any, marks: tuple[bytes, ...], jobs: "ParseQueue") -> "ReaderThread":
    """Return a native reader thread for a client. `jobs`: the queue for the parsing of its replies."""
    from inferload.client.connection.native_connection import ReaderThread

    return ReaderThread(loop, marks, jobs)
