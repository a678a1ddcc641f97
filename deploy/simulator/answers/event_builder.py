"""Interface of the engine to the event builders of all endpoints, and the common part of typed events."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

from ..protocol.completion_request import CompletionRequest
from ..protocol.http import chunk
from ..protocol.script import TokenPiece
from .stop_buffer import StopBuffer
from .usage import Group, Timings


class EventBuilder(Protocol):
    """Builder of the events of an answer."""

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

    def document(self, cached_tokens: int, timings: Timings) -> Any:
        """Whole answer as one JSON document; None while another choice of the request is unfinished."""


class TypedEvents:
    """Events with a name, in blocks; none is plain."""

    def __init__(self, completion: CompletionRequest, group: Group, framed: bool) -> None:
        self._completion, self._group, self._framed = completion, group, framed
        self._stop_buffer = StopBuffer(completion.held_back)

    def plain_until(self, index: int) -> int:
        """Return `index`: no event is plain."""
        return index

    def plain_token(self, index: int) -> bytes:
        """Event of one token."""
        return self.token(index, 1)

    def token(self, first: int, count: int) -> bytes:
        """Events of tokens [first, first + count): deltas, and the start and end of blocks."""
        return self._bytes("".join(self._added(first, count)))

    def last_token(self, first: int, count: int) -> bytes:
        """Events of the last tokens, and the end of the open block."""
        return self._bytes("".join(self._added(first, count, last=True)) + self._close())

    def _added(self, first: int, count: int, last: bool = False) -> Iterator[str]:
        return map(self._add, self._stop_buffer.pass_on(tuple(self._completion.script.pieces(first, count)), last))

    def _bytes(self, text: str) -> bytes:
        data = text.encode("utf-8", "surrogatepass")
        return chunk(data) if data and self._framed else data

    @abstractmethod
    def _add(self, piece: TokenPiece) -> str:
        """Return the events of a piece."""

    @abstractmethod
    def _close(self) -> str:
        """Return the events that end the open block."""
