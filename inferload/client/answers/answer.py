"""State of a streamed answer, common to the event streams of all endpoints. No I/O."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import msgspec

from inferload.client.answers.number_bounds import UNDECODABLE, Milliseconds, Tokens, refusal
from inferload.turns.record import Failure
from inferload.turns.remarks import Remark
from inferload.workload.content.messages import ToolCall, made_call_id, sendable

DONE = b"[DONE]"
# Finish reasons by those of other servers: of Anthropic, TGI and Mistral, and the former name of `tool_calls`.
_REASONS = {
    **{reason: reason for reason in ("stop", "length", "tool_calls", "content_filter")},  # in capitals elsewhere
    **dict.fromkeys(("end_turn", "stop_sequence", "eos", "eos_token"), "stop"),
    **dict.fromkeys(("max_tokens", "max_output_tokens", "model_length"), "length"),
    **dict.fromkeys(("tool_use", "function_call"), "tool_calls"),
}
# Finish reasons of an answer that the server interrupted: `abort` and `error` of vLLM, SGLang, Mistral and OpenRouter,
# `insufficient_system_resource` of DeepSeek, `network_error` of GLM, and others with the same words.
_INTERRUPTED = re.compile(
    "abort|cancel|crash|disconnect|error|exhaust|fail|insufficient|interrupt|kill|overload|preempt|quota|rate.?limit|"
    "shutdown|time_?out|timed_out|unavailable"
)
_REASON_CHARACTERS = 40
_NO_WORD = ("", "null", "none", "finish_reason_unspecified")  # ids and finish reasons that are none
_SAYS_WHY = ("message", "error_msg", "error_code", "detail")  # keys of errors without a key `error`
_DETAIL_BYTES = 4096  # the client redacts the detail before it cuts it to a line
_TAGGED = ("hink", "HINK", "thought>", "channel", "reasoning>")  # one is in each text with a tag of `output`
_TOKEN = 16  # characters that few tokens exceed; half of them in scripts of three bytes for each
_KEPT_FRAMES = 4  # FRAMES of scan.c

Scan = Callable[..., tuple[list[tuple[Any, ...]], int, int]]


class PerRequestMetrics(msgspec.Struct):
    """vLLM's per-request metrics (`--enable-per-request-metrics`)."""

    queue_time_ms: Milliseconds | None = None
    time_to_first_token_ms: Milliseconds | None = None
    generation_time_ms: Milliseconds | None = None


class Timings(msgspec.Struct):
    """Times of llama.cpp's server: from the start of the prompt to the first token, and from there to the last one.

    What comes before, the wait for a slot, is in none of them (tools/server/server-context.cpp).
    """

    prompt_ms: Milliseconds | None = None
    predicted_ms: Milliseconds | None = None
    cache_n: Tokens | None = None


class EventFrame(NamedTuple):
    """Common bytes of many events, before and after one text. `visible`: the text is not reasoning. `key`: its field.
    `plain`: the message has no more than the text.

    Between two pieces there is a value that differs from stream to stream: a word in quotes, if the piece ends with one, or a whole
    number.
    """

    before: tuple[bytes, ...]
    after: tuple[bytes, ...]
    visible: bool
    key: str
    plain: bool


class Frames:
    """Frames of the streams of one client, the newest first. `scan`: the native path; None if there is none."""

    __slots__ = ("begins", "known", "scan")

    def __init__(self, scan: Scan | None) -> None:
        self.scan = scan
        self.known: tuple[EventFrame, ...] = ()
        self.begins = [0, 0]  # of tokens that the texts of these streams show; of these: begins of events

    def add(self, frame: EventFrame) -> None:
        if frame not in self.known:
            self.known = (frame, *self.known[: _KEPT_FRAMES - 1])


@dataclass(slots=True)
class _CallParts:
    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    others: dict[str, Any] = field(default_factory=dict)  # further fields, unfinished


