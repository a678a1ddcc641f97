"""What a source gives a chat: whole conversations, or text of any length that is asked for."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import msgspec

from inferload.content.messages import Message, Piece


class GivenTurn(msgspec.Struct, frozen=True):
    """One turn: what is asked, what was answered to it (None: not recorded), and how long the answer is to be."""

    question: tuple[Piece, ...]
    output_tokens: int | None = None
    answer: Piece | None = None


class Given(msgspec.Struct, frozen=True):
    """A session's conversation. `lead`: messages in front of its first turn."""

    turns: tuple[GivenTurn, ...]
    lead: tuple[Message, ...] = ()
    tools: bytes = b""


@dataclass(frozen=True, slots=True)
class Answers:
    """How long a scenario has answers be. `given`: it says so, and they need not be recorded. `tokens`: of one in the mean,
    as later requests carry it; None: as it was recorded."""

    given: bool = False
    tokens: float | None = None


class Source(Protocol):
    """Text of the sessions of one class."""

    @property
    def digest(self) -> str | None: ...

    @property
    def draws(self) -> bool:
        """Whether `given` takes random numbers of the session's own."""
        ...

    def given(self, index: int, rng: Random) -> Given | None:
        """Session `index`'s conversation; None where the scenario says how many turns and how long."""
        ...

    def text(self, key: str, tokens: int) -> Piece:
        """A text of so many tokens, the same for the same key: a message, a document, a system prompt."""
        ...

    def sample(self) -> Sequence[str]: ...
    def warnings(self) -> list[str]: ...
    def facts(self) -> dict[str, Any]: ...
    def in_words(self) -> list[str]: ...


def literal(text: str, tokens: int) -> Piece:
    """A piece of literal text: equal texts are equal pieces, wherever they come from."""
    return Piece(
        f"literal/{hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=12).hexdigest()}", tokens, text
    )
