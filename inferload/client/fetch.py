"""Requests to the other endpoints of a server (models, version, tokenizer), with the connections of the turns."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import gevent
from gevent.event import Event

from inferload.base.http_status import expects_tls, status_text
from inferload.base.redaction import without_userinfo
from inferload.base.tls import SILENT_S, Port
from inferload.client.client import ClientSettings, standing_headers
from inferload.client.connection.connect import USE_CLIENT_CERT, Dialer, DialError
from inferload.client.connection.http1 import Http1Error, request_bytes
from inferload.client.connection.reply import AnyConnection, CertificateRefused, HttpReply
from inferload.turns.record import Failure

MAX_PAGE_BYTES = 32 * 1024 * 1024

_SIZE_CHECK_S = 0.02


class FetchError(Exception):
    """A request without a response, with its failure class, and what to change about the address; "" if that is unknown."""

    def __init__(self, failure: Failure, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.failure = failure
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Fetched:
    """A complete response."""

    status: int
    kind: str  # content type without its parameters
    body: bytes
    location: str = ""  # that a redirect names
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case

    @property
    def text(self) -> str:
        """Body as text."""
        return self.body.decode("utf-8", "replace")

    @property
    def status_text(self) -> str:
        """Status, for a message."""
        return status_text(self.status, self.location, self.text)

    def json(self) -> Any:
        """Return the body as JSON; None if it is invalid."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):  # RecursionError: nested too deeply
            return None


class _Closed(Exception):
    """The server had closed a kept connection."""


class Fetcher:
    """HTTP client for one server, with one connection per request; within `with fetcher` one for all while the server keeps it."""

    def __init__(self, settings: ClientSettings, timeout_s: float = 30.0) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._dialer = Dialer(settings.target, settings.tls, min(settings.timeouts.connect_s, timeout_s), explains=True)
        self._headers = {"Accept": "application/json", **standing_headers(settings), **self._dialer.request_headers}
        self._keeps = False
        self._kept: AnyConnection | None = None  # idle

    def __enter__(self) -> Self:
        self._keeps = True
        return self

    def __exit__(self, *_error: object) -> None:
        self._keeps = False
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def get(self, path: str) -> Fetched:
        """Send a GET request to a path of the server's origin. Raise FetchError without a complete response."""
        return self._exchange(path, request_bytes("GET", self._dialer.request_path_prefix + path, self._headers, b""))

    def post(self, path: str, document: dict[str, Any]) -> Fetched:
        """Send a POST request with a JSON body to a path of the origin. Raise FetchError without a complete response."""
        headers = {**self._headers, "Content-Type": "application/json"}
        body = json.dumps(document).encode()
        return self._exchange(path, request_bytes("POST", self._dialer.request_path_prefix + path, headers, body))

    def _exchange(self, path: str, request: bytes) -> Fetched:
        kept, self._kept = self._kept, None
        if kept is not None:
            if kept.refresh():
                with suppress(_Closed):
                    return self._asked(kept, path, request)
            kept.close()
        try:
            connection = self._dialed() if self._settings.target.scheme == "https" else self._dialer.dial()
        except DialError as error:
            raise FetchError(error.failure, error.why, error.remedy) from error
        return self._asked(connection, path, request)

    def _dialed(self) -> AnyConnection:
        """Open a connection of TLS. A port without an answer to a handshake may wait for the rest of a line of plain HTTP."""
        try:
            return self._dialer.dial(min(SILENT_S, self._timeout_s))
        except DialError as error:
            if not error.remedy and self._speaks_other():
                raise self._scheme_error() from error
            if error.failure is not Failure.TIMEOUT_CONNECT:
                raise
            return self._dialer.dial()

    def _speaks_other(self) -> bool:
        target = self._settings.target
        with gevent.Timeout(self._timeout_s, False):
            return self._dialer.proxy is None and Port(target.scheme, target.host, target.port).speaks_other()
        return False

    def _asked(self, connection: AnyConnection, path: str, request: bytes) -> Fetched:
        """Send a request. Raise _Closed if the server has closed a kept connection, perhaps while the request was on its way."""
        done = Event()
        reply = connection.expect(done.set)
        try:
            with gevent.Timeout(self._timeout_s):
                if rest := connection.offer(request):
                    connection.send_rest(rest)
                while not done.wait(_SIZE_CHECK_S):
                    self._check_size(path, reply)
            self._check_size(path, reply)
            if not reply.complete and _is_crossed(connection, reply):
                raise _Closed
            fetched = self._fetched(reply)
            if self._keeps and reply.head and reply.head.keep_alive and not (reply.surplus or connection.closed):
                connection.release()
                self._kept = connection
            return fetched
        except gevent.Timeout:
            why = f"{self._settings.target.origin} gave no answer within {self._timeout_s:g} s"
            raise FetchError(Failure.TIMEOUT_TURN, why) from None
        except (OSError, Http1Error) as error:
            if _is_crossed(connection, reply):
                raise _Closed from error
            raise FetchError(Failure.BAD_HTTP, f"{self._settings.target.origin}: {error}") from error
        finally:
            if connection is not self._kept:
                connection.close()

    def _check_size(self, path: str, reply: HttpReply) -> None:
        if reply.body_bytes > MAX_PAGE_BYTES:
            url = without_userinfo(self._settings.target.origin + path)
            why = f"{url}: the reply is longer than {MAX_PAGE_BYTES:,} bytes"
            raise FetchError(Failure.BAD_HTTP, why)

    def _fetched(self, reply: HttpReply) -> Fetched:
        if reply.head is None and self._settings.target.scheme == "http" and self._speaks_other():
            raise self._scheme_error()
        if reply.head is None or not reply.complete:
            why = f"{self._settings.target.origin}: {reply.error}"
            if isinstance(reply.error, CertificateRefused):
                raise FetchError(Failure.TLS, why, USE_CLIENT_CERT)
            raise FetchError(Failure.BAD_HTTP if isinstance(reply.error, Http1Error) else Failure.CUT, why)
        parts: list[bytes] = []
        while waiting := reply.fetch_waiting():
            parts.append(reply.unframe(reply.body(waiting).data))
        body = b"".join(parts)
        headers = reply.head.headers
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        fetched = Fetched(reply.head.status, kind, body, headers.get("location", ""), headers)
        if expects_tls(fetched.status, fetched.text):
            raise self._scheme_error()
        return fetched

    def _scheme_error(self) -> FetchError:
        target = self._settings.target
        problem = Port(target.scheme, target.host, target.port).problem
        return FetchError(Failure.TLS, f"{target.origin}: {problem}", f"use {target.other_scheme.url}")


def _is_crossed(connection: AnyConnection, reply: HttpReply) -> bool:
    """Return True if the server may have closed a kept connection before the request: it has sent no byte since."""
    return connection.turns > 1 and reply.last_ns is None