@dataclass(slots=True)
class ToolCalls:
    """Tool calls of one answer. A delta continues the call of its id, else the latest call of its key, its index."""

    _calls: list[_CallParts] = field(default_factory=list)
    _by_key: dict[int | str, _CallParts] = field(default_factory=dict)

    def add(
        self, key: int | str, call_id: str | None = None, name: str | None = None, arguments: str | None = None
    ) -> _CallParts:
        """Add one delta; None for absent fields. Return its call. Pieces of a name and of arguments are joined.

        Some servers give all calls the same index, or none, or one id: a name with a new id, after arguments, or at a new index
        begins a new call. So does an id without arguments. A new id beside arguments of an index does not: vLLM once generated
        one for each delta.
        """
        call_id = None if call_id is None or call_id.lower() in _NO_WORD else call_id
        parts, indexed = self._by_key.get(key), isinstance(key, int)
        if (parts.call_id != call_id) if parts else not (name and indexed):
            parts = self._of_id(call_id) or parts
        if parts is None or self._is_new(parts, call_id, name, continues=bool(arguments) and indexed):
            parts = self._by_key[key] = _CallParts()
            self._calls.append(parts)
        parts.call_id = parts.call_id or call_id or ""
        if name and name != parts.name:
            parts.name += name
        if arguments:
            parts.arguments.append(arguments)
        return parts

    def _of_id(self, call_id: str | None) -> _CallParts | None:
        return next((parts for parts in reversed(self._calls) if parts.call_id == call_id), None) if call_id else None

    def _is_new(self, parts: _CallParts, call_id: str | None, name: str | None, continues: bool) -> bool:
        """Return True if a delta begins a call. `continues`: it does not if it has no name."""
        other_id = bool(call_id and parts.call_id and call_id != parts.call_id)
        if name:
            return other_id or (bool(parts.arguments and parts.name) and call_id != parts.call_id)
        return other_id and not continues

    def calls(self, turn_id: str | None = None) -> tuple[ToolCall, ...]:
        """Return the calls in the order of their first deltas; empty arguments are "{}". `turn_id`: for ids of those without."""
        return tuple(
            ToolCall(
                parts.call_id or (made_call_id(f"{turn_id}/{number}") if turn_id else ""),
                parts.name,
                sendable("".join(parts.arguments)) or "{}",
            )
            for number, parts in enumerate(self._calls)
        )

    def others(self) -> list[dict[str, Any]]:
        """Return the further fields of each call, unfinished."""
        return [parts.others for parts in self._calls]


