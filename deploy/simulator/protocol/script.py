"""Content of an answer by token: reasoning, words, tool calls, and invisible tokens. Pure."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from .text import VOCABULARY, Answer

REASONING, CONTENT, SILENT, CALL, ARGUMENTS = "reasoning", "content", "silent", "call", "arguments"
THINK_END, CALL_OPEN, CALL_CLOSE, TEXT_END = "</think>", "<tool_call>", "</tool_call>", "<|im_end|>"
_ARGUMENT_TOKEN = 4  # characters; about the length of a token of JSON


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """Contribution of one token to the answer. `token` is its raw text, `call` the index of the tool call."""

    kind: str
    text: str
    token: str
    call: int = 0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call: its id, the function, and the arguments as JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Script:
    """Tokens in order: `think` reasoning tokens and a closing one if above 0, words up to `body`, then `tail`."""

    answer: Answer
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
        """Token `index` as it stands in the history, and in the KV cache."""
        return self.piece(index).token

    def words(self, count: int) -> str:
        """Text of the first `count` tokens of an answer that consists of words only."""
        count = min(count, self.body)
        if not self.think or count <= self.think:
            return self.answer.text(0, count)
        return self.answer.text(0, self.think) + self.answer.text(self.think + 1, count - self.think - 1)

    def tokens(self, first: int, count: int) -> list[str]:
        """Tokens [first, first + count) as `token` has them."""
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
        """The tool calls that the first `count` tokens name, with as much of the arguments as they hold."""
        begun: list[ToolCall] = []
        for piece in self.pieces(min(self.body, count), max(0, count - self.body)):
            if piece.kind == CALL:
                begun.append(ToolCall(self.calls[piece.call].id, self.calls[piece.call].name, ""))
            elif piece.kind == ARGUMENTS:
                begun[-1] = ToolCall(begun[-1].id, begun[-1].name, begun[-1].arguments + piece.text)
        return begun


_END = TokenPiece(SILENT, "", TEXT_END)
_THINK_END = TokenPiece(SILENT, "", THINK_END)


def call_pieces(calls: Sequence[ToolCall]) -> tuple[TokenPiece, ...]:
    """Tokens of tool calls, followed by the end of the text."""
    pieces: list[TokenPiece] = []
    for number, call in enumerate(calls):
        pieces += (TokenPiece(SILENT, "", CALL_OPEN), TokenPiece(CALL, call.name, call.name, number))
        for start in range(0, len(call.arguments), _ARGUMENT_TOKEN):
            part = call.arguments[start : start + _ARGUMENT_TOKEN]
            pieces.append(TokenPiece(ARGUMENTS, part, part, number))
        pieces.append(TokenPiece(SILENT, "", CALL_CLOSE))
    return (*pieces, _END)


def make_call(name: str, arguments: Any, dice: Random) -> ToolCall:
    """A call with an id in vLLM's form."""
    return ToolCall(f"chatcmpl-tool-{dice.getrandbits(64):016x}", name, json.dumps(arguments, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Limits of an answer. `natural` is its own length, or None if it is cut at `limit`. `tail` replaces the words if not empty:
    tool calls, or a JSON document. `filled`: words before the tail fill the answer up to `limit` tokens.
    """

    limit: int
    natural: int | None
    think: int
    tail: tuple[TokenPiece, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    filled: bool = False
    stops: tuple[str, ...] = ()
    least: int = 0  # tokens before a stop string counts
    stop_shown: bool = False  # it stays at the end of the text


@dataclass(frozen=True, slots=True)
class Ending:
    """Script with its number of output tokens, natural or forced end, and the stop string that ended it."""

    script: Script
    tokens: int
    ends_itself: bool
    stop: str | None = None


def plan(answer: Answer, limits: AnswerLimits) -> Ending:
    """Lay out an answer: thought first, then words or calls, cut at the limit or at a stop string."""
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
    """Cut an answer at the first stop string that ends after `least` tokens.

    Words come again after a round of the vocabulary: what is not in the first round and a little more is nowhere. A call is
    looked through as the model writes it, its name and marks included.
    """
    stops = limits.stops
    script = ending.script
    looked_at = min(ending.tokens, limits.least + ending.script.think + 1 + len(VOCABULARY) + max(map(len, stops)))
    looked_at = ending.tokens if limits.tail else looked_at
    text, before = _said(script, looked_at), len(_said(script, limits.least)) if limits.least else 0
    places = [(text.find(stop, max(0, before + 1 - len(stop))), stop) for stop in stops]
    found = [(place + len(stop), stop) for place, stop in places if place >= 0]
    if not found:
        return ending
    end, stop = min(found)
    pieces = list(script.pieces(0, min(looked_at, end)))  # a token may have no letter, and one of them does
    cut, length, kept = end if limits.stop_shown else end - len(stop), 0, []
    for piece in pieces:
        kept.append(_until(piece, max(0, cut - length)))
        length += len(_written(piece))
        if length >= end:
            break
    whole = next((place for place, piece in enumerate(kept) if piece != pieces[place]), len(kept))
    think = min(script.think, len(kept))
    body = min(whole, script.body)
    calls = script.calls[: sum(piece.kind == CALL for piece in kept)]
    return Ending(Script(script.answer, think, body, tuple(kept[body:]), calls), len(kept), True, stop)


def _said(script: Script, count: int) -> str:
    """Raw text of the first `count` tokens."""
    return script.words(count) + "".join(map(_written, script.tail[: max(0, count - script.body)]))


def _written(piece: TokenPiece) -> str:
    """Raw text of a token before the tool parser: calls in Hermes' form, nothing for the end of the text."""
    if piece.kind == CALL:
        return f'{_NAMED}{piece.text}", "arguments": '
    return _MARKS.get(piece.token, "") if piece.kind == SILENT else piece.text


_NAMED = '{"name": "'
_MARKS = {CALL_OPEN: f"{CALL_OPEN}\n", CALL_CLOSE: f"}}\n{CALL_CLOSE}"}


def _until(piece: TokenPiece, most: int) -> TokenPiece:
    """Cut a token to `most` characters; a call with a cut name becomes silent."""
    if piece.kind == CALL:
        return piece if most >= len(_NAMED) + len(piece.text) + 1 else TokenPiece(SILENT, "", piece.token)
    return piece if piece.kind == SILENT else TokenPiece(piece.kind, piece.text[:most], piece.token, piece.call)
