"""Event stream of /v1/messages (Anthropic). No I/O."""

import json
from typing import Any

import msgspec

from inferload.client.answers.answer import DONE
from inferload.client.answers.number_bounds import OutputTokens, Tokens
from inferload.client.answers.sse import is_error
from inferload.client.answers.typed_events import TypedAnswer
from inferload.turns.record import Failure


class _OutputDetails(msgspec.Struct):
    thinking_tokens: Tokens | None = None


class _MessagesUsage(msgspec.Struct):
    input_tokens: Tokens | None = None
    output_tokens: OutputTokens | None = None
    cache_read_input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None
    output_tokens_details: _OutputDetails | None = None


class _Message(msgspec.Struct):
    id: str | None = None
    usage: _MessagesUsage | None = None


class _ContentBlock(msgspec.Struct):
    type: str = ""
    id: str | None = None
    name: str | None = None
    text: str | None = None
    thinking: str | None = None
    input: Any = None  # empty if deltas follow


class _MessagesDelta(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _MessagesEvent(msgspec.Struct):
    type: str
    index: int = 0
    message: _Message | None = None
    content_block: _ContentBlock | None = None
    delta: _MessagesDelta | None = None
    usage: _MessagesUsage | None = None
    error: Any = None


class MessagesAnswer(TypedAnswer):
    """Collects one streamed message. Its stop reason is mapped to those of chat completions: stop, length, tool_calls."""

    __slots__ = ("of_server", "thinks", "usage")

    end_marker = "message_stop"
    marks = (b"message_stop", DONE)
    receipts = frozenset({"message_start", "ping"})
    event_type = _MessagesEvent
    decoder = msgspec.json.Decoder(_MessagesEvent)
    keeps = "inferload.client.answers.kept:MessagesKept"

    def __init__(self) -> None:
        super().__init__()
        self.usage = _MessagesUsage()
        self.of_server: set[int] = set()  # positions of the server's own calls
        self.thinks = False  # there was a block of thinking

    def typed(self, event: _MessagesEvent, at_ns: int, data: bytes) -> None:
        kind, delta = event.type, event.delta
        if kind == "error" or (event.error is not None and is_error(event.error)):
            self._fail(Failure.SERVER_ERROR, data)
        elif kind == "content_block_delta" and delta is not None:
            self.add_text(delta.text, at_ns)
            self.add_reasoning(delta.thinking, at_ns)
            if delta.partial_json and event.index in self.of_server:
                self._output(delta.partial_json, at_ns)
            elif delta.partial_json:
                self.add_call(event.index, at_ns, arguments=delta.partial_json)
        elif kind == "content_block_start" and event.content_block is not None:
            self._start(event.content_block, event.index, at_ns)
        elif kind == "message_start" and event.message is not None:
            self.request_id = event.message.id
            if event.message.usage is not None:
                self._prompt_usage(event.message.usage)
        elif kind == "message_delta":
            if delta is not None and delta.stop_reason:
                self.set_finish_reason(delta.stop_reason)
            if event.usage is not None:
                self._prompt_usage(event.usage)
                self.output_tokens = event.usage.output_tokens or self.output_tokens
                self.zero_usage |= event.usage.output_tokens == 0
                if event.usage.output_tokens_details is not None:
                    self.reasoning_tokens = event.usage.output_tokens_details.thinking_tokens or 0
        elif kind == "message_stop":
            self.closed = True

    def _start(self, block: _ContentBlock, index: int, at_ns: int) -> None:
        self.add_text(block.text, at_ns)
        self.add_reasoning(block.thinking, at_ns)
        self.veiled |= block.type == "redacted_thinking"
        self.thinks |= block.type == "thinking"
        if block.type.endswith("_tool_use"):
            self.of_server.add(index)
        elif block.type == "tool_use":
            whole = json.dumps(block.input, ensure_ascii=False, separators=(",", ":")) if block.input else None
            self.add_call(index, at_ns, block.id, block.name, whole)

    def settle_usage(self) -> None:
        """Find out if the thinking was sent: it can be redacted, or omitted."""
        self.veiled |= self.thinks and not self.reasoning

    def _prompt_usage(self, usage: _MessagesUsage) -> None:
        """Set the prompt tokens. `input_tokens` of this API excludes those read from or written to a cache.

        Bridges fill in some of the fields in `message_start` and others in `message_delta`, with 0 in the other event.
        """
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            reported = getattr(usage, name)
            if reported or getattr(self.usage, name) is None:
                setattr(self.usage, name, reported)
        read, written = self.usage.cache_read_input_tokens, self.usage.cache_creation_input_tokens
        if self.usage.input_tokens is not None:
            self.input_tokens = self.usage.input_tokens + (read or 0) + (written or 0) or None
            self.cached_tokens = read
