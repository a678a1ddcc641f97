"""Plain requests to a server's own pages (models, version, tokenizer), over the same connections as the turns."""

import json
from dataclasses import dataclass
from typing import Any

import gevent
from gevent.event import Event

from inferload.client.client import ClientSettings, standing_headers
from inferload.client.connection.connect import Dialer, DialError
from inferload.client.connection.http1 import Http1Error, request_bytes
from inferload.client.connection.reply import Reply
from inferload.client.scrape_http import MAX_PAGE_BYTES
from inferload.measure.record import Failure

_LOOK_S = 0.02


class FetchError(Exception):
    """No answer: the failure class, and why in words."""

    def __init__(self, failure: Failure, why: str) -> None:
        super().__init__(why)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Fetched:
    """A whole answer."""

    status: int
    kind: str  # content type without its parameters
    body: bytes

    def json(self) -> Any:
        """The body as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):  # the second: nested too deeply
            return None


class Fetcher:
    """Asks one server for pages, one after another."""

    def __init__(self, settings: ClientSettings, timeout_s: float = 30.0) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._dialer = Dialer(settings.target, settings.tls, min(settings.timeouts.connect_s, timeout_s))
        self._headers = {"Accept": "application/json", **standing_headers(settings)}

    def get(self, path: str) -> Fetched:
        """GET below the server's origin; FetchError where nothing comes back."""
        return self._exchange(path, request_bytes("GET", self._dialer.request_path_prefix + path, self._headers, b""))

    def post(self, path: str, document: dict[str, Any]) -> Fetched:
        """POST JSON below the server's origin; FetchError where nothing comes back."""
        headers = {**self._headers, "Content-Type": "application/json"}
        body = json.dumps(document).encode()
        return self._exchange(path, request_bytes("POST", self._dialer.request_path_prefix + path, headers, body))

    def _exchange(self, path: str, request: bytes) -> Fetched:
        try:
            connection = self._dialer.dial()
        except DialError as error:
            raise FetchError(error.failure, error.why) from error
        done = Event()
        try:
            with gevent.Timeout(self._timeout_s):
                reply = connection.expect(done.set)
                if rest := connection.offer(request):
                    connection.send_rest(rest)
                while not done.wait(_LOOK_S):
                    self._check_size(path, reply)
            self._check_size(path, reply)
            return self._fetched(reply)
        except gevent.Timeout:
            why = f"{self._settings.target.origin} gave no answer within {self._timeout_s:g} s"
            raise FetchError(Failure.TIMEOUT_TURN, why) from None
        except (OSError, Http1Error) as error:
            raise FetchError(Failure.BAD_HTTP, f"{self._settings.target.origin}: {error}") from error
        finally:
            connection.close()

    def _check_size(self, path: str, reply: Reply) -> None:
        if reply.body_bytes > MAX_PAGE_BYTES:
            why = f"{self._settings.target.origin}{path}: the reply is longer than {MAX_PAGE_BYTES:,} bytes"
            raise FetchError(Failure.BAD_HTTP, why)

    def _fetched(self, reply: Reply) -> Fetched:
        if reply.head is None or not reply.complete:
            failure = Failure.BAD_HTTP if isinstance(reply.error, Http1Error) else Failure.CUT
            raise FetchError(failure, f"{self._settings.target.origin}: {reply.error}")
        body = reply.unframe(reply.body(reply.waiting).data)
        return Fetched(
            reply.head.status, reply.head.headers.get("content-type", "").partition(";")[0].strip().lower(), body
        )
