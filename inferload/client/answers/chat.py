"""Event stream of chat completions and completions: from events and their times to output times, counts and text. No I/O.

An event counts as output (docs/reference/measures.md) if it has content, reasoning or a tool-call delta, or if the server's running
token count grows with it (a token that is half of a multi-byte character, say).

A usage beside a choice is not always a running count: servers send zeros until the end, the total in each event, or the count of
each event. It is one if it is positive from the first text on, never decreases, grows with most texts, and ends at the total.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import compress
from typing import Any

from inferload.client.answers.answer import DONE, Answer, EventFrame, ToolCalls
from inferload.client.answers.chat_events import (
    ROLE,
    WITHOUT_TEXT,
    Choice,
    Delta,
    Event,
    Function,
    OutputDetails,
    ToolCallDelta,
    Usage,
    decode,
    decode_many,
    decode_text,
    frame_of,
    is_plain,
)
from inferload.client.answers.number_bounds import UNDECODABLE
from inferload.client.answers.sse import is_error
from inferload.turns.record import Failure
from inferload.turns.remarks import Remark


class ChatAnswer(Answer):
    """Answer of chat completions or completions."""

    __slots__ = (
        "beside", "carried", "event_tokens", "reasoning_beside", "running_tokens", "total", "total_after",
        "uncounted",
    )  # fmt: skip

    event_type = Event
    keeps = "inferload.client.answers.kept:ChatKept"

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
        if len(data) == 1:
            self.event(data[0], at_ns[0])
            return
        if data[-1] == DONE:
            self.events(data[:-1], at_ns[:-1])
            self.event(DONE, at_ns[-1])
            return
        try:
            decoded = decode_many(b"[" + b",".join(data) + b"]")
        except UNDECODABLE:
            decoded = []
        if len(decoded) != len(data):  # at least one of them is not valid
            for text, event_ns in zip(data, at_ns, strict=True):
                self.event(text, event_ns)
            return
        if self.first_event_ns is None:
            self.first_event_ns = at_ns[0]
        self.last_event_ns = at_ns[-1]
        if self.keeping:
            for text in data:
                self._keep(text)
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
        if self.keeping:
            self._keep(data)
        try:
            event = decode(data)
        except UNDECODABLE as error:
            self.leniently(error, data, at_ns)
            return
        self._process(event, at_ns, data)

    def read(self, event: Event, at_ns: int, data: bytes) -> None:
        """Process one event that was read leniently."""
        self._process(event, at_ns, data)

    def prepare(self, document: dict[str, Any]) -> None:
        """Replace contents that are lists of parts by their texts."""
        from inferload.client.answers.lenient import text_of  # of few servers

        choices = document.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            for name in ("delta", "message") if isinstance(choice, dict) else ():
                delta = choice.get(name)
                if isinstance(delta, dict) and isinstance(delta.get("content"), list | dict):
                    delta["content"], thought = text_of(delta["content"])
                    if thought:
                        delta["reasoning"] = thought

    def _keep(self, data: bytes) -> None:
        """Keep an event. An answer that is only a text needs nothing kept."""
        if self.kept is not None or not is_plain(data):
            self._keeper().event(data)

    def _keeper(self) -> Any:
        begins = self.kept is None
        kept = self.keep()
        if begins and self.text:
            kept.text("content", "".join(self.text))
        return kept

    def _process(self, event: Event, at_ns: int, data: bytes) -> None:
        # Older versions of vLLM have `object: error` instead of `error`.
        if event.object == "error" or (event.error is not None and is_error(event.error)):
            self._fail(Failure.SERVER_ERROR, data)
            return
        in_text = self.uncounted and self.first_visible_ns is not None
        if (
            in_text
            and event.usage is None
            and event.metrics is None
            and event.timings is None
            and len(event.choices) == 1
        ):
            choice = event.choices[0]  # short path of nearly every event, which has only a text
            delta = choice.delta
            if delta is not None and delta.content:
                text, delta.content = delta.content, None
                if choice == WITHOUT_TEXT:
                    self.text.append(text)
                    self.pieces.append(text)
                    self.event_ns.append(at_ns)
                    self.lengths.append(len(text))
                    return
                delta.content = text
        if self.request_id is None:
            self.request_id = event.id
        usage = event.usage
        if event.choices:
            choice = event.choices[0]
            text = self._choice(choice, at_ns)
            usage = choice.usage if usage is None else usage
            finished = self.finish_reason is not None
            blank = not text and "" in (choice.text, choice.delta and choice.delta.content) and not ROLE.search(data)
            self._count(None if usage is None else usage.completion_tokens, text, finished, at_ns, blank)
            if choice.error is not None and is_error(choice.error):
                self._fail(Failure.SERVER_ERROR, data)
        elif usage is None:
            self.unused = data
        elif usage.completion_tokens:
            self.total, self.total_after = usage.completion_tokens, len(self.event_ns)
        if usage is not None:
            self._usage(usage)
        self.set_times(event.metrics, event.timings)

    def frame_of(self, data: bytes) -> EventFrame | None:
        """See Answer.frame_of. Events that match it add nothing but their text and their time."""
        if not self.uncounted or self.request_id is None:
            return None
        frame = frame_of(data)
        return None if frame is None or (frame.visible and self.first_visible_ns is None) else frame

    def add_texts(self, frame: EventFrame, texts: bytes, at_ns: bytes, lengths: bytes) -> None:
        if not self.uncounted:
            self._drop_running_count()
        text = decode_text(b'"' + texts + b'"')
        (self.text if frame.visible else self.reasoning).append(text)
        if self.keeping and (self.kept is not None or frame.key not in ("content", "text")):
            self._keeper().text(frame.key, text)
        self.pieces.append(text)
        self.lengths.frombytes(lengths)
        number = len(self.event_ns)
        self.event_ns.frombytes(at_ns)
        self.last_event_ns = self.event_ns[-1]
        if frame.visible and self.first_visible_ns is None:
            self.first_visible_ns = self.event_ns[number]

    @property
    def tokens_by_event(self) -> array[int] | None:
        return self.shared_tokens if self.uncounted or not self.event_tokens else self.event_tokens

    def _choice(self, choice: Choice, at_ns: int) -> str:
        """Add the text of a choice; return all of its output."""
        if choice.finish_reason:
            self.set_finish_reason(choice.finish_reason)
        delta = choice.delta
        if choice.message is not None and not self.event_ns and (delta is None or delta == Delta()):
            delta = choice.message
        visible = (delta is not None and (delta.content or delta.refusal)) or choice.text or ""
        if visible:
            self.text.append(visible)
            if self.first_visible_ns is None:
                self.first_visible_ns = at_ns
        text = visible if delta is None else self._invisible(delta) + visible
        if text:
            self.pieces.append(text)
        return text

    def _invisible(self, delta: Delta) -> str:
        """Add reasoning and parts of tool calls of a delta; return them."""
        reasoning = delta.reasoning or delta.reasoning_content or delta.thinking or ""
        if not reasoning and delta.reasoning_details:
            from inferload.client.answers.lenient import text_of  # of few servers

            reasoning = "".join(text_of(delta.reasoning_details))
        if reasoning:
            self.reasoning.append(reasoning)
        text = reasoning
        if delta.function_call is not None:
            delta.tool_calls = [ToolCallDelta(0, None, delta.function_call)]
        for position, call in enumerate(delta.tool_calls or ()):
            function = call.function or Function()
            if not (call.id or function.name or function.arguments):
                continue
            text += (function.name or "") + (function.arguments or "") or call.id or ""
            if self.tool_calls is None:
                self.tool_calls = ToolCalls()
            key = f"at {position}" if call.index is None else call.index
            self.tool_calls.add(key, call.id, function.name, function.arguments)
        return text

    def _count(self, total: int | None, text: str, finished: bool, at_ns: int, blank: bool) -> None:
        """Count an event as output by its text or the running count. `total`: of its usage; `blank`: its text is empty."""
        carried = bool(text)
        if total is not None:
            self.beside.add(total, finished)
        if not self.uncounted and self._refuted(total, carried, finished):
            self._drop_running_count()
        running = None if self.uncounted else total
        if carried or (running is not None and running > self.running_tokens):
            self.event_ns.append(at_ns)
            self.lengths.append(len(text))
            if running is not None:
                self.event_tokens.append(running - self.running_tokens)
                self.carried.append(carried)
                self.running_tokens = running
        elif blank and finished:
            self.last_blank_ns = at_ns
        elif blank:
            self.blank_ns.append(at_ns)

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
        self.lengths = array("i", compress(self.lengths, self.carried))

    def _grows(self) -> bool:
        """Return True if the count grew with the first text and with most of the others."""
        grown = [tokens > 0 for tokens in compress(self.event_tokens, self.carried)]
        return not grown or (grown[0] and (len(grown) == 1 or 2 * sum(grown[1:]) > len(grown) - 1))

    def settle_usage(self) -> None:
        """Set the number of output tokens, and drop a running count that was none."""
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

    def _usage(self, usage: Usage) -> None:
        if usage.prompt_tokens:
            self.input_tokens = usage.prompt_tokens
        self.zero_usage |= usage.completion_tokens == 0
        details = usage.prompt_tokens_details
        cached = None if details is None else details.cached_tokens
        if cached is None:
            cached = usage.cached_tokens if usage.prompt_cache_hit_tokens is None else usage.prompt_cache_hit_tokens
        if cached or self.cached_tokens is None:
            self._set_cached(cached)
        spent = usage.completion_tokens_details or OutputDetails()
        reasoning = spent.reasoning_tokens or 0
        counted = (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
        self.reasoning_beside = reasoning if usage.total_tokens == counted + reasoning else 0
        self.reasoning_tokens = 0 if self.reasoning_beside else reasoning
        self.unseen_tokens = (spent.rejected_prediction_tokens or 0) + (spent.audio_tokens or 0)


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
