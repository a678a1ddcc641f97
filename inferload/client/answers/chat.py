"""Event stream of chat completions and completions: from events and their times to output times, counts and text. No I/O.

An event counts as output (docs/measures.md) if it has content, reasoning or a tool-call delta, or if the server's running token
count grows with it (a token that is half of a multi-byte character, say).
"""

from __future__ import annotations

import re
from array import array
from typing import Any

import msgspec

from inferload.client.answers.answer import DONE, Answer, EventFrame, PerRequestMetrics, ToolCalls
from inferload.client.answers.number_bounds import UNDECODABLE, OutputTokens, TokenId, Tokens, refusal
from inferload.client.answers.token_ids import TokenIds
from inferload.measure.record import Failure

_NONE = msgspec.Raw()


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
    token_ids: list[TokenId] | None = None
    prompt_token_ids: msgspec.Raw = _NONE


class _PromptDetails(msgspec.Struct):
    cached_tokens: Tokens | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Tokens | None = None
    completion_tokens: OutputTokens | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    id: str | None = None
    choices: list[_Choice] = []
    usage: _Usage | None = None
    metrics: PerRequestMetrics | None = None
    error: Any = None
    object: str | None = None
    prompt_token_ids: msgspec.Raw = _NONE


_decode = msgspec.json.Decoder(_Event).decode
_decode_many = msgspec.json.Decoder(list[_Event]).decode
_decode_text = msgspec.json.Decoder(str).decode
_TEXT = re.compile(rb'"(?:content|text|reasoning_content|reasoning)": ?"((?:[^"\\]|\\.)+)"')
_PROBE = b"probe"