class Answer:
    """One streamed answer: pass all events in order, then read the attributes.

    `end_marker`: last event of a whole stream. Events after it are ignored. `marks`: texts of which the end marker contains one
    and hardly any other event does; the first byte of each is rare, and occurs in it once.
    """

    __slots__ = (
        "blank_ns", "cached_tokens", "closed", "detail", "event_ns", "failure", "finish_reason", "first_event_ns",
        "first_visible_ns", "held", "hidden_tokens", "input_tokens", "keeping", "kept", "last_blank_ns", "last_event_ns",
        "lengths", "metrics", "output_tokens", "pieces", "reasoning", "reasoning_tokens", "remarks", "request_id",
        "shared_tokens", "text", "tool_calls", "unseen_tokens", "unused", "veiled", "zero_usage",
    )  # fmt: skip

    streamed = True  # as events; else one document, of which there are only its end and the texts of the request
    whole_ns: int | None = None
    texts: int | None = None
    end_marker = "[DONE]"
    event_type: ClassVar[type[msgspec.Struct]]
    marks: tuple[bytes, ...] = (DONE,)
    keeps: ClassVar[str] = ""  # place of the class that keeps an answer for later requests

    def __init__(self) -> None:
        self.event_ns = array("q")  # times of the output events
        self.lengths = array("i")  # characters of each of them
        self.pieces: list[str] = []  # their texts in order, of whatever kind, of one or several each
        self.blank_ns = array("q")  # times of events with an empty text, which may stand for a token
        self.last_blank_ns: int | None = None  # of such an event with the finish reason
        self.first_visible_ns: int | None = None
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.finish_reason: str | None = None
        self.output_tokens: int | None = None
        self.reasoning_tokens = self.unseen_tokens = 0  # of the output tokens, by the usage; `unseen` are never sent
        self.held = 0  # characters that may begin a stop string of the request
        self.veiled = False  # an unknown number of the output tokens was not sent
        self.hidden_tokens: int | None = 0  # of the output tokens: those that no event stands for; None: not known
        self.shared_tokens: array[int] | None = None  # of each of them, by its text
        self.remarks: dict[Remark, str] = {}  # with an example
        self.first_event_ns: int | None = None
        self.last_event_ns: int | None = None
        self.tool_calls: ToolCalls | None = None
        self.request_id: str | None = None
        self.input_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.metrics: PerRequestMetrics | None = None
        self.closed = False  # the end marker was received
        self.failure: Failure | None = None
        self.detail = ""
        self.unused = b""  # latest event with neither output nor usage
        self.zero_usage = False  # the server reported 0 output tokens
        self.keeping = False  # later requests carry the answer
        self.kept: Any = None  # what is kept so far

    def keep(self) -> Any:
        """Return what is kept so far. It is imported on use: most answers are plain texts."""
        if self.kept is None:
            module, _, name = self.keeps.partition(":")
            self.kept = getattr(import_module(module), name)()
        return self.kept

    def native(self, calls: tuple[ToolCall, ...]) -> bytes | None:
        """Return the answer for `Message.native`. `calls`: its calls, with their ids. None: it is too large."""
        native: bytes | None = b"" if self.kept is None else self.kept.json(calls)
        return native

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

    def add_texts(self, frame: EventFrame, texts: bytes, at_ns: bytes, lengths: bytes) -> None:
        """Process consecutive events that match a frame: their joined JSON-escaped texts, times as int64, characters as int32."""
        raise NotImplementedError

    def leniently(self, error: Exception, data: bytes, at_ns: int) -> None:
        """Process an event that the decoder refused with `error`, as far as it can be read."""
        rest, _, last = data.strip().rpartition(b"\n")
        if last.strip() == DONE:  # some servers leave out the empty line before it
            if rest:
                self.remark(Remark.ODD_EVENT, data.decode("utf-8", "replace"))
                self.event(rest, at_ns)
            self.closed, self.last_event_ns = True, at_ns
            return
        from inferload.client.answers import lenient  # most servers send no odd event

        try:
            found = lenient.read(data, self.event_type, self.prepare)
        except lenient.Broken:
            self._fail(Failure.BAD_EVENT, refusal(error, data))
            return
        if found.odd or len(found.events) != 1:
            self.remark(Remark.ODD_EVENT, refusal(error, data).decode("utf-8", "replace"))
        if not found.events:
            self.unused = data
        for event in found.events:
            self.read(event, at_ns, data)

    def read(self, event: Any, at_ns: int, data: bytes) -> None:
        """Process one event that was read leniently."""
        raise NotImplementedError

    def prepare(self, document: dict[str, Any]) -> None:
        """Change an event before it is read leniently."""

    def set_finish_reason(self, reason: str) -> None:
        """Set the finish reason, by its name in chat completions if it has one there."""
        reason = reason.strip()[:_REASON_CHARACTERS]
        if reason.lower() not in _NO_WORD:
            self.finish_reason = _REASONS.get(reason.lower(), reason)

    def body(self) -> Any:
        """Return the parser of a body that is no event stream, in place of EventStream; None for events."""
        return None

    def asked(self, body: bytes) -> None:
        """Note what the body of the request asks for. Call before `settle`."""
        if b'"stop' in body:
            from inferload.client.answers import output

            self.held = output.held_for_stops(body)

    def settle(self, begins: list[int] | None = None) -> None:
        """Complete the counts. Call once, after the last event, also of an answer that was cancelled. `begins`: see Frames."""
        self.settle_usage()
        events, text = len(self.event_ns), sendable("".join(self.text))
        self.text = [text] if text else []  # joined once
        if self.output_tokens == 0:
            self.output_tokens = None if events else 0
        if self.output_tokens is None and self.zero_usage and events and Remark.PIECE_USAGE not in self.remarks:
            self.remark(Remark.ZERO_USAGE, f"0 output tokens, {events} events with output")
        repeats = events > 1 and 2 * max(self.lengths[-2:]) >= len(text)
        is_wide = len(text.encode("utf-8", "surrogatepass")) > 2 * len(text)
        is_long = max(self.lengths, default=0) > (_TOKEN // 2 if is_wide else _TOKEN)
        one_each = self.output_tokens == events or (self.output_tokens is None and not self.held)
        if not one_each or repeats or is_long or any(part in text for part in _TAGGED):
            from inferload.client.answers import output  # nearly all answers have a token in each event

            output.look(self, [0, 0] if begins is None else begins)

    def settle_usage(self) -> None:
        """Set the number of output tokens, of an endpoint with counts in several places."""

    def conclude(self, reply_complete: bool, finish_reasons: bool = False) -> None:
        """Set the failure of an incomplete or empty answer. Call once, after `settle`.

        `finish_reasons`: other answers of the server have one.
        """
        if self.failure is not None:
            return
        self.failure, self.detail = self._incomplete(reply_complete, finish_reasons) or (None, "")
        if self.failure is not None and self.unused:
            self.detail += ": " + self.unused[:_DETAIL_BYTES].decode("utf-8", "replace")
        if self.failure is None and not self.finish_reason:
            self.remark(Remark.NO_FINISH_REASON, f"{len(self.event_ns)} events with output, then {self.end_marker}")

    def _incomplete(self, reply_complete: bool, finish_reasons: bool) -> tuple[Failure, str] | None:
        """Return failure and text of an answer that has no other failure; None if it is complete."""
        if self.finish_reason and _INTERRUPTED.search(self.finish_reason.lower()):
            return Failure.SERVER_ERROR, f"the server aborted the answer: finish_reason {self.finish_reason}"
        if not self.finish_reason and _says_why(self.unused):
            return Failure.SERVER_ERROR, "the stream ended with an error"
        if not (self.closed or (reply_complete and self.finish_reason)):
            return Failure.CUT, f"the stream ended without {self.end_marker} or a finish reason"
        if not self.event_ns and not self.output_tokens:  # tokens may have no text
            reason = f", finish reason {self.finish_reason}" if self.finish_reason else ""
            return Failure.EMPTY, f"a complete stream without output tokens{reason}"
        if finish_reasons and not self.finish_reason:
            text = f"the stream ended with {self.end_marker} but without a finish reason, which other answers of the server have"
            return Failure.CUT, text
        return None

    @property
    def tokens_by_event(self) -> array[int] | None:
        """Tokens of each output event, by a running count of the server, or by the texts if they are very uneven; else None."""
        return self.shared_tokens

    def set_times(self, metrics: PerRequestMetrics | None, timings: Timings | None) -> None:
        """Set the times that an event of the server has, if it has any."""
        if timings is not None:
            metrics = PerRequestMetrics(None, timings.prompt_ms, timings.predicted_ms)
            if self.cached_tokens is None:  # as before llama.cpp had them in the usage
                self._set_cached(timings.cache_n)
        if metrics is not None:
            self.metrics = metrics

    def _set_cached(self, tokens: int | None) -> None:
        """Set the number of cached prompt tokens; None if it is larger than the prompt."""
        too_many = tokens is not None and self.input_tokens is not None and tokens > self.input_tokens
        self.cached_tokens = None if too_many else tokens

    def _fail(self, failure: Failure, data: bytes) -> None:
        if self.failure is None:
            self.failure = failure
            self.detail = data[:_DETAIL_BYTES].decode("utf-8", "replace")


def _says_why(event: bytes) -> bool:
    """Return True if an event without output has the text or the code of an error."""
    try:
        document = msgspec.json.decode(event)
    except UNDECODABLE:
        return False
    return isinstance(document, dict) and any(document.get(key) for key in _SAYS_WHY)
