"""GET of a metrics page over a connection that stays open. Plain standard library: one request at a time is enough."""

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from inferload.client.connection.redaction import without_userinfo
from inferload.errors import UsageError

# vLLM's page with all histograms is about 150 KB; what is far beyond that is no metrics page.
MAX_PAGE_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class MetricsUrl:
    """Where a page is. `target` names the server in records: the address without the page's usual path."""

    scheme: str
    host: str
    port: int
    path: str
    target: str

    @classmethod
    def parse(cls, url: str) -> "MetricsUrl":
        """`http://server:8000/metrics`; without a path, /metrics is meant."""
        shown = repr(without_userinfo(url))
        remedy = "say it as http://server:8000/metrics"
        try:
            parts = urlsplit(url.strip())
        except ValueError as error:  # brackets without an IPv6 address between them
            raise UsageError(f"metrics URL {shown}: {error}; {remedy}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"metrics URL {shown}: not an http or https address; {remedy}")
        if parts.username or parts.password:
            raise UsageError("metrics URL: carries a user or password; give a key in the environment, OPENAI_API_KEY")
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise UsageError(f"metrics URL {shown}: not a port; {remedy}") from None
        path = parts.path if parts.path.strip("/") else "/metrics"
        path += f"?{parts.query}" if parts.query else ""
        target = f"{parts.scheme}://{parts.netloc}{path}".removesuffix("/metrics")
        return cls(parts.scheme, parts.hostname, port, path, target)


def tls_context(ca_file: Path | None, insecure: bool) -> ssl.SSLContext:
    """How certificates are checked: the system's authorities, or one file's, or not at all."""
    try:
        context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(f"--ca-file {ca_file}: {error.strerror or error}; name a PEM file") from error
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class MetricsClient:
    """One server's page, again and again. Not for two threads at once."""

    def __init__(self, url: MetricsUrl, context: ssl.SSLContext, api_key: str | None) -> None:
        self.url = url
        self._context = context
        self._headers = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._connection: http.client.HTTPConnection | None = None

    def get(self, timeout_s: float) -> str:
        """The page's text; OSError or ValueError says why there is none.

        `timeout_s` is for connecting, and then for the whole reply. A server may close a connection that idles: that one is
        tried anew, once.
        """
        reused = self._connection is not None
        try:
            return self._get(timeout_s)
        except (http.client.HTTPException, OSError) as error:
            self.close()
            if not reused or isinstance(error, TimeoutError):
                raise OSError(_words(error, timeout_s)) from error
        try:
            return self._get(timeout_s)
        except (http.client.HTTPException, OSError) as error:
            self.close()
            raise OSError(_words(error, timeout_s)) from error

    def close(self) -> None:
        """Let the connection go; the next get makes another."""
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
            too_long = f"{self.url.path}: the reply is longer than {MAX_PAGE_BYTES:,} bytes"
            raise ValueError(f"status {reply.status}" if reply.status != 200 else too_long)
        if reply.length:  # what the header promised and the body did not bring
            raise http.client.IncompleteRead(body, reply.length)
        return body.decode("utf-8", "replace")

    def _connect(self) -> http.client.HTTPConnection:
        if self.url.scheme == "https":
            return http.client.HTTPSConnection(self.url.host, self.url.port, context=self._context)
        return http.client.HTTPConnection(self.url.host, self.url.port)


@contextmanager
def _limit(sock: socket.socket, timeout_s: float) -> Iterator[None]:
    """TimeoutError where the block takes longer: a socket's own time-out starts anew with each byte of a slow server."""
    over = threading.Event()

    def end() -> None:
        over.set()
        with suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # of the connection below TLS: what reads it wakes up

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


def _words(error: Exception, timeout_s: float) -> str:
    match error:
        case http.client.IncompleteRead():
            return "the page was cut off"
        case TimeoutError():
            return f"no answer within {timeout_s:g} s"
        case ssl.SSLCertVerificationError():
            return f"certificate: {error.verify_message}"
        case OSError():
            return error.strerror or str(error) or type(error).__name__
    return str(error) or type(error).__name__
