"""Events of chat completions and completions: their fields, and the frame of an event with a text. No I/O."""

import re
from typing import Any

import msgspec

from inferload.client.answers.answer import EventFrame, PerRequestMetrics, Timings
from inferload.client.answers.number_bounds import UNDECODABLE, OutputTokens, Tokens


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    reasoning_details: Any = None  # of OpenRouter
    refusal: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    function_call: Function | None = None  # the former form of a tool call


class PromptDetails(msgspec.Struct):
    cached_tokens: Tokens | None = None


class OutputDetails(msgspec.Struct):
    reasoning_tokens: Tokens | None = None
    rejected_prediction_tokens: Tokens | None = None
    audio_tokens: Tokens | None = None


class Usage(msgspec.Struct):
    prompt_tokens: Tokens | None = None
    completion_tokens: OutputTokens | None = None
    total_tokens: Tokens | None = None
    completion_tokens_details: OutputDetails | None = None
    prompt_tokens_details: PromptDetails | None = None
    prompt_cache_hit_tokens: Tokens | None = None  # of DeepSeek
    cached_tokens: Tokens | None = None  # of Moonshot


class Choice(msgspec.Struct):
    delta: Delta | None = None
    message: Delta | None = None  # the whole answer, of gateways that do not stream
    text: str | None = None
    finish_reason: str | None = None
    error: Any = None  # of OpenRouter
    usage: Usage | None = None  # of Moonshot


class Event(msgspec.Struct):
    id: str | None = None
    choices: list[Choice] = []
    usage: Usage | None = None
    metrics: PerRequestMetrics | None = None
    timings: Timings | None = None  # of llama.cpp
    error: Any = None
    object: str | None = None


decode = msgspec.json.Decoder(Event).decode
decode_many = msgspec.json.Decoder(list[Event]).decode
decode_text = msgspec.json.Decoder(str).decode
_FRAMED = {"text", "content", "reasoning_content", "reasoning"}  # fields with a text, for frames
ROLE = re.compile(rb'"role": ?"')
_TEXT = re.compile(rb'"(?:content|text|reasoning_content|reasoning)": ?"((?:[^"\\]|\\.)+)"')
WITHOUT_TEXT = Choice(Delta())
_KNOWN = {"role", *Delta.__struct_fields__}
_PLAIN = re.compile(rb'"delta": ?\{(?:"(?:role|content)": ?"[^"\\]*(?:\\.[^"\\]*)*"(?:, ?)?|"\w+": ?null(?:, ?)?)*\}')
_PROBE = b"probe"
_VALUES = re.compile(rb'"id": ?"([\w.:-]+)"|"created": ?([1-9]\d*)(?=[,}])')  # that differ from stream to stream
_MOST_PIECES = 4  # PIECES of scan.c


def frame_of(data: bytes) -> EventFrame | None:
    """Return the frame of events like this one; None if there is none.

    The frame is verified by decoding: other values and another text at the same positions must yield the same event with that
    text and id.
    """
    match = _TEXT.search(data)
    if match is None:
        return None
    before, after = data[: match.start(1)], data[match.end(1) :]
    for pieces in ((_pieces(before), _pieces(after)), ((before,), (after,))):
        field = _framed_field(data, *pieces)
        if field is not None:
            return EventFrame(*pieces, visible=field in ("content", "text"), key=field, plain=not _has_unknown(data))
    return None


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
        event, probe = decode(data), decode(_with_probes(before) + _PROBE + _with_probes(after))
    except UNDECODABLE:
        return None
    field = _text_field(event)
    if field is None or _text_field(probe) != field:
        return None
    if any(piece.endswith(b'"') for piece in (*before[:-1], *after[:-1])):
        event.id = _PROBE.decode()
    return field if _with_text(event, field) == probe else None


def _text_field(event: Event) -> str | None:
    """Return the name of the field with the text of an event that has nothing else; None for other events."""
    others = (event.error is not None, event.usage, event.metrics, event.timings, len(event.choices) != 1)
    if event.object == "error" or any(others):
        return None
    choice, delta = event.choices[0], event.choices[0].delta
    filled = _filled(choice) - {"delta"} | (set() if delta is None else _filled(delta))
    return filled.pop() if len(filled) == 1 and filled <= _FRAMED else None


def is_plain(data: bytes) -> bool:
    """Return True if the message of an event has no more than a text, its content."""
    return b'"message"' not in data and (_PLAIN.search(data) is not None or b'"delta"' not in data)


def _has_unknown(data: bytes) -> bool:
    """Return True if the message of an event has a field that only later requests need."""
    try:
        delta = msgspec.json.decode(data)["choices"][0].get("delta") or {}
    except UNDECODABLE:
        return True
    return any(value is not None and key not in _KNOWN for key, value in delta.items())


def _filled(part: msgspec.Struct) -> set[str]:
    return {name for name in part.__struct_fields__ if getattr(part, name)}


def _with_text(event: Event, field: str) -> Event:
    """Return the event with the text of a field replaced by that of the probe."""
    choice = event.choices[0]
    setattr(choice if field == "text" else choice.delta, field, _PROBE.decode())
    return event
