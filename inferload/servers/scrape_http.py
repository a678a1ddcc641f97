"""HTTP client of a metrics page with a keep-alive connection, on the standard library: one request at a time is enough.

A balancer per connection, such as a Service of Kubernetes, shows one server on one connection. The client therefore opens a new
connection from time to time, so that several servers behind one address are recognised; not for each page, because of the
handshakes over long round trips. `close` before a `get` makes that one use a new connection.
"""

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.errors import UsageError
from inferload.base.http_status import failure_text, is_no_tls, is_of_other_name, status_text
from inferload.base.redaction import without_userinfo
from inferload.base.tls import SCHEMES, SILENT_S, TlsSettings, add_names
from inferload.servers.exposition import MAX_PAGE_BYTES, page_text

# The text format costs a server least, and all have it or nothing else. A client library would compress in the server's process.
_HEADERS = {"Accept": "text/plain;version=0.0.4, */*;q=0.1", "Accept-Encoding": "identity"}

RECONNECT_S = 2.0  # age of a connection that is replaced


class MetricsUrl(Struct, frozen=True):
    """Address of a metrics page. `target`: name of the server in records, without the default path and the query's values."""

    scheme: str
    host: str
    port: int
    path: str
    target: str

    @classmethod
    def parse(cls, url: str) -> "MetricsUrl":
        """Parse a URL such as http://server:8000/metrics, the default path being /metrics. Raise UsageError."""
        shown = repr(without_userinfo(url))
        remedy = "write it as http://server:8000/metrics"
        try:
            parts = urlsplit(url.strip())
        except ValueError as error:  # brackets without an IPv6 address between them
            raise UsageError(f"metrics URL {shown}: {error}; {remedy}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"metrics URL {shown}: not an http or https address; {remedy}")
        if parts.username or parts.password:
            raise UsageError("metrics URL: contains a user or password; set a key in the environment, OPENAI_API_KEY")
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise UsageError(f"metrics URL {shown}: not a port; {remedy}") from None
        path = parts.path if parts.path.strip("/") else "/metrics"
        path += f"?{parts.query}" if parts.query else ""
        target = without_userinfo(f"{parts.scheme}://{parts.netloc}{path}").removesuffix("/metrics")
        return cls(parts.scheme, parts.hostname, port, path, target)


class PlainConnection(http.client.HTTPConnection):
    """Connection for plain HTTP. Its errors name the scheme of a port that expects TLS."""

    def getresponse(self) -> http.client.HTTPResponse:
        """Return the response."""
        try:
            return super().getresponse()
        except (http.client.BadStatusLine, ConnectionError) as error:
            raise _WrongSchemeError.of("http", self, error) or error from error


class TlsConnection(http.client.HTTPSConnection):
    """Connection for HTTPS. Its errors name the scheme of a port of plain HTTP, and the names of another host's certificate."""

    tls = TlsSettings()

    def connect(self) -> None:
        """Connect, and perform the handshake."""
        http.client.HTTPConnection.connect(self)
        host, context = self._tunnel_host or self.host, self._context  # type: ignore[attr-defined]
        sock = self.sock = context.wrap_socket(self.sock, server_hostname=host, do_handshake_on_connect=False)
        timeout_s = sock.gettimeout()
        sock.settimeout(min(SILENT_S, timeout_s or SILENT_S))
        try:
            sock.do_handshake()
        except ssl.SSLCertVerificationError as error:
            if is_of_other_name(error) and self._tunnel_host is None:  # type: ignore[attr-defined]
                with (
                    suppress(OSError),
                    self.tls.any_name().wrap_socket(_socket_of(self), server_hostname=host) as other,
                ):
                    add_names(error, other.getpeercert())
            raise
        except OSError as error:
            if (wrong := _WrongSchemeError.of("https", self, error)) is not None or not isinstance(error, TimeoutError):
                raise wrong or error from error
            sock.settimeout(timeout_s)
            sock.do_handshake()
        sock.settimeout(timeout_s)


class _WrongSchemeError(OSError):
    """The port speaks only the other scheme."""

    @classmethod
    def of(cls, scheme: str, connection: http.client.HTTPConnection, error: Exception) -> "_WrongSchemeError | None":
        """Ask the port of a connection that failed. None if it does not speak the other scheme, or is behind a proxy."""
        host = f"[{connection.host}]" if ":" in connection.host else connection.host
        row, authority = SCHEMES[scheme], f"{host}:{connection.port}"
        if connection._tunnel_host is not None:  # type: ignore[attr-defined]
            return None
        is_known = isinstance(error, ssl.SSLError) and is_no_tls(error)
        if is_known or row.speaks_other(authority, lambda: _socket_of(connection)):
            return cls(f"{row.problem}; use {row.other}://{authority}")
        return None


def _socket_of(connection: http.client.HTTPConnection) -> socket.socket:
    return socket.create_connection((connection.host, connection.port), SILENT_S)


class PageClient(Protocol):
    """Client of a metrics page: a `MetricsClient`, or that of a server in memory."""

    @property
    def url(self) -> MetricsUrl: ...
    def get(self, timeout_s: float, /) -> str: ...
    def close(self) -> None: ...


class MetricsClient:
    """Client of one metrics page. Not thread-safe. `context`: of `tls`; None for plain HTTP."""

    def __init__(
        self, url: MetricsUrl, context: ssl.SSLContext | None, api_key: str | None, tls: TlsSettings | None = None
    ) -> None:
        self.url = url
        self._context, self._tls = context, tls or TlsSettings()
        self._headers = dict(_HEADERS)
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._connection: http.client.HTTPConnection | None = None
        self._opened_ns = 0

    def get(self, timeout_s: float) -> str:
        """Return the text of the page. Raise OSError or ValueError with the reason if that fails.

        `timeout_s` applies to the connect, and then to the whole response. If the server has closed an idle connection, the
        request is repeated once on a new one.
        """
        if now_ns() - self._opened_ns > RECONNECT_S * NS_PER_S:
            self.close()
        while True:
            reused = self._connection is not None
            try:
                return self._get(timeout_s)
            except (http.client.HTTPException, OSError) as error:
                self.close()
                if not reused or isinstance(error, TimeoutError):
                    is_cut = isinstance(error, http.client.IncompleteRead)
                    raise OSError("the page was cut off" if is_cut else failure_text(error, timeout_s)) from error

    def close(self) -> None:
        """Close the connection; the next `get` opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _get(self, timeout_s: float) -> str:
        connection = self._connection = self._connection or self._connect()
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        connection.request("GET", self.url.path, headers=self._headers)
        with _limit(connection.sock, timeout_s):
            reply = connection.getresponse()
            body = reply.read(MAX_PAGE_BYTES + 1)
        if reply.status != 200 or len(body) > MAX_PAGE_BYTES:
            self.close()
            if reply.status != 200:
                raise ValueError(
                    status_text(reply.status, reply.headers.get("location", ""), body.decode("utf-8", "replace"))
                )
            raise ValueError(f"{self.url.path}: the reply is longer than {MAX_PAGE_BYTES:,} bytes")
        if reply.length:  # bytes of the Content-Length that are missing
            raise http.client.IncompleteRead(body, reply.length)
        return page_text(body, reply.headers.get_content_charset(), reply.headers.get("content-encoding", ""))

    def _connect(self) -> http.client.HTTPConnection:
        self._opened_ns = now_ns()
        if self.url.scheme == "https":
            connection = TlsConnection(self.url.host, self.url.port, context=self._context)
            connection.tls = self._tls
            return connection
        return PlainConnection(self.url.host, self.url.port)


@contextmanager
def _limit(sock: socket.socket, timeout_s: float) -> Iterator[None]:
    """Raise TimeoutError if the block takes longer: the socket's timeout restarts with each byte of a slow server."""
    over = threading.Event()

    def end() -> None:
        over.set()
        with suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # below TLS; wakes up the reader

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (http.client.HTTPException, OSError, ValueError):
        if over.is_set():
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
    if over.is_set():
        raise TimeoutError
