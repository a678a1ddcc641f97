"""Checks of the texts of an answer for hidden tokens, a repeated answer, and thoughts in the content. No I/O."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import numpy as np

from inferload.client.answers.number_bounds import UNDECODABLE
from inferload.client.answers.streamed_tokens import TOLERANCE, Streamed, streamed_tokens
from inferload.turns.remarks import Remark

_EVENTS_BEFORE, _CHARACTERS = 3, 32  # of a text that is not repeated by chance: events before it, or its length
_SHOWN = 80  # characters of an example
_PARSED = 2  # tokens around the reasoning that a parser takes away
_PARTS = 8  # tokens of an event that are parts of characters, or a draft of them
# Texts that begin and end the thoughts of models.
_TAGS = (
    ("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<thought>", "</thought>"), ("<seed:think>", "</seed:think>"),
    ("<reasoning>", "</reasoning>"), ("[THINK]", "[/THINK]"), ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"), ("<|channel|>analysis", "<|channel|>final<|message|>"), ("◁think▷", "◁/think▷"),
)  # fmt: skip
_START = 64  # characters, with blanks in front, in which a text begins with a tag

_FIELDS = msgspec.json.Decoder(dict[str, Any])
Answer = Any  # of the module answer, which imports this one for the answers that need it


def look(answer: Answer, begins: list[int]) -> None:
    """Complete an answer by its texts. `begins`: of the streams of the client so far, see Frames; they are added to."""
    _drop_repeat(answer)
    if not answer.reasoning:
        _look_for_thoughts(answer)
    if answer.output_tokens:
        _count_streamed(answer, answer.output_tokens, begins)
    elif answer.held and answer.event_ns:
        answer.remark(Remark.STOP_STRING, f"{answer.held} characters held, an unknown number of tokens")


def _drop_repeat(answer: Answer) -> None:
    """Drop a last event that repeats all text, as the end of some bridges does.

    One token may do so by chance, and so does an event of an answer that goes round in a loop.
    """
    last = next((at for at in reversed(range(len(answer.lengths))) if answer.lengths[at]), 0)
    size = answer.lengths[last] if answer.lengths else 0
    text, reasoning = "".join(answer.text), "".join(answer.reasoning)
    by_chance = size < _CHARACTERS and (last < _EVENTS_BEFORE or answer.lengths[last - 1] == size)
    end, tokens = "".join(answer.pieces)[-size:], answer.output_tokens or 0
    by_chance |= tokens > last + 1 and end in (end + end)[1:-1]
    if by_chance or 2 * size < len(text):
        return
    halves = [len(part) // 2 if _is_doubled(part) else 0 for part in (text, reasoning)]
    if last and size in (halves[0], sum(halves)):
        answer.remark(Remark.REPEATED_TEXT, text[:_SHOWN])
        if halves[0]:
            answer.text = [text[halves[0] :]]
        if size == sum(halves) and halves[1]:
            answer.reasoning = [reasoning[halves[1] :]]
        answer.pieces = ["".join(answer.pieces)[:-size]]
        running = not getattr(answer, "uncounted", True)
        for values in ("event_ns", "lengths", *(("event_tokens", "carried") if running else ())):
            del getattr(answer, values)[last : last + 1]


def _look_for_thoughts(answer: Answer) -> None:
    """Set the first visible output of an answer with thoughts in its content to the one behind them."""
    end = _end_of_thoughts("".join(answer.text))
    if end is not None:
        answer.remark(Remark.INLINE_THOUGHTS, "".join(answer.text)[:_SHOWN])
        at = int(np.searchsorted(np.cumsum(answer.lengths), end, side="right"))
        answer.first_visible_ns = answer.event_ns[at] if at < len(answer.event_ns) else None


def _count_streamed(answer: Answer, tokens: int, begins: list[int]) -> None:
    """Set the number of hidden tokens, and those of each event: as the texts and the server itself tell."""
    visible = _visible(answer, tokens)
    by_event, pieces = answer.tokens_by_event, "".join(answer.pieces)
    if by_event is None and visible > len(answer.event_ns):
        visible = _with_blanks(answer, visible)
    if answer.held:
        _count_held(answer, by_event, visible, pieces, begins)
        return
    events, lengths = len(answer.event_ns), answer.lengths
    if by_event:  # no figure has tokens of the first event
        later = streamed_tokens(pieces[lengths[0] :], lengths[1:], tokens - by_event[0], begins, counted=True)
        hides = later.tokens and _has_more(by_event, lengths)
        found = Streamed(None, remark=Remark.HIDDEN_TOKENS) if hides else later._replace(tokens=later.tokens and tokens)
    elif answer.veiled and visible != events:
        found = Streamed(None, remark=Remark.HIDDEN_TOKENS)
    elif answer.reasoning and answer.text and 0 < visible - events <= _PARSED + (answer.finish_reason == "stop"):
        found = Streamed(events + 1)  # one of them between reasoning and text
    else:
        ends = int(answer.last_blank_ns is not None and visible > events + 1)  # with a token after those with a text
        found = streamed_tokens(pieces, lengths, visible - ends, begins)
        if found.by_event is not None and visible < tokens:  # token rates need shares of all tokens
            found = Streamed(None if found.remark else visible, remark=found.remark)
        elif found.by_event is not None:
            found.by_event[-1] += ends
    answer.hidden_tokens = None if found.tokens is None else tokens - found.tokens
    answer.shared_tokens = found.by_event
    if found.remark is not None:
        answer.remark(found.remark, f"{tokens} output tokens, {events} events with output")


def _count_held(answer: Answer, by_event: array[int] | None, visible: int, text: str, begins: list[int]) -> None:
    """Set the number of hidden tokens of an answer whose texts are later than their tokens by the characters held.

    vLLM sends an event without a text for each held token, but not behind a parser, nor with its Rust front end.
    """
    tokens = visible - int(answer.finish_reason == "stop" and visible == answer.output_tokens)  # one without a text
    first = by_event[0] if by_event else 1 + max(0, tokens - len(answer.event_ns))
    usual = max(by_event[1:], default=1) if by_event else 1  # tokens of an event
    # A token has a byte or more.
    most = round(answer.held * len(text.encode("utf-8", "surrogatepass")) / max(1, len(text)))
    answer.hidden_tokens = 0
    if by_event is None and first > usual + most and most <= TOLERANCE * visible:  # other tokens than the held ones
        ends = array(answer.lengths.typecode, answer.lengths)
        ends[0], ends[-1] = ends[0] + answer.held, max(0, ends[-1] - answer.held)  # where tokens end, if it holds texts
        found = streamed_tokens(text, ends, tokens, [*begins])
        if found.remark is Remark.LOW_USAGE:  # the server does not hold them
            found = streamed_tokens(text, answer.lengths, tokens, begins)
        answer.hidden_tokens = None if found.tokens is None else tokens - found.tokens
        if found.remark is not None:
            answer.remark(found.remark, f"{visible} output tokens, {len(answer.event_ns)} events with output")
    elif first > usual:
        answer.hidden_tokens = 0 if by_event else None
        upto = f"{min(first, usual + most)} tokens up to the first text"
        answer.remark(Remark.STOP_STRING, f"{upto}, {answer.held} characters held")


def held_for_stops(body: bytes) -> int:
    """Return how many characters of an answer a server holds back, as they may begin a stop string of the request."""
    try:
        asked = _FIELDS.decode(body)
    except UNDECODABLE:
        return 0
    stops = [asked.get("stop"), asked.get("stop_sequences")]
    texts = [each for stop in stops for each in (stop if isinstance(stop, list) else [stop]) if isinstance(each, str)]
    return 0 if asked.get("include_stop_str_in_output") else max((len(text) - 1 for text in texts if text), default=0)


def _visible(answer: Answer, tokens: int) -> int:
    """Return the output tokens without those that the server names as hidden."""
    hidden, inline = answer.unseen_tokens, Remark.INLINE_THOUGHTS in answer.remarks
    if not (answer.reasoning or inline):
        hidden += answer.reasoning_tokens
        answer.veiled &= not answer.reasoning_tokens
    elif sum(map(len, answer.reasoning)) < answer.reasoning_tokens and not inline:
        answer.veiled = True  # the reasoning is a summary
    if not 0 < hidden <= tokens - len(answer.event_ns):
        return tokens
    answer.remark(Remark.HIDDEN_TOKENS, f"{tokens} output tokens, {hidden} of them hidden by the server's own count")
    return int(tokens - hidden)


def _has_more(by_event: array[int], lengths: array[int]) -> bool:
    """Return True if events after the first count more tokens than their texts can have."""
    later = np.array(by_event[1:]) - np.array(lengths[1:]) - _PARTS
    return bool(later.clip(min=0).sum() > TOLERANCE * sum(by_event[1:]))


def _with_blanks(answer: Answer, tokens: int) -> int:
    """Return the streamed tokens: if each event, with the empty ones, has one, these are output; else all.

    The end of the answer is a token without a text.
    """
    left = tokens - len(answer.event_ns) - len(answer.blank_ns)
    ends_itself = answer.finish_reason in ("stop", "tool_calls")
    if left not in (0, 1) or (left and not ends_itself and answer.last_blank_ns is None):
        return tokens
    if left and not ends_itself and answer.last_blank_ns is not None:
        answer.blank_ns.append(answer.last_blank_ns)
    if answer.blank_ns:
        at_ns = np.concatenate([answer.event_ns, answer.blank_ns])
        order = np.argsort(at_ns, kind="stable")
        lengths = np.concatenate([answer.lengths, np.zeros(len(answer.blank_ns), dtype=np.int32)])
        answer.event_ns = array("q", at_ns[order].astype(np.int64).tobytes())
        answer.lengths = array("i", lengths[order].astype(np.int32).tobytes())
    return len(answer.event_ns)


def _end_of_thoughts(text: str) -> int | None:
    """Return the position of the first visible character behind the thoughts; None without them.

    That is the length of the text if they never end, or nothing visible follows. If a template has opened them, only their end is
    streamed.
    """
    start = text[:_START].lstrip()
    for begin, end in _TAGS:
        at = text.find(end)
        if start.startswith(begin) or (at >= 0 and begin not in text[:at]):
            rest = "" if at < 0 else text[at + len(end) :].lstrip()
            return len(text) - len(rest)
    return None


def _is_doubled(text: str) -> bool:
    half = len(text) // 2
    return len(text) == 2 * half and text.startswith(text[half:])
