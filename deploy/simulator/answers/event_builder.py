"""Interface of the engine to the event builders of all endpoints."""

from typing import Any, Protocol

from .usage import Timings


class EventBuilder(Protocol):
    """Builder of the events of an answer."""

    @property
    def finish_reason(self) -> str:
        """Finish reason as in the metrics: stop or length."""

    def plain_until(self, index: int) -> int:
        """First token from `index` on whose event is not plain: one word in a fixed frame."""

    def plain_token(self, index: int) -> bytes:
        """Plain event of one token."""

    def role(self) -> bytes:
        """Event sent with the first token, before it."""

    def token(self, first: int, count: int) -> bytes:
        """Events of tokens [first, first + count), excluding the last of the answer; may be empty."""

    def last_token(self, first: int, count: int) -> bytes:
        """Event of the last tokens, with the finish reason."""

    def closing(self, cached_tokens: int, timings: Timings) -> bytes:
        """Bytes after the last event, including the end of a chunked body."""

    def plain(self, data: bytes) -> bytes:
        """Bytes as part of the body."""

    def document(self, cached_tokens: int, timings: Timings) -> Any:
        """Whole answer as one JSON document; None while another choice of the request is unfinished."""
