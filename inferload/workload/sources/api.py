"""Interface of text sources: recorded sessions, or generated text of a given length."""

import hashlib
from random import Random
from typing import Protocol

import msgspec
from msgspec import Struct

from inferload.workload.content.data import DataFacts
from inferload.workload.content.messages import Message, Piece


class SourceTurn(msgspec.Struct, frozen=True):
    """One turn of a source: question, planned tokens of the answer, recorded answer. None: not recorded."""

    question: tuple[Piece, ...]
    output_tokens: int | None = None
    answer: Piece | None = None


class SourceSession(msgspec.Struct, frozen=True):
    """Conversation of one session. `lead`: messages before the first turn."""

    turns: tuple[SourceTurn, ...]
    lead: tuple[Message, ...] = ()
    tools: bytes = b""


class AnswerLengths(Struct, frozen=True):
    """Answer lengths of a scenario.

    `planned`: the scenario sets them. `mean`: mean tokens of an answer in later requests; None: the recorded lengths.
    """

    planned: bool = False
    mean: float | None = None


class Source(DataFacts, Protocol):
    """Text source of one class."""

    def session(self, index: int, rng: Random) -> SourceSession | None:
        """Return the conversation of session `index`; None if the scenario sets its turns and lengths."""
        return None

    def text(self, key: str, tokens: int) -> Piece:
        """Return a generated text (message, document, system prompt), the same for the same key."""
        ...


def literal(text: str, tokens: int) -> Piece:
    """Return a piece of literal text. Equal texts are equal pieces."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return Piece(f"literal/{digest}", tokens, text)
