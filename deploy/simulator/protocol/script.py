"""Content of an answer by token: reasoning, words, tool calls, and tokens without text. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .text import WordSequence

REASONING, CONTENT, SILENT, CALL, ARGUMENTS = "reasoning", "content", "silent", "call", "arguments"
THINK_END, CALL_OPEN, CALL_CLOSE, TEXT_END = "</think>", "<tool_call>", "</tool_call>", "<|im_end|>"
_ARGUMENT_TOKEN = 4  # characters; about the length of a JSON token


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Call of a function. `arguments` is JSON text."""

    call_id: str
    name: str
    arguments: str


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

    def tokens(self, first: int, count: int) -> list[str]:
        """Raw texts of tokens [first, first + count), as in the chat history and the KV cache."""
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
        """Tool calls among the first `count` tokens. The arguments of the last one may be incomplete."""
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


def plan(
    answer: WordSequence, limit: int, natural: int | None, think: int, *, calls: tuple[ToolCall, ...], filled: bool
) -> tuple[Script, int, bool]:
    """Plan an answer: reasoning, then words or calls, cut at the limit. Return it, its tokens, and whether it ends itself.

    `natural`: natural length, None for an answer up to the limit. Calls replace the words; with `filled`, words before them fill
    the answer up to the limit.
    """
    head = think + 1 if think else 0
    if calls:
        tail = call_pieces(calls)
        words = max(0, limit - head - len(tail)) if filled else 0
        script = Script(answer, think, head + words, tail, calls)
        total = head + words + len(tail)
    elif natural is None:
        return Script(answer, think, max(head, limit)), limit, False
    else:
        script = Script(answer, think, head + natural - 1, (_END,))
        total = head + natural
    return script, min(total, limit), total <= limit
