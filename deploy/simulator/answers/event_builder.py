"""What the engine asks of the bytes of an answer, whichever endpoint shapes them."""

from typing import Any, Protocol

from .usage import Timings


class EventBuilder(Protocol):
    """Builds the pieces of one answer."""

    @property
    def finish_reason(self) -> str:
        """How it ends, in the words of the metrics: stop or length."""

    def plain_until(self, index: int) -> int:
        """First token from `index` on whose event is not plain, that is, more than a word in a fixed frame."""

    def plain_token(self, index: int) -> bytes:
        """Plain event of one token."""

    def role(self) -> bytes:
        """What goes out just before the first token."""

    def token(self, first: int, count: int) -> bytes:
        """What tokens [first, first + count), not the last of the answer, make the server send; perhaps nothing."""

    def last_token(self, first: int, count: int) -> bytes:
        """The event of the last tokens, with why it ends."""

    def closing(self, cached_tokens: int, timings: Timings) -> bytes:
        """What follows at the very end, the end of a chunked body included."""

    def plain(self, data: bytes) -> bytes:
        """Any bytes as a piece of the body."""

    def document(self, cached_tokens: int, timings: Timings) -> Any:
        """The whole answer as one JSON document; None while another choice of the request is still on its way."""
