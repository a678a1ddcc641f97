"""Request bodies: complete JSON out of messages, in the dialect of the run's endpoint, each message encoded once.

A body of half a megabyte is mostly history; so every message is kept as bytes and a turn only joins them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Literal

import msgspec

from inferload.content.messages import BLOCK, SHARED, Message, Piece
from inferload.content.prompts import Vocabulary
from inferload.content.script import Ask
from inferload.requests.dialects import DIALECTS, sendable
from inferload.scenario.scenario import Request, Scenario
from inferload.scenario.schema.frozen import thaw


@dataclass(frozen=True, slots=True)
class Isolation:
    """How a session's prefixes are kept apart: a `cache_salt` (vLLM), a unique first line (any server), or not."""

    kind: Literal["salt", "first_line", "none"] = "none"
    value: str = ""

    @property
    def first_line(self) -> str:
        """What stands in front of a context's first message."""
        return f"[{self.value}]\n" if self.kind == "first_line" else ""


def isolation(isolate: Literal["run", "session", "none"], run_id: str, index: int, takes_salt: bool) -> Isolation:
    """What a scenario's `cache.isolate` means for session `index` of a run, on a server that takes salts or does not."""
    if isolate == "none":
        return Isolation()
    return Isolation("salt" if takes_salt else "first_line", run_id if isolate == "run" else f"{run_id}:{index}")


@dataclass(frozen=True, slots=True)
class Settings:
    """What all bodies of a run have in common. `seed` is the run's: made-up text follows from it and from its key."""

    model: str
    request: Request
    seed: int = 0
    token_ids: bool = False  # the server is to say which tokens each prompt and answer came to

    @classmethod
    def of(cls, scenario: Scenario, model: str) -> "Settings":
        """The scenario's part, with the model of the run."""
        return cls(model, scenario.request, scenario.seed, scenario.cache.token_ids)


class Texts:
    """The text of pieces. What all sessions share is kept, encoded; the rest is made when it is asked for."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self.vocabulary = vocabulary
        self._seed = seed
        self._texts: dict[Piece, str] = {}
        self._shared: dict[tuple[str, tuple[Piece, ...]], bytes] = {}
        self._endings: dict[tuple[str, int, bool, int | None], tuple[Request, bytes]] = {}

    def of(self, piece: Piece) -> str:
        """The piece's text."""
        if piece.literal is not None:
            return piece.literal
        if not piece.key.startswith(_KEPT):
            return self._made(piece)
        found = self._texts.get(piece)
        if found is None:
            found = self._made(piece)
            if len(self._texts) < _SHARED_KEPT:
                self._texts[piece] = found
        return found

    def _made(self, piece: Piece) -> str:
        rng = Random(f"{self._seed}/{piece.key}")
        if piece.whole is None:
            return self.vocabulary.text(piece.tokens or 1, rng)
        return self.vocabulary.beginning(self.vocabulary.text(piece.whole, rng), piece.tokens or 1)

    def encoded(self, pieces: tuple[Piece, ...], first_line: str = "") -> bytes:
        """Several pieces as one JSON string, behind a first line."""
        for piece in pieces:
            if not piece.key.startswith(SHARED):
                return self._encode(pieces, first_line)
        found = self._shared.get((first_line, pieces))
        if found is None:
            found = self._encode(pieces, first_line)
            if len(self._shared) < _SHARED_KEPT:
                self._shared[first_line, pieces] = found
        return found

    def ending(self, salt: str, settings: "Settings", output_tokens: int | None, make: Callable[[], bytes]) -> bytes:
        """What stands behind the messages of all bodies that have these in common; `make` it where it is not known yet."""
        key = salt, id(settings.request), settings.token_ids, output_tokens  # the request is held, so that it stays it
        found = self._endings.get(key)
        if found is None:
            found = settings.request, make()
            if len(self._endings) < _SHARED_KEPT:
                self._endings[key] = found
        return found[1]

    def _encode(self, pieces: tuple[Piece, ...], first_line: str) -> bytes:
        text = self.of(pieces[0]) if len(pieces) == 1 else "".join(self._spaced(pieces))
        return _json(sendable(first_line + text))

    def _spaced(self, pieces: tuple[Piece, ...]) -> list[str]:
        """The texts of pieces; between two what keeps made-up ones at their length, a blank where a literal has none."""
        parts = [self.of(pieces[0])] if pieces else []
        for before, piece in pairwise(pieces):
            text = self.of(piece)
            if before.literal is None and piece.literal is None:
                parts.append(self.vocabulary.joint)
            elif parts[-1] and text and not parts[-1][-1].isspace() and not text[0].isspace():
                parts.append(self.vocabulary.joint or " " if piece.literal is None else " ")
            parts.append(text)
        return parts


_KEPT = (SHARED, BLOCK)
_SHARED_KEPT = 4096  # a first line of its own for each session would fill the memory
_json = msgspec.json.Encoder().encode

_Encoded = tuple[Message, bytes]


class BodyWriter:
    """The bodies of one session. Messages that stay in the context from one turn to the next are encoded once."""

    def __init__(self, texts: Texts, settings: Settings, isolated: Isolation) -> None:
        self._texts = texts
        self._settings = settings
        self._dialect = DIALECTS[settings.request.endpoint]
        self._isolation = isolated
        # By identity, since a message of half a megabyte takes long to compare; the message is held, so that it stays it.
        # The first one of a context is apart, whose text begins with the line of its isolation.
        self._first: _Encoded | None = None
        self._later: dict[int, _Encoded] = {}

    def body(self, ask: Ask) -> bytes:
        """The whole JSON body of a turn; the same bytes however often it is asked for (a second attempt)."""
        model = _json(ask.model or self._settings.model)
        messages = self._dialect.context(self._context(ask.messages))
        return b"".join((b'{"model":', model, b",", messages, b",", self._options(ask)))

    def _context(self, messages: tuple[Message, ...]) -> list[_Encoded]:
        """All messages, those encoded that were not in the turn before; what has left the context is forgotten."""
        if not messages:
            return []
        first = self._first
        if first is None or first[0] is not messages[0]:
            first = self._first = messages[0], self._message(messages[0], first=True)
        known, kept, encoded = self._later, {}, [first]
        for message in messages[1:]:
            key = id(message)
            one = known.get(key) or (message, self._message(message, first=False))
            kept[key] = one
            encoded.append(one)
        self._later = kept
        return encoded

    def _message(self, message: Message, first: bool) -> bytes:
        """A message as JSON; the first one of a context carries the line that keeps its prefix apart."""
        text = self._texts.encoded(message.pieces, self._isolation.first_line if first else "")
        return self._dialect.message(message, text)

    def _options(self, ask: Ask) -> bytes:
        """What follows the messages, closing brace included."""
        if ask.tools or ask.tool_choice is not None or ask.extra_body:
            return self._made_options(ask)
        salt = self._isolation.value if self._isolation.kind == "salt" else ""
        return self._texts.ending(salt, self._settings, ask.output_tokens, lambda: self._made_options(ask))

    def _made_options(self, ask: Ask) -> bytes:
        request = self._settings.request
        options = self._dialect.options(request, ask)
        if self._isolation.kind == "salt":
            options["cache_salt"] = self._isolation.value
        if self._settings.token_ids:
            options["return_token_ids"] = True
        return _json(options | thaw(request.extra_body) | dict(ask.extra_body))[1:]
