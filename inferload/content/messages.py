"""What a request's context is made of, before it is text: pieces with an identity and a length, messages of pieces.

A plan needs no text: equal pieces are equal text, so what two requests share can be told from their pieces alone. The
text itself is made when a request's body is (`bodies`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]

# Pieces whose key begins so are the same in every session of a run: their text is kept, not made anew.
SHARED = "shared/"
# Blocks of a recorded trace's prompts: some are the same in many sessions, and are kept as long as there is room.
BLOCK = "trace/"


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A stretch of text. `literal` None: words drawn by the run's seed and `key`, of `tokens` tokens; equal pieces are
    equal text in all sessions of a run. With a literal, `tokens` is what it is thought to cost; None: not known.
    `whole`: it is only the beginning, of `tokens` tokens, of the text that a piece of that many would be."""

    key: str
    tokens: int | None
    literal: str | None = None
    whole: int | None = None

    def beginning(self, tokens: int) -> "Piece":
        """Its first tokens. Of a literal the first characters, by their share: about so many tokens."""
        if self.tokens is None or tokens >= self.tokens:
            return self
        literal = self.literal if self.literal is None else self.literal[: len(self.literal) * tokens // self.tokens]
        return Piece(self.key, tokens, literal, self.whole or self.tokens)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the assistant made; `arguments` is JSON."""

    call_id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True):
    """One message. `reasoning`: what the assistant thought before it, sent back only where there is any."""

    role: Role
    pieces: tuple[Piece, ...]
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None  # of a tool's result: which call it answers
    images: tuple[str, ...] = ()  # URLs, `data:` included, in front of the text

    @property
    def tokens(self) -> int | None:
        """Tokens of its own text, without what a chat template puts around it; None where a piece's are not known."""
        return tokens_of(self.pieces)


def first_tokens(message: Message, tokens: int) -> Message:
    """A message that ends after so many of its tokens; reasoning and calls of tools are left out."""
    kept: list[Piece] = []
    for piece in message.pieces:
        if tokens <= 0:
            break
        kept.append(piece.beginning(tokens))
        tokens -= kept[-1].tokens or 0
    return Message(message.role, tuple(kept), images=message.images)


def tokens_of(pieces: Iterable[Piece]) -> int | None:
    """Tokens of several pieces together; None where one's are not known."""
    total = 0
    for piece in pieces:
        if piece.tokens is None:
            return None
        total += piece.tokens
    return total


def text_message(role: Role, key: str, tokens: int) -> Message:
    """A message of one piece of made-up text."""
    return Message(role, (Piece(key, tokens),))
