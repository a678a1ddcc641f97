"""State of a streamed answer, common to the event streams of all endpoints. No I/O."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from inferload.client.answers.number_bounds import UNDECODABLE, Milliseconds
from inferload.client.answers.token_ids import TokenIds
from inferload.content.messages import ToolCall
from inferload.measure.record import Failure
from inferload.measure.remarks import Remark

DONE = b"[DONE]"
_ABORTED = ("abort", "error")  # finish reasons of vLLM and SGLang for an aborted answer
_DETAIL_BYTES = 4096  # the client redacts the detail before it cuts it to a line


class PerRequestMetrics(msgspec.Struct):
    """vLLM's per-request metrics (`--enable-per-request-metrics`)."""

    queue_time_ms: Milliseconds | None = None
    time_to_first_token_ms: Milliseconds | None = None
    generation_time_ms: Milliseconds | None = None


class EventFrame(NamedTuple):
    """Common bytes of many events, before and after one text. `visible`: the text is not reasoning."""

    before: bytes
    after: bytes
    visible: bool


@dataclass(slots=True)
class _CallParts:
    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ToolCalls:
    """Tool calls of one answer, by the index (or other key) of their deltas."""

    _by_key: dict[int | str, _CallParts] = field(default_factory=dict)

    def add(
        self, key: int | str, call_id: str | None = None, name: str | None = None, arguments: str | None = None
    ) -> None:
        """Add one delta; None for absent fields. Pieces of a name and of arguments are joined; a later id replaces the first."""
        parts = self._by_key.setdefault(key, _CallParts())
        if call_id:
            parts.call_id = call_id
        if name:
            parts.name += name
        if arguments:
            parts.arguments.append(arguments)

    def calls(self) -> tuple[ToolCall, ...]:
        """Return the calls in the order of their first deltas; empty arguments are "{}"."""
        return tuple(
            ToolCall(parts.call_id, parts.name, "".join(parts.arguments) or "{}") for parts in self._by_key.values()
        )


class Answer:
    """One streamed answer: pass all events in order, then read the attributes. `end_marker`: last event of a whole stream."""

    __slots__ = (
        "cached_tokens",
        "closed",
        "detail",
        "event_ns",
        "failure",
        "finish_reason",
        "first_event_ns",
        "first_visible_ns",
        "input_tokens",
        "last_event_ns",
        "metrics",
        "output_tokens",
        "reasoning",
        "remarks",
        "request_id",
        "text",
        "token_ids",
        "tool_calls",
    )

    end_marker = "[DONE]"

    def __init__(self) -> None:
        self.event_ns = array("q")  # times of the output events
        self.first_event_ns: int | None = None
        self.last_event_ns: int | None = None
        self.first_visible_ns: int | None = None
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.tool_calls: ToolCalls | None = None
        self.finish_reason: str | None = None
        self.request_id: str | None = None
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.token_ids: TokenIds | None = None  # if the server returned any
        self.metrics: PerRequestMetrics | None = None
        self.closed = False  # the end marker was received
        self.failure: Failure | None = None
        self.detail = ""
        self.remarks: dict[Remark, str] = {}  # with an example

    def remark(self, remark: Remark, example: str) -> None:
        """Add a remark, unless the answer has it. `example`: the reason, with data of the server."""
        self.remarks.setdefault(remark, example[:_DETAIL_BYTES])

    def events(self, data: list[bytes], at_ns: list[int]) -> None:
        """Process the data of several events in order, each with the time of its last byte."""
        for event, event_ns in zip(data, at_ns, strict=True):
            self.event(event, event_ns)

    def event(self, data: bytes, at_ns: int) -> None:
        """Process the data of one event. `at_ns`: time of its last byte."""
        raise NotImplementedError

    def frame_of(self, data: bytes) -> EventFrame | None:
        """Return the frame of further events like this processed one; None if there is none."""
        return None

    def add_texts(self, frame: EventFrame, texts: bytes, at_ns: bytes) -> None:
        """Process consecutive events that match a frame: their joined JSON-escaped texts, and their times as int64."""
        raise NotImplementedError

    def conclude(self, reply_complete: bool) -> None:
        """Set the failure of an incomplete or empty answer. Call once, after the last event."""
        if self.failure is None and self.finish_reason in _ABORTED:
            self.failure = Failure.SERVER_ERROR
            self.detail = f"the server aborted the answer: finish_reason {self.finish_reason}"
        if self.failure is None and not (self.closed or (reply_complete and self.finish_reason)):
            self.failure = Failure.CUT
            self.detail = f"the stream ended without {self.end_marker} or a finish reason"
        if self.failure is None and not self.event_ns:
            self.failure = Failure.EMPTY
            self.detail = "a complete stream without output tokens"

    def hash_ids(self) -> bool:
        """Decode and hash a slice of the token ids; return True if nothing is left."""
        if self.token_ids is None:
            return True
        try:
            return self.token_ids.step()
        except UNDECODABLE as error:
            self._fail(Failure.BAD_EVENT, f"prompt_token_ids: {error}".encode())
            self.token_ids = None
            return True

    def block_hashes(self) -> array[int] | None:
        """Return the block hashes of prompt and answer without its last token, as in the server's cache; None without ids."""
        while not self.hash_ids():
            pass
        return None if self.token_ids is None else self.token_ids.hashes()

    @property
    def tokens_by_event(self) -> array[int] | None:
        """Number of tokens of each output event; None without a running count of the server."""
        return None

    def _set_cached(self, tokens: int | None) -> None:
        """Set the number of cached prompt tokens; None if it is larger than the prompt."""
        too_many = tokens is not None and self.input_tokens is not None and tokens > self.input_tokens
        self.cached_tokens = None if too_many else tokens

    def _fail(self, failure: Failure, data: bytes) -> None:
        if self.failure is None:
            self.failure = failure
            self.detail = data[:_DETAIL_BYTES].decode("utf-8", "replace")
