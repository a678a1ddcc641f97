"""What a completion's event stream says: from the data of its events and their stamps to instants, counts and text. No I/O.

Which events count as output is the rule of docs/measures.md: content, reasoning or a tool-call delta; or an empty delta that
the server's own running token count proves to be a token (half of a multi-byte character, say).
"""

from __future__ import annotations

import re
from array import array
from typing import Any, NamedTuple

import msgspec

from inferload.client.answers.number_bounds import UNDECODABLE, Milliseconds, OutputTokens, TokenId, Tokens, refusal
from inferload.client.answers.token_ids import TokenIds
from inferload.client.answers.tool_calls import ToolCalls
from inferload.measure.record import Failure

DONE = b"[DONE]"
_BROKEN_OFF = ("abort", "error")  # vLLM's and SGLang's words for an answer that they gave up
_NONE = msgspec.Raw()
_DETAIL_BYTES = 4096  # the client redacts them before it cuts them to a line


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


class PerRequestMetrics(msgspec.Struct):
    """vLLM's per-request metrics (`--enable-per-request-metrics`)."""

    queue_time_ms: Milliseconds | None = None
    time_to_first_token_ms: Milliseconds | None = None
    generation_time_ms: Milliseconds | None = None


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


class Template(NamedTuple):
    """What the data of many events have in common: the bytes before and after one text. `visible`: it is no reasoning."""

    before: bytes
    after: bytes
    visible: bool


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
        "token_ids",
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
        self.token_ids: TokenIds | None = None  # where the server was asked for them
        self.metrics: PerRequestMetrics | None = None
        self.closed = False  # [DONE] was seen
        self.failure: Failure | None = None
        self.detail = ""

    def events(self, data: list[bytes], at_ns: list[int]) -> None:
        """Take the data of several events in order, each complete at its instant: decoded in one go where that can be done."""
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
        if len(decoded) != len(data):  # one of them is no event of a completion
            for one, at in zip(data, at_ns, strict=True):
                self.event(one, at)
            return
        if self.first_event_ns is None:
            self.first_event_ns = at_ns[0]
        self.last_event_ns = at_ns[-1]
        for event, at, one in zip(decoded, at_ns, data, strict=True):
            self._take(event, at, one)

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
        except UNDECODABLE as error:
            self._fail(Failure.BAD_EVENT, refusal(error, data))
            return
        self._take(event, at_ns, data)

    def _take(self, event: _Event, at_ns: int, data: bytes) -> None:
        if event.error is not None or event.object == "error":  # the second is how vLLM said it before it had the first
            self._fail(Failure.SERVER_ERROR, data)
            return
        if event.usage is None and self.uncounted and self.first_visible_ns is not None and len(event.choices) == 1:
            choice = event.choices[0]  # nearly every event of a stream takes this short way
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

    def template_of(self, data: bytes) -> Template | None:
        """What further events like this one, taken already, have in common with it; None where that cannot be told.

        Another text in the same place decodes to the same event with that text: seen by decoding one. So of events that fit
        the template nothing but the text and the instant is news, once what the first of them says has been noted.
        """
        found = _TEXT.search(data)
        if found is None or not self.uncounted or self.request_id is None:
            return None
        before, after = data[: found.start(1)], data[found.end(1) :]
        try:
            event, probe = _decode(data), _decode(before + _PROBE + after)
        except UNDECODABLE:
            return None
        visible = _only_text(event)
        if visible is None or _only_text(probe) is not visible or (visible and self.first_visible_ns is None):
            return None
        return Template(before, after, visible) if _with_text(event) == probe else None

    def run(self, template: Template, texts: bytes, at_ns: bytes) -> None:
        """Take events that fit a template of this answer: their texts, still as JSON has them, and their instants as int64."""
        (self.text if template.visible else self.reasoning).append(_decode_text(b'"' + texts + b'"'))
        self.event_ns.frombytes(at_ns)
        self.last_event_ns = self.event_ns[-1]

    def conclude(self, reply_complete: bool) -> None:
        """Say what became of the whole: to be called once, after the last event."""
        if self.failure is None and self.finish_reason in _BROKEN_OFF:
            self.failure = Failure.SERVER_ERROR
            self.detail = f"the server broke the answer off: finish_reason {self.finish_reason}"
        if self.failure is None and not (self.closed or (reply_complete and self.finish_reason)):
            self.failure = Failure.CUT
            self.detail = "the stream ended without [DONE] or a finish reason"
        if self.failure is None and not self.event_ns:
            self.failure = Failure.EMPTY
            self.detail = "a whole stream without one output token"

    def digest_ids(self) -> bool:
        """Read and hash a slice of the token ids that came; True when nothing is left to do."""
        if self.token_ids is None:
            return True
        try:
            return self.token_ids.step()
        except UNDECODABLE as error:
            self._fail(Failure.BAD_EVENT, f"prompt_token_ids: {error}".encode())
            self.token_ids = None
            return True

    def block_hashes(self) -> array[int] | None:
        """Of the whole row as the server's cache has it: prompt and answer but for its last token. None: no ids came."""
        while not self.digest_ids():
            pass
        return None if self.token_ids is None else self.token_ids.hashes()

    @property
    def tokens_by_event(self) -> array[int] | None:
        """Tokens of each output event where the server kept a running count, else None."""
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
        # Usage alone at the end is a total; only beside a choice, and from the first output on, is it a running count. A count
        # that falls is none: tokens of the events are then unknown.
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
            self._cached(usage.prompt_tokens_details.cached_tokens)

    def _cached(self, tokens: int | None) -> None:
        """Book how many of the prompt's tokens were cached; more than the prompt has are unknown."""
        too_many = tokens is not None and self.input_tokens is not None and tokens > self.input_tokens
        self.cached_tokens = None if too_many else tokens

    def _fail(self, failure: Failure, data: bytes) -> None:
        if self.failure is None:
            self.failure = failure
            self.detail = data[:_DETAIL_BYTES].decode("utf-8", "replace")


def _only_text(event: _Event) -> bool | None:
    """Whether an event brings visible text (True) or reasoning (False), and neither a count nor an end; None for any other."""
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
    """The same event with the text that a probe carries in place of its own."""
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
