"""What a completion's event stream says: from the data of its events and their stamps to instants, counts and text. No I/O.

Which events count as output is the rule of docs/measures.md: content, reasoning or a tool-call delta; or an empty delta that
the server's own running token count proves to be a token (half of a multi-byte character, say).
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from inferload.measure.record import Failure
from inferload.wire.toolcalls import ToolCalls

DONE = b"[DONE]"


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class PerRequestMetrics(msgspec.Struct):
    """vLLM's per-request metrics (`--enable-per-request-metrics`)."""

    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None


class _Event(msgspec.Struct):
    id: str | None = None
    choices: list[_Choice] = []
    usage: _Usage | None = None
    metrics: PerRequestMetrics | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode
_decode_many = msgspec.json.Decoder(list[_Event]).decode


class Answer:
    """Collects one streamed answer. Feed every event in order; read the fields at the end."""

    __slots__ = (
        "cached_tokens",
        "closed",
        "detail",
        "event_ns",
        "event_tokens",
        "failure",
        "finish_reason",
        "first_event_ns",
        "first_visible_ns",
        "input_tokens",
        "last_event_ns",
        "metrics",
        "output_tokens",
        "reasoning",
        "request_id",
        "running_tokens",
        "text",
        "tool_calls",
        "uncounted",
    )

    def __init__(self) -> None:
        self.event_ns = array("q")  # instants of the events that carried output
        self.event_tokens = array("i")  # by how much the server's running count grew with each of them
        self.running_tokens = 0
        self.uncounted = False  # an output event came without the server's running count beside it
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
        self.metrics: PerRequestMetrics | None = None
        self.closed = False  # [DONE] was seen
        self.failure: Failure | None = None
        self.detail = ""

    def events(self, data: list[bytes], at_ns: list[int]) -> None:
        """Take the data of several events in order, each complete at its instant: decoded in one go where that can be done."""
        try:
            decoded = _decode_many(b"[" + b",".join(data) + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError):
            decoded = []
        if len(decoded) != len(data) or not data:  # one of them is no event of a completion: [DONE], say
            for one, at in zip(data, at_ns, strict=True):
                self.event(one, at)
            return
        if self.first_event_ns is None:
            self.first_event_ns = at_ns[0]
        self.last_event_ns = at_ns[-1]
        for event, at in zip(decoded, at_ns, strict=True):
            self._take(event, at, data)

    def event(self, data: bytes, at_ns: int) -> None:
        """Take the data of one event, complete at that instant."""
        if self.first_event_ns is None:
            self.first_event_ns = at_ns
        self.last_event_ns = at_ns
        if data == DONE:
            self.closed = True
            return
        try:
            event = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._fail(Failure.BAD_EVENT, data)
            return
        self._take(event, at_ns, [data])

    def _take(self, event: _Event, at_ns: int, data: list[bytes]) -> None:
        if event.error is not None:
            self._fail(Failure.SERVER_ERROR, b" ".join(data))
            return
        if event.usage is None and self.uncounted and self.first_visible_ns is not None and len(event.choices) == 1:
            choice = event.choices[0]  # nearly every event of a stream takes this short way
            delta = choice.delta
            if (
                delta is not None
                and delta.content
                and not (choice.finish_reason or delta.tool_calls or delta.reasoning or delta.reasoning_content)
            ):
                self.text.append(delta.content)
                self.event_ns.append(at_ns)
                self.event_tokens.append(0)
                return
        if self.request_id is None:
            self.request_id = event.id
        carried = False
        for choice in event.choices[:1]:
            carried = self._choice(choice, at_ns)
        self._count(event, carried, at_ns)
        if event.metrics is not None:
            self.metrics = event.metrics

    def conclude(self, reply_complete: bool) -> None:
        """Say what became of the whole: to be called once, after the last event."""
        if self.failure is None and not (self.closed or (reply_complete and self.finish_reason)):
            self.failure = Failure.CUT
            self.detail = "the stream ended without [DONE] or a finish reason"
        if self.failure is None and not self.event_ns:
            self.failure = Failure.EMPTY
            self.detail = "a whole stream without one output token"

    @property
    def tokens_by_event(self) -> array[int] | None:
        """Tokens of each output event where the server kept a running count, else None."""
        return None if self.uncounted or not self.event_tokens else self.event_tokens

    def _choice(self, choice: _Choice, at_ns: int) -> bool:
        """Whether the choice carried output; keeps its text."""
        if choice.finish_reason:
            self.finish_reason = choice.finish_reason
        delta = choice.delta
        visible = choice.text if delta is None else delta.content or delta.refusal
        if visible:
            self.text.append(visible)
            if self.first_visible_ns is None:
                self.first_visible_ns = at_ns
        return (delta is not None and self._unseen(delta)) or bool(visible)

    def _unseen(self, delta: _Delta) -> bool:
        """Whether the delta carried what nobody reads as text, reasoning or a part of a tool call; keeps it."""
        thought = delta.reasoning or delta.reasoning_content
        if thought:
            self.reasoning.append(thought)
        if delta.tool_calls and self.tool_calls is None:
            self.tool_calls = ToolCalls()
        for place, call in enumerate(delta.tool_calls or ()):
            function = call.function or _Function()
            assert self.tool_calls is not None
            key = place if call.index is None else call.index
            self.tool_calls.add(key, call.id, function.name, function.arguments)
        return bool(thought or delta.tool_calls)

    def _count(self, event: _Event, carried: bool, at_ns: int) -> None:
        """Book what usage says, and the event where its content or the running count shows that it was output."""
        usage = event.usage
        total = None if usage is None else usage.completion_tokens
        if usage is not None:
            self._usage(usage)
        # Usage alone at the end is a total; only beside a choice, and from the first output on, is it a running count.
        running = total is not None and bool(event.choices) and not self.uncounted
        grown = (total or 0) - self.running_tokens if running else 0
        if carried or grown > 0:
            self.event_ns.append(at_ns)
            self.event_tokens.append(grown)
            self.uncounted = not running
        if running:
            self.running_tokens += grown

    def _usage(self, usage: _Usage) -> None:
        if usage.prompt_tokens is not None:
            self.input_tokens = usage.prompt_tokens
        if usage.completion_tokens is not None:
            self.output_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def _fail(self, failure: Failure, data: bytes) -> None:
        if self.failure is None:
            self.failure = failure
            self.detail = data[:200].decode("utf-8", "replace")
