"""Content of an answer by token: reasoning, words, tool calls, and tokens without text. Pure."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from inferload.content.messages import ToolCall

from .text import VOCABULARY, WordSequence

REASONING, CONTENT, SILENT, CALL, ARGUMENTS = "reasoning", "content", "silent", "call", "arguments"
THINK_END, CALL_OPEN, CALL_CLOSE, TEXT_END = "</think>", "<tool_call>", "</tool_call>", "<|im_end|>"
_ARGUMENT_TOKEN = 4  # characters; about the length of a JSON token


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """Contribution of one token to the answer. `token` is its raw text, `call` the index of the tool call."""

    kind: str
    text: str
    token: str
    call: int = 0


@dataclass(frozen=True, slots=True)
class Script:
    """Tokens in order: `think` reasoning tokens and a closing one if above 0, words up to `body`, then `tail`."""

    answer: WordSequence
    think: int
    body: int
    tail: tuple[TokenPiece, ...] = ()
    calls: tuple[ToolCall, ...] = ()

    def piece(self, index: int) -> TokenPiece:
        """Token `index` (from 0)."""
        if index >= self.body:
            return self.tail[index - self.body] if index - self.body < len(self.tail) else _END
        if self.think and index == self.think:
            return _THINK_END
        word = self.answer.word(index)
        return TokenPiece(REASONING if index < self.think else CONTENT, word if index == 0 else " " + word, word)

    def token(self, index: int) -> str:
        """Raw text of token `index`, as in the chat history and the KV cache."""
        return self.piece(index).token

    def words(self, count: int) -> str:
        """Text of the words among the first `count` tokens."""
        count = min(count, self.body)
        if not self.think or count <= self.think:
            return self.answer.text(0, count)
        return self.answer.text(0, self.think) + self.answer.text(self.think + 1, count - self.think - 1)

    def tokens(self, first: int, count: int) -> list[str]:
        """Raw texts of tokens [first, first + count)."""
        if first > self.think and first + count <= self.body:
            return self.answer.words(first, count)
        return [self.piece(index).token for index in range(first, first + count)]

    def pieces(self, first: int, count: int) -> Iterator[TokenPiece]:
        """Tokens [first, first + count)."""
        return (self.piece(index) for index in range(first, first + count))

    def text(self, kind: str, count: int) -> str:
        """Text of one kind among the first `count` tokens."""
        return "".join(piece.text for piece in self.pieces(0, count) if piece.kind == kind)

    def reasoning_tokens(self, count: int) -> int:
        """Number of reasoning tokens among the first `count`."""
        return min(self.think, count)

    def calls_begun(self, count: int) -> list[ToolCall]:
        """Tool calls of the first `count` tokens; the arguments of the last one may be incomplete."""
        calls: list[ToolCall] = []
        for piece in self.pieces(min(self.body, count), max(0, count - self.body)):
            if piece.kind == CALL:
                calls.append(replace(self.calls[piece.call], arguments=""))
            elif piece.kind == ARGUMENTS:
                calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + piece.text)
        return calls


_END = TokenPiece(SILENT, "", TEXT_END)
_THINK_END = TokenPiece(SILENT, "", THINK_END)


def call_pieces(calls: Sequence[ToolCall]) -> tuple[TokenPiece, ...]:
    """Tokens of tool calls, followed by the end-of-text token."""
    pieces: list[TokenPiece] = []
    for number, call in enumerate(calls):
        pieces += (TokenPiece(SILENT, "", CALL_OPEN), TokenPiece(CALL, call.name, call.name, number))
        for start in range(0, len(call.arguments), _ARGUMENT_TOKEN):
            part = call.arguments[start : start + _ARGUMENT_TOKEN]
            pieces.append(TokenPiece(ARGUMENTS, part, part, number))
        pieces.append(TokenPiece(SILENT, "", CALL_CLOSE))
    return (*pieces, _END)


def make_call(name: str, arguments: Any, random: Random) -> ToolCall:
    """Build a tool call with an id in vLLM's format."""
    return ToolCall(f"chatcmpl-tool-{random.getrandbits(64):016x}", name, json.dumps(arguments, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Limits of an answer.

    `natural` is the natural length, or None if the answer is cut at `limit`. A non-empty `tail` (tool calls or a JSON
    document) replaces the words. `filled`: words before the tail fill the answer up to `limit` tokens.
    """

    limit: int
    natural: int | None
    think: int
    tail: tuple[TokenPiece, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    filled: bool = False
    stops: tuple[str, ...] = ()
    min_tokens: int = 0  # stop strings are ignored before
    include_stop: bool = False  # keep the stop string at the end of the text


@dataclass(frozen=True, slots=True)
class Ending:
    """Script with its number of output tokens, natural or forced end, and the stop string that ends it."""

    script: Script
    tokens: int
    ends_itself: bool
    stop: str | None = None


def plan(answer: WordSequence, limits: AnswerLimits) -> Ending:
    """Plan an answer: reasoning, then words or calls, cut at the limit or at a stop string."""
    head = limits.think + 1 if limits.think else 0
    if limits.tail:
        words = max(0, limits.limit - head - len(limits.tail)) if limits.filled else 0
        script = Script(answer, limits.think, head + words, limits.tail, limits.calls)
        total: int | None = head + words + len(limits.tail)
    elif limits.natural is None:
        script, total = Script(answer, limits.think, max(head, limits.limit)), None
    else:
        script = Script(answer, limits.think, head + limits.natural - 1, (_END,))
        total = head + limits.natural
    ends_itself = total is not None and total <= limits.limit
    ending = Ending(script, total if ends_itself and total is not None else limits.limit, ends_itself)
    return _stopped(ending, limits) if limits.stops else ending


def _stopped(ending: Ending, limits: AnswerLimits) -> Ending:
    """Cut an answer at the first stop string that ends after `min_tokens` tokens.

    Words repeat after one round of the vocabulary, so only the first round and the length of a stop string are searched. Tool
    calls are searched in raw form, including name and markers.
    """
    stops = limits.stops
    script = ending.script
    searched = min(ending.tokens, limits.min_tokens + ending.script.think + 1 + len(VOCABULARY) + max(map(len, stops)))
    searched = ending.tokens if limits.tail else searched
    text, ignored = _raw_text(script, searched), len(_raw_text(script, limits.min_tokens)) if limits.min_tokens else 0
    matches = [(text.find(stop, max(0, ignored + 1 - len(stop))), stop) for stop in stops]
    ends = [(start + len(stop), stop) for start, stop in matches if start >= 0]
    if not ends:
        return ending
    end, stop = min(ends)
    pieces = list(script.pieces(0, min(searched, end)))  # tokens without text precede tokens with text
    text_end, length, tokens = end if limits.include_stop else end - len(stop), 0, []
    for piece in pieces:
        tokens.append(_until(piece, max(0, text_end - length)))
        length += len(_raw(piece))
        if length >= end:
            break
    unchanged = next((index for index, piece in enumerate(tokens) if piece != pieces[index]), len(tokens))
    think = min(script.think, len(tokens))
    body = min(unchanged, script.body)
    calls = script.calls[: sum(piece.kind == CALL for piece in tokens)]
    return Ending(Script(script.answer, think, body, tuple(tokens[body:]), calls), len(tokens), True, stop)


def _raw_text(script: Script, count: int) -> str:
    """Raw text of the first `count` tokens."""
    return script.words(count) + "".join(map(_raw, script.tail[: max(0, count - script.body)]))


def _raw(piece: TokenPiece) -> str:
    """Raw text of a token before the tool parser: calls in Hermes' format; empty for the end of the text."""
    if piece.kind == CALL:
        return f'{_CALL_PREFIX}{piece.text}", "arguments": '
    return _MARKS.get(piece.token, "") if piece.kind == SILENT else piece.text


_CALL_PREFIX = '{"name": "'
_MARKS = {CALL_OPEN: f"{CALL_OPEN}\n", CALL_CLOSE: f"}}\n{CALL_CLOSE}"}


def _until(piece: TokenPiece, length: int) -> TokenPiece:
    """Cut a token to `length` characters; a call with a cut name becomes silent."""
    if piece.kind == CALL:
        return piece if length >= len(_CALL_PREFIX) + len(piece.text) + 1 else TokenPiece(SILENT, "", piece.token)
    return piece if piece.kind == SILENT else TokenPiece(piece.kind, piece.text[:length], piece.token, piece.call)
