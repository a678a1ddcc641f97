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
from inferload.base.http_status import failure_text, status_text
from inferload.base.redaction import without_userinfo
from inferload.base.tls import SILENT_S, Port, TlsSettings
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
        self._port = Port(url.scheme, url.host, url.port)
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
                if reused and not isinstance(error, TimeoutError):
                    continue
                if isinstance(error, http.client.IncompleteRead):
                    raise OSError("the page was cut off") from error
                cause = error if isinstance(error, TimeoutError) else self._port.explained(error, self._tls)
                raise OSError(failure_text(cause, timeout_s)) from error

    def close(self) -> None:
        """Close the connection; the next `get` opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _get(self, timeout_s: float) -> str:
        connection = self._connection = self._connection or self._connect(timeout_s)
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

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """Open a connection. A port without an answer to a handshake may wait for the rest of a line of plain HTTP."""
        self._opened_ns, url = now_ns(), self.url
        if url.scheme == "http":
            return http.client.HTTPConnection(url.host, url.port)
        connection = http.client.HTTPSConnection(
            url.host, url.port, timeout=min(SILENT_S, timeout_s), context=self._context
        )
        try:
            connection.connect()
        except TimeoutError as error:
            connection.close()
            if (cause := self._port.explained(error, self._tls)) is not error:
                raise cause from error
            connection.timeout = timeout_s
            connection.connect()
        return connection


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
