"""Event stream of chat completions and completions: from events and their times to output times, counts and text. No I/O.

An event counts as output (docs/reference/measures.md) if it has content, reasoning or a tool-call delta, or if the server's running
token count grows with it (a token that is half of a multi-byte character, say).

A usage beside a choice is not always a running count: servers send zeros until the end, the total in each event, or the count of
each event. It is one if it is positive from the first text on, never decreases, grows with most texts, and ends at the total.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from itertools import compress
from typing import Any

import msgspec

from inferload.client.answers.answer import DONE, Answer, EventFrame, PerRequestMetrics, ToolCalls
from inferload.client.answers.lenient import is_error, text_of
from inferload.client.answers.number_bounds import UNDECODABLE, OutputTokens, Tokens
from inferload.turns.record import Failure
from inferload.turns.remarks import Remark


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
    thinking: str | None = None
    reasoning_details: Any = None  # of OpenRouter
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None  # the former form of a tool call


class _PromptDetails(msgspec.Struct):
    cached_tokens: Tokens | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: Tokens | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Tokens | None = None
    completion_tokens: OutputTokens | None = None
    total_tokens: Tokens | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_tokens_details: _PromptDetails | None = None
    prompt_cache_hit_tokens: Tokens | None = None  # of DeepSeek
    cached_tokens: Tokens | None = None  # of Moonshot


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None  # the whole answer, of gateways that do not stream
    text: str | None = None
    finish_reason: str | None = None
    error: Any = None  # of OpenRouter
    usage: _Usage | None = None  # of Moonshot


class _Event(msgspec.Struct):
    id: str | None = None
    choices: list[_Choice] = []
    usage: _Usage | None = None
    metrics: PerRequestMetrics | None = None
    error: Any = None
    object: str | None = None


_decode = msgspec.json.Decoder(_Event).decode
_decode_many = msgspec.json.Decoder(list[_Event]).decode
_decode_text = msgspec.json.Decoder(str).decode
_FRAMED = {"text", "content", "reasoning_content", "reasoning"}  # fields with a text, for frames
_TEXT = re.compile(rb'"(?:content|text|reasoning_content|reasoning)": ?"((?:[^"\\]|\\.)+)"')
_WITHOUT_TEXT = _Choice(_Delta())
_PROBE = b"probe"
_VALUES = re.compile(rb'"id": ?"([\w.:-]+)"|"created": ?([1-9]\d*)(?=[,}])')  # that differ from stream to stream
_MOST_PIECES = 4  # PIECES of scan.c


class ChatAnswer(Answer):
    """Answer of chat completions or completions."""

    __slots__ = (
        "beside",
        "carried",
        "event_tokens",
        "reasoning_beside",
        "running_tokens",
        "total",
        "total_after",
        "uncounted",
    )

    event_type = _Event

    def __init__(self) -> None:
        super().__init__()
        self.event_tokens = array("i")  # increase of the server's running token count with each output event
        self.carried = bytearray()  # 1 for each of these events with content, 0 if only the count grew
        self.running_tokens = 0
        self.uncounted = False  # the server has no running count
        self.total: int | None = None  # number of output tokens in an event without a choice
        self.total_after = 0  # output events before it
        self.reasoning_beside = 0  # reasoning tokens that the server does not count as output tokens
        self.beside = _Beside()

    def events(self, data: list[bytes], at_ns: list[int]) -> None:
        """Process the data of several events in order, each with the time of its last byte; decode them together if possible."""
        if not data or self.closed:
            return
        if data[-1] == DONE:
            self.events(data[:-1], at_ns[:-1])
            self.event(DONE, at_ns[-1])
            return
        try:
            decoded = _decode_many(b"[" + b",".join(data) + b"]")
        except UNDECODABLE:
            decoded = []
        if len(decoded) != len(data):  # at least one of them is not valid
            for text, event_ns in zip(data, at_ns, strict=True):
                self.event(text, event_ns)
            return
        if self.first_event_ns is None:
            self.first_event_ns = at_ns[0]
        self.last_event_ns = at_ns[-1]
        for event, event_ns, text in zip(decoded, at_ns, data, strict=True):
            self._process(event, event_ns, text)

    def event(self, data: bytes, at_ns: int) -> None:
        """Process the data of one event. `at_ns`: time of its last byte."""
        if self.closed:
            return
        if self.first_event_ns is None:
            self.first_event_ns = at_ns
        self.last_event_ns = at_ns
        if data == DONE:
            self.closed = True
            return
        try:
            event = _decode(data)
        except UNDECODABLE as error:
            self.leniently(error, data, at_ns)
            return
        self._process(event, at_ns, data)

    def read(self, event: _Event, at_ns: int, data: bytes) -> None:
        """Process one event that was read leniently."""
        self._process(event, at_ns, data)

    def prepare(self, document: dict[str, Any]) -> None:
        """Replace contents that are lists of parts by their texts."""
        choices = document.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            for name in ("delta", "message") if isinstance(choice, dict) else ():
                delta = choice.get(name)
                if isinstance(delta, dict) and isinstance(delta.get("content"), list | dict):
                    delta["content"], thought = text_of(delta["content"])
                    if thought:
                        delta["reasoning"] = thought

    def _process(self, event: _Event, at_ns: int, data: bytes) -> None:
        # Older versions of vLLM have `object: error` instead of `error`.
        if event.object == "error" or (event.error is not None and is_error(event.error)):
            self._fail(Failure.SERVER_ERROR, data)
            return
        in_text = self.uncounted and self.first_visible_ns is not None
        if in_text and event.usage is None and event.metrics is None and len(event.choices) == 1:
            choice = event.choices[0]  # short path of nearly every event, which has only a text
            delta = choice.delta
            if delta is not None and delta.content:
                text, delta.content = delta.content, None
                if choice == _WITHOUT_TEXT:
                    self.text.append(text)
                    self.event_ns.append(at_ns)
                    return
                delta.content = text
        if self.request_id is None:
            self.request_id = event.id
        usage = event.usage
        if event.choices:
            choice = event.choices[0]
            carried = self._choice(choice, at_ns)
            usage = choice.usage if usage is None else usage
            finished = self.finish_reason is not None
            self._count(None if usage is None else usage.completion_tokens, carried, finished, at_ns)
            if choice.error is not None and is_error(choice.error):
                self._fail(Failure.SERVER_ERROR, data)
        elif usage is None:
            self.unused = data
        elif usage.completion_tokens:
            self.total, self.total_after = usage.completion_tokens, len(self.event_ns)
        if usage is not None:
            self._usage(usage)
        if event.metrics is not None:
            self.metrics = event.metrics

    def frame_of(self, data: bytes) -> EventFrame | None:
        """Return the frame of further events like this processed one; None if there is none.

        The frame is verified by decoding: other values and another text at the same positions must yield the same event with that
        text and id. Events that match it add nothing but their text and their time.
        """
        match = _TEXT.search(data)
        if match is None or not self.uncounted or self.request_id is None:
            return None
        before, after = data[: match.start(1)], data[match.end(1) :]
        for pieces in ((_pieces(before), _pieces(after)), ((before,), (after,))):
            field = _framed_field(data, *pieces)
            if field is not None:
                visible = field in ("content", "text")
                return None if visible and self.first_visible_ns is None else EventFrame(*pieces, visible)
        return None

    def add_texts(self, frame: EventFrame, texts: bytes, at_ns: bytes) -> None:
        """Process consecutive events that match a frame: their joined JSON-escaped texts, and their times as int64."""
        if not self.uncounted:
            self._drop_running_count()
        (self.text if frame.visible else self.reasoning).append(_decode_text(b'"' + texts + b'"'))
        number = len(self.event_ns)
        self.event_ns.frombytes(at_ns)
        self.last_event_ns = self.event_ns[-1]
        if frame.visible and self.first_visible_ns is None:
            self.first_visible_ns = self.event_ns[number]

    @property
    def tokens_by_event(self) -> array[int] | None:
        """Number of tokens of each output event; None without a running count of the server."""
        return None if self.uncounted or not self.event_tokens else self.event_tokens

    def _choice(self, choice: _Choice, at_ns: int) -> bool:
        """Add the text of a choice; return True if it has output."""
        if choice.finish_reason:
            self.set_finish_reason(choice.finish_reason)
        delta = choice.delta
        if choice.message is not None and not self.event_ns and (delta is None or delta == _Delta()):
            delta = choice.message
        visible = (delta is not None and (delta.content or delta.refusal)) or choice.text
        if visible:
            self.text.append(visible)
            if self.first_visible_ns is None:
                self.first_visible_ns = at_ns
        return (delta is not None and self._invisible(delta)) or bool(visible)

    def _invisible(self, delta: _Delta) -> bool:
        """Add reasoning and parts of tool calls of a delta; return True if it has any."""
        reasoning = delta.reasoning or delta.reasoning_content or delta.thinking
        if not reasoning and delta.reasoning_details:
            reasoning = "".join(text_of(delta.reasoning_details))
        if reasoning:
            self.reasoning.append(reasoning)
        called = False
        if delta.function_call is not None:
            delta.tool_calls = [_ToolCall(0, None, delta.function_call)]
        for position, call in enumerate(delta.tool_calls or ()):
            function = call.function or _Function()
            if not (call.id or function.name or function.arguments):
                continue
            called = True
            if self.tool_calls is None:
                self.tool_calls = ToolCalls()
            key = f"at {position}" if call.index is None else call.index
            self.tool_calls.add(key, call.id, function.name, function.arguments)
        return called or bool(reasoning)

    def _count(self, total: int | None, carried: bool, finished: bool, at_ns: int) -> None:
        """Count an event with a choice as output by its content or by the running count. `total`: of its usage."""
        if total is not None:
            self.beside.add(total, finished)
        if not self.uncounted and self._refuted(total, carried, finished):
            self._drop_running_count()
        if self.uncounted or total is None:
            if carried:
                self.event_ns.append(at_ns)
        elif carried or total > self.running_tokens:
            self.event_ns.append(at_ns)
            self.event_tokens.append(total - self.running_tokens)
            self.carried.append(carried)
            self.running_tokens = total

    def _refuted(self, total: int | None, carried: bool, finished: bool) -> bool:
        """Return True if the usage of an event shows that there is no running count."""
        if total is None:
            return carried
        grown = total - self.running_tokens
        # The tokens of a stop are few; a total that arrives beside the finish reason is no output.
        is_total = finished and not carried and grown > max(self.event_tokens, default=0)
        return grown < 0 or (carried and total == 0) or is_total

    def _drop_running_count(self) -> None:
        """Count events by their content only."""
        self.uncounted = True
        self.event_ns = array("q", compress(self.event_ns, self.carried))

    def _grows(self) -> bool:
        """Return True if the count grew with the first text and with most of the others."""
        grown = [tokens > 0 for tokens in compress(self.event_tokens, self.carried)]
        return not grown or (grown[0] and (len(grown) == 1 or 2 * sum(grown[1:]) > len(grown) - 1))

    def settle(self) -> None:
        """Set the number of output tokens, and drop a running count that was none. Call once, after the last event."""
        if self.total_after < len(self.event_ns):  # a usage before the answer, of a bridge
            self.total = None
        matches = self._grows() and self.total in (None, self.running_tokens)
        if self.event_tokens and not self.uncounted and not matches:
            self._drop_running_count()
        if self.total is not None:
            self.output_tokens = self.total + (self.reasoning_beside if self.reasoning else 0)
        elif not self.uncounted and self.running_tokens:
            self.output_tokens = self.running_tokens
        elif self.finish_reason and self.beside.is_total(len(self.event_ns)):
            self.output_tokens = self.beside.latest
        elif self.finish_reason and self.beside.latest:
            example = (
                f"completion_tokens {self.beside.latest} beside the last of {len(self.event_ns)} events with output"
            )
            self.remark(Remark.PIECE_USAGE, example)
        super().settle()

    def _usage(self, usage: _Usage) -> None:
        if usage.prompt_tokens:
            self.input_tokens = usage.prompt_tokens
        self.zero_usage |= usage.completion_tokens == 0
        details = usage.prompt_tokens_details
        cached = None if details is None else details.cached_tokens
        if cached is None:
            cached = usage.cached_tokens if usage.prompt_cache_hit_tokens is None else usage.prompt_cache_hit_tokens
        if cached or self.cached_tokens is None:
            self._set_cached(cached)
        spent = usage.completion_tokens_details
        reasoning = (spent.reasoning_tokens if spent is not None else None) or 0
        counted = (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
        self.reasoning_beside = reasoning if usage.total_tokens == counted + reasoning else 0


@dataclass(slots=True)
class _Beside:
    """Token counts beside choices. `latest`: the latest positive one. `early`: there was one before the finish reason."""

    latest: int = 0
    fell: bool = False
    early: bool = False

    def add(self, total: int, finished: bool) -> None:
        """Add the count of an event. `finished`: it has the finish reason."""
        if total:
            self.fell = self.fell or total < self.latest
            self.early = self.early or not finished
            self.latest = total

    def is_total(self, events: int) -> bool:
        """Return True if the latest count can be that of the answer. `events`: number of events with output.

        Counts of single events decrease, or are below the number of events.
        """
        return self.latest > 0 and not self.fell and (not self.early or self.latest >= events)


def _pieces(data: bytes) -> tuple[bytes, ...]:
    """Split the bytes before or after a text at the values that differ from stream to stream."""
    pieces, last = [], 0
    for match in _VALUES.finditer(data):
        start, end = match.span(match.lastindex or 0)
        pieces.append(data[last:start])
        last = end
    return (*pieces, data[last:]) if len(pieces) < _MOST_PIECES else (data,)


def _with_probes(pieces: tuple[bytes, ...]) -> bytes:
    """Return the bytes of pieces with other values between them."""
    *first, last = pieces
    return b"".join(piece + (_PROBE if piece.endswith(b'"') else b"1") for piece in first) + last


def _framed_field(data: bytes, before: tuple[bytes, ...], after: tuple[bytes, ...]) -> str | None:
    """Return the name of the field with the text of an event that has nothing else; None if the pieces are no frame of it."""
    try:
        event, probe = _decode(data), _decode(_with_probes(before) + _PROBE + _with_probes(after))
    except UNDECODABLE:
        return None
    field = _text_field(event)
    if field is None or _text_field(probe) != field:
        return None
    if any(piece.endswith(b'"') for piece in (*before[:-1], *after[:-1])):
        event.id = _PROBE.decode()
    return field if _with_text(event, field) == probe else None


def _text_field(event: _Event) -> str | None:
    """Return the name of the field with the text of an event that has nothing else; None for other events."""
    if event.object == "error" or any((event.error is not None, event.usage, event.metrics, len(event.choices) != 1)):
        return None
    choice, delta = event.choices[0], event.choices[0].delta
    filled = _filled(choice) - {"delta"} | (set() if delta is None else _filled(delta))
    return filled.pop() if len(filled) == 1 and filled <= _FRAMED else None


def _filled(part: msgspec.Struct) -> set[str]:
    return {name for name in part.__struct_fields__ if getattr(part, name)}


def _with_text(event: _Event, field: str) -> _Event:
    """Return the event with the text of a field replaced by that of the probe."""
    choice = event.choices[0]
    setattr(choice if field == "text" else choice.delta, field, _PROBE.decode())
    return event