class ChatAnswer(Answer):
    """Answer of chat completions or completions."""

    __slots__ = ("event_tokens", "running_tokens", "uncounted")

    def __init__(self) -> None:
        super().__init__()
        self.event_tokens = array("i")  # increase of the server's running token count with each output event
        self.running_tokens = 0
        self.uncounted = False  # there was an output event without a running count

    def events(self, data: list[bytes], at_ns: list[int]) -> None:
        """Process the data of several events in order, each with the time of its last byte; decode them together if possible."""
        if not data:
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
        if self.first_event_ns is None:
            self.first_event_ns = at_ns
        self.last_event_ns = at_ns
        if data == DONE:
            self.closed = True
            return
        try:
            event = _decode(data)
        except UNDECODABLE as error:
            self._fail(Failure.BAD_EVENT, refusal(error, data))
            return
        self._process(event, at_ns, data)

    def _process(self, event: _Event, at_ns: int, data: bytes) -> None:
        if event.error is not None or event.object == "error":  # the latter in older versions of vLLM
            self._fail(Failure.SERVER_ERROR, data)
            return
        if event.usage is None and self.uncounted and self.first_visible_ns is not None and len(event.choices) == 1:
            choice = event.choices[0]  # short path of nearly every event
            delta = choice.delta
            if (
                delta is not None
                and delta.content
                and not (choice.finish_reason or delta.tool_calls or delta.reasoning or delta.reasoning_content)
                and choice.token_ids is None
            ):
                self.text.append(delta.content)
                self.event_ns.append(at_ns)
                return
        if self.request_id is None:
            self.request_id = event.id
        carried = False
        for choice in event.choices[:1]:
            carried = self._choice(choice, at_ns)
            self._ids(event.prompt_token_ids, choice.prompt_token_ids, choice.token_ids)
        self._count(event, carried, at_ns)
        if event.metrics is not None:
            self.metrics = event.metrics

    def frame_of(self, data: bytes) -> EventFrame | None:
        """Return the frame of further events like this processed one; None if there is none.

        The frame is verified by decoding: another text at the same position must yield the same event with that text. Events
        that match it add nothing but their text and their time.
        """
        match = _TEXT.search(data)
        if match is None or not self.uncounted or self.request_id is None:
            return None
        before, after = data[: match.start(1)], data[match.end(1) :]
        try:
            event, probe = _decode(data), _decode(before + _PROBE + after)
        except UNDECODABLE:
            return None
        visible = _only_text(event)
        if visible is None or _only_text(probe) is not visible or (visible and self.first_visible_ns is None):
            return None
        return EventFrame(before, after, visible) if _with_text(event) == probe else None

    def add_texts(self, frame: EventFrame, texts: bytes, at_ns: bytes) -> None:
        """Process consecutive events that match a frame: their joined JSON-escaped texts, and their times as int64."""
        (self.text if frame.visible else self.reasoning).append(_decode_text(b'"' + texts + b'"'))
        self.event_ns.frombytes(at_ns)
        self.last_event_ns = self.event_ns[-1]

    @property
    def tokens_by_event(self) -> array[int] | None:
        """Number of tokens of each output event; None without a running count of the server."""
        return None if self.uncounted or not self.event_tokens else self.event_tokens

    def _ids(self, of_event: msgspec.Raw, of_choice: msgspec.Raw, answer: list[int] | None) -> None:
        if not (answer or of_event or of_choice):
            return
        if self.token_ids is None:
            self.token_ids = TokenIds()
        for ids in (of_event, of_choice):
            self.token_ids.prompt(bytes(ids))
        self.token_ids.answer(answer or ())

    def _choice(self, choice: _Choice, at_ns: int) -> bool:
        """Add the text of a choice; return True if it has output."""
        if choice.finish_reason:
            self.finish_reason = choice.finish_reason
        delta = choice.delta
        visible = choice.text if delta is None else delta.content or delta.refusal
        if visible:
            self.text.append(visible)
            if self.first_visible_ns is None:
                self.first_visible_ns = at_ns
        return (delta is not None and self._invisible(delta)) or bool(visible)

    def _invisible(self, delta: _Delta) -> bool:
        """Add reasoning and parts of tool calls of a delta; return True if it has any."""
        reasoning = delta.reasoning or delta.reasoning_content
        if reasoning:
            self.reasoning.append(reasoning)
        if delta.tool_calls and self.tool_calls is None:
            self.tool_calls = ToolCalls()
        for position, call in enumerate(delta.tool_calls or ()):
            function = call.function or _Function()
            assert self.tool_calls is not None
            key = position if call.index is None else call.index
            self.tool_calls.add(key, call.id, function.name, function.arguments)
        return bool(reasoning or delta.tool_calls)

    def _count(self, event: _Event, carried: bool, at_ns: int) -> None:
        """Process the usage of an event; count the event as output by its content or by the running count."""
        usage = event.usage
        total = None if usage is None else usage.completion_tokens
        if usage is not None:
            self._usage(usage)
        # Usage is a running count if it is next to a choice from the first output on; alone at the end it is a total. If it
        # decreases, the tokens of the events are unknown.
        running = total is not None and bool(event.choices) and not self.uncounted and total >= self.running_tokens
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
            self._set_cached(usage.prompt_tokens_details.cached_tokens)


def _only_text(event: _Event) -> bool | None:
    """Return True for an event with only visible text, False for one with only reasoning, None for others."""
    if (
        event.error is not None
        or event.object == "error"
        or event.usage is not None
        or event.metrics is not None
        or len(event.choices) != 1
    ):
        return None
    choice, delta = event.choices[0], event.choices[0].delta
    if choice.finish_reason is not None or choice.token_ids is not None:
        return None
    if delta is None:
        return True if choice.text else None
    filled = [
        bool(text)
        for text in (delta.content, delta.reasoning, delta.reasoning_content, delta.refusal, delta.tool_calls)
    ]
    if sum(filled) != 1 or filled[3] or filled[4]:
        return None
    return filled[0]


def _with_text(event: _Event) -> _Event:
    """Return the event with its text replaced by that of the probe."""
    choice, probe = event.choices[0], _PROBE.decode()
    if choice.delta is None:
        choice.text = probe
    elif choice.delta.content:
        choice.delta.content = probe
    elif choice.delta.reasoning_content:
        choice.delta.reasoning_content = probe
    else:
        choice.delta.reasoning = probe
    return event
