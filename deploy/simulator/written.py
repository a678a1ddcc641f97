"""What the engine asks of the bytes of an answer, whichever endpoint shapes them."""

from dataclasses import dataclass
from typing import Any, Protocol

from .usage import Timings


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens up to `end` whose events are `before`, word (word + index * stride) of the vocabulary, `after`."""

    before: bytes
    after: bytes
    word: int
    stride: int
    end: int


class Events(Protocol):
    """Builds the pieces of one answer."""

    @property
    def finish_reason(self) -> str:
        """How it ends, in the words of the metrics: stop or length."""

    @property
    def quick(self) -> bool:
        """`quick_token` does for each token but the first and the last."""

    def quick_token(self, index: int) -> bytes:
        """The event of one token in the middle of an answer that has nothing but words."""

    def run(self, index: int) -> Run | None:
        """What `quick_token` makes from a token on; None where its event is not of that form."""

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
