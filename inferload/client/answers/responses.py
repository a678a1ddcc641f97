"""Event stream of /v1/responses. No I/O."""

import json
from typing import Any

import msgspec

from inferload.client.answers.answer import DONE, PerRequestMetrics, Timings
from inferload.client.answers.lenient import text_of
from inferload.client.answers.number_bounds import OutputTokens, Tokens
from inferload.client.answers.sse import is_error
from inferload.client.answers.typed_events import TypedAnswer
from inferload.turns.record import Failure

_TEXT_DELTAS = {"response.output_text.delta", "response.refusal.delta"}
_SUMMARY_DELTA = "response.reasoning_summary_text.delta"
_REASONING_DELTAS = {"response.reasoning_text.delta", _SUMMARY_DELTA, "response.reasoning.delta"}
_CALL_DELTAS = {"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"}
_CALLS = {"function_call", "custom_tool_call"}
_ENDS = {"response.completed", "response.incomplete"}


class _Item(msgspec.Struct):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None  # whole, if no deltas follow
    input: str | None = None  # the arguments of a custom tool
    content: Any = None  # a list of parts
    summary: Any = None  # parts of reasoning


class _InputDetails(msgspec.Struct):
    cached_tokens: Tokens | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: Tokens | None = None


class _ResponsesUsage(msgspec.Struct):
    input_tokens: Tokens | None = None
    output_tokens: OutputTokens | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    id: str | None = None
    status: str | None = None
    output: list[_Item] | None = None
    usage: _ResponsesUsage | None = None
    incomplete_details: _Incomplete | None = None
    error: Any = None
    metrics: PerRequestMetrics | None = None


class _ResponsesEvent(msgspec.Struct):
    type: str
    delta: Any = None  # a text in the events that are used here
    output_index: int | None = None
    item_id: str | None = None
    item: _Item | None = None
    response: _Response | None = None
    timings: Timings | None = None  # of llama.cpp

    @property
    def place(self) -> int | str:
        """Position of the item; its id if the server sends none, as llama.cpp."""
        if self.output_index is not None:
            return self.output_index
        return self.item_id or (self.item and self.item.id) or 0


class ResponsesAnswer(TypedAnswer):
    """Collects one streamed response. Its finish reason is mapped to those of chat completions: stop, length, tool_calls.

    Bridges send items, or the whole answer, without deltas: those are read from the end of the item or of the answer.
    """

    __slots__ = ("received",)

    end_marker = "response.completed"
    marks = (b'.completed"', b'.incomplete"', DONE)
    receipts = frozenset({"response.created", "response.queued", "response.in_progress"})
    event_type = _ResponsesEvent
    decoder = msgspec.json.Decoder(_ResponsesEvent)
    keeps = "inferload.client.answers.kept:ResponsesKept"

    def __init__(self) -> None:
        super().__init__()
        self.received: dict[int | str, bool] = {}  # places of items; False: only their name

    def typed(self, event: _ResponsesEvent, at_ns: int, data: bytes) -> None:
        kind, delta = event.type, event.delta if isinstance(event.delta, str) else "".join(text_of(event.delta))
        if delta:
            self.received[event.place] = True
        if kind in _TEXT_DELTAS:
            self.add_text(delta, at_ns)
        elif kind in _REASONING_DELTAS:
            self.veiled |= kind == _SUMMARY_DELTA
            self.add_reasoning(delta, at_ns)
        elif kind in _CALL_DELTAS:
            self.add_call(event.place, at_ns, arguments=delta)
        elif kind == "response.output_item.added":
            if event.item is not None and event.item.type in _CALLS:
                self._whole(event.item, event.place, at_ns)
        elif kind == "response.output_item.done":
            if event.item is not None:
                self._whole(event.item, event.place, at_ns)
        elif kind in self.receipts:
            if self.request_id is None and event.response is not None:
                self.request_id = event.response.id
        elif kind in _ENDS:
            response = event.response or _Response()
            self._end(response, kind, at_ns, data)
            self.set_times(response.metrics, event.timings)
        elif kind in ("response.failed", "error"):
            error = None if event.response is None else event.response.error
            self._fail(Failure.SERVER_ERROR, data if error is None else json.dumps(error).encode())

    def _whole(self, item: _Item, place: int | str, at_ns: int) -> None:
        """Add an item unless its deltas, or an earlier event with all of it, did."""
        if self.received.get(place):
            return
        text, thought = text_of(item.content)
        if item.type in _CALLS:
            whole = item.arguments or item.input
            if whole or place not in self.received:
                self.add_call(place, at_ns, item.call_id, item.name, whole)
        elif item.type == "reasoning":
            whole = text + thought or "".join(text_of(item.summary))
            self.veiled |= not text + thought
            self.add_reasoning(whole, at_ns)
        else:
            whole = text or thought
            self.add_text(text, at_ns)
            self.add_reasoning(thought, at_ns)
        self.received[place] = bool(whole)

    def _end(self, response: _Response, kind: str, at_ns: int, data: bytes) -> None:
        self.closed = True
        self.request_id = response.id or self.request_id
        if not self.event_ns:
            for index, item in enumerate(response.output or ()):
                self._whole(item, index, at_ns)
        if is_error(response.error) or response.status in ("failed", "cancelled"):
            self._fail(Failure.SERVER_ERROR, data)
        cut = response.incomplete_details
        if cut is not None or kind == "response.incomplete":
            self.set_finish_reason((cut and cut.reason) or "incomplete")
        else:
            self.finish_reason = "stop" if self.tool_calls is None else "tool_calls"
        usage = response.usage
        if usage is not None:
            self.input_tokens, self.output_tokens = usage.input_tokens or None, usage.output_tokens
            self.zero_usage = usage.output_tokens == 0
            if usage.output_tokens_details is not None:
                self.reasoning_tokens = usage.output_tokens_details.reasoning_tokens or 0
                self.veiled &= bool(self.reasoning)  # else their number is known
            if usage.input_tokens_details is not None:
                self._set_cached(usage.input_tokens_details.cached_tokens)
