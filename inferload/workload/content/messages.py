"""Messages of a request before they are text: pieces with an identity and a length.

A plan needs no text: equal pieces are equal text, so pieces alone determine the shared prefixes of requests. Request bodies
(`bodies`) generate the text.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Literal

import msgspec
from msgspec import Struct

Role = Literal["system", "user", "assistant", "tool"]

# Key prefix of pieces that are the same in every session of a run: their text is cached.
SHARED = "shared/"
# Key prefix of blocks of a trace's prompts: sessions may share them, and their text is cached while there is room.
BLOCK = "trace/"
# Key prefix of timestamps: the generated text beside one makes up for its length.
TIME_KEY = f"{SHARED}time/"


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Piece of text; equal pieces are equal text in all sessions of a run.

    `literal` None: random words of `tokens` tokens, seeded by the run's seed and `key`. With a literal, `tokens` is its
    estimated count; None: unknown. `whole`: tokens of the generated text of which this piece is the beginning.
    """

    key: str
    tokens: int | None
    literal: str | None = None
    whole: int | None = None

    def beginning(self, tokens: int) -> "Piece":
        """Return the first tokens of the piece; of a literal the proportional number of characters."""
        if self.tokens is None or tokens >= self.tokens:
            return self
        literal = self.literal if self.literal is None else self.literal[: len(self.literal) * tokens // self.tokens]
        return Piece(self.key, tokens, literal, self.whole or self.tokens)


class ToolCall(Struct, frozen=True):
    """Tool call of the assistant; `arguments` is JSON."""

    call_id: str
    name: str
    arguments: str


def sendable(text: str) -> str:
    """Return the text as valid UTF-8: halves of surrogate pairs joined, single halves replaced."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_ID_CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 9


def made_call_id(origin: str) -> str:
    """Return an id for a call without one, the same for the same origin: nine letters and digits, which Mistral's API needs."""
    number = int.from_bytes(sha256(origin.encode()).digest()[:8])
    return "".join(_ID_CHARACTERS[number // 62**place % 62] for place in range(_ID_LENGTH))


# Content of an answer with neither text nor calls, as JSON: servers refuse null and the empty text.
NO_TEXT = b'"..."'


class Message(msgspec.Struct, frozen=True):
    """Message of a chat. `reasoning`: reasoning text of an assistant message, sent if not empty.

    `native`: the answer of a server, as `history` describes it, which is sent in place of reasoning, tool calls and text; b"" if
    these are all that it has.
    """

    role: Role
    pieces: tuple[Piece, ...]
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None  # of a tool result: the call that it answers
    images: tuple[str, ...] = ()  # URLs, including `data:`, before the text
    native: bytes = b""

    @property
    def tokens(self) -> int | None:
        """Tokens of the text without the chat template; None if those of a piece are unknown."""
        return tokens_of(self.pieces)


def first_tokens(message: Message, tokens: int) -> Message:
    """Return the message cut after `tokens` tokens, without reasoning and tool calls."""
    pieces: list[Piece] = []
    for piece in message.pieces:
        if tokens <= 0:
            break
        pieces.append(piece.beginning(tokens))
        tokens -= pieces[-1].tokens or 0
    return Message(message.role, tuple(pieces), images=message.images)


def tokens_of(parts: Iterable[Piece | Message]) -> int | None:
    """Return the tokens of several pieces or messages together; None if those of one are unknown."""
    total = 0
    for part in parts:
        tokens = part.tokens
        if tokens is None:
            return None
        total += tokens
    return total


def text_message(role: Role, key: str, tokens: int) -> Message:
    """Return a message of one generated piece."""
    return Message(role, (Piece(key, tokens),))
