"""Request bodies: JSON from messages, in the dialect of the run's endpoint.

A body of half a megabyte is mostly history, so each message is encoded once, and a turn only joins the bytes.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from inferload.client.endpoints.dialect import DIALECTS
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.scenario.schema.fields import thaw
from inferload.scenario.schema.request import RequestOptions
from inferload.workload.content.messages import BLOCK, SHARED, TIME_KEY, Message, Piece, sendable
from inferload.workload.content.prompts import TIME_TOKENS, KeyedRandom, Vocabulary
from inferload.workload.content.script import Ask
from inferload.workload.isolation import Isolation

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class BodySettings(msgspec.Struct, frozen=True):
    """Settings of all bodies of a run. `seed`: seed of the run, for generated text."""

    model: str
    request: RequestOptions
    seed: int = 0

    @classmethod
    def of(cls, scenario: Scenario, model: str) -> "BodySettings":
        """Return the settings of a scenario, with the model of the run."""
        return cls(model, scenario.request, scenario.seed)


class Texts:
    """Text of pieces. Shared pieces are cached, encoded; other text is generated on each call."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self.vocabulary = vocabulary
        self._seed = seed
        self._texts: dict[Piece, str] = {}
        self._shared: dict[tuple[str, tuple[Piece, ...]], bytes] = {}
        self._endings: dict[tuple[str, int, int | None], tuple[RequestOptions, bytes]] = {}

    def of(self, piece: Piece) -> str:
        """Return the text of a piece."""
        if piece.literal is not None:
            return piece.literal
        if not piece.key.startswith(_CACHED):
            return self._generated(piece)
        return _kept(self._texts, piece, lambda: self._generated(piece))

    def _generated(self, piece: Piece) -> str:
        rng = KeyedRandom(f"{self._seed}/{piece.key}")
        if piece.whole is None:
            return self.vocabulary.text(piece.tokens or 1, rng)
        return self.vocabulary.beginning(self.vocabulary.text(piece.whole, rng), piece.tokens or 1)

    def encoded(self, pieces: tuple[Piece, ...], first_line: str = "") -> bytes:
        """Return several pieces as one JSON string, after `first_line`."""
        for piece in pieces:
            if not piece.key.startswith(SHARED):
                return self._encode(pieces, first_line)
        return _kept(self._shared, (first_line, pieces), lambda: self._encode(pieces, first_line))

    def ending(
        self, salt: str, settings: "BodySettings", output_tokens: int | None, build: Callable[[], bytes]
    ) -> bytes:
        """Return the bytes after the messages, by their settings; `build` is called unless they are cached."""
        key = salt, id(settings.request), output_tokens  # the cached reference keeps the id valid
        return _kept(self._endings, key, lambda: (settings.request, build()))[1]

    def _encode(self, pieces: tuple[Piece, ...], first_line: str) -> bytes:
        text = self.of(pieces[0]) if len(pieces) == 1 else "".join(self._spaced(self._timed(pieces)))
        return _json(sendable(first_line + text))

    def _timed(self, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        """Return the pieces; of a text beside a timestamp as much more as the timestamp is shorter than planned.

        Texts of different lengths are beginnings of one, so that they share a prefix.
        """
        at = next((number for number, piece in enumerate(pieces) if piece.key.startswith(TIME_KEY)), None)
        if at is None:
            return pieces
        beside = at - 1 if at else 1
        counted = self.vocabulary.time_tokens.get(pieces[at].literal or "", TIME_TOKENS)[at == 0]
        both = (pieces[beside].tokens or 0) + (pieces[at].tokens or 0)
        text = replace(pieces[beside], tokens=max(1, both - counted), whole=pieces[beside].whole or both)
        return (*pieces[:beside], text, *pieces[beside + 1 :])

    def _spaced(self, pieces: tuple[Piece, ...]) -> list[str]:
        """Return the texts of pieces and separators: the vocabulary's joint, or a blank beside a literal without one."""
        parts = [self.of(pieces[0])] if pieces else []
        for before, piece in pairwise(pieces):
            text = self.of(piece)
            if before.literal is None and piece.literal is None:
                parts.append(self.vocabulary.joint)
            elif parts[-1] and text and not parts[-1][-1].isspace() and not text[0].isspace():
                parts.append(self.vocabulary.joint or " " if piece.literal is None else " ")
            parts.append(text)
        return parts


_CACHED = (SHARED, BLOCK)
_MAX_CACHED = 4096  # unique first lines per session would fill the memory
_json = msgspec.json.Encoder().encode


def _kept(cache: dict[_Key, _Value], key: _Key, make: Callable[[], _Value]) -> _Value:
    """Return the cached value of a key; make it if there is none, and cache it while there is room."""
    value = cache.get(key)
    if value is None:
        value = make()
        if len(cache) < _MAX_CACHED:
            cache[key] = value
    return value


_Encoded = tuple[Message, bytes]


class BodyWriter:
    """Writer of the bodies of one session. It encodes messages once that stay in the context over several turns."""

    def __init__(self, texts: Texts, settings: BodySettings, isolated: Isolation) -> None:
        self._texts = texts
        self._settings = settings
        self._dialect = DIALECTS[settings.request.endpoint]
        self._isolation = self._of_session = isolated
        # By id, since comparing messages of half a megabyte is slow; the reference to the message keeps its id valid.
        # The first message of a context is separate, because its text starts with the line of its isolation.
        self._first: _Encoded | None = None
        self._later: dict[int, _Encoded] = {}

    def body(self, ask: Ask, turn: str = "") -> bytes:
        """Return the JSON body of a session's turn, by its name; repeated calls (retries) return the same bytes.

        `calls.Call.request_body` builds the bodies of tasks.
        """
        if self._of_session.by_turn:
            self._isolation, self._first = self._of_session.of_turn(turn), None
        model = _json(ask.model or self._settings.model)
        messages = self._dialect.context(self._context(ask.messages, ask.stored))
        return b"".join((b'{"model":', model, b",", messages, self._options(ask)))

    def _context(self, messages: tuple[Message, ...], stored: int) -> list[_Encoded]:
        """Return all messages but the stored ones, encoding new ones and forgetting those that left the context."""
        if stored:
            return [(message, self._message(message, first=False)) for message in messages[stored:]]
        if not messages:
            return []
        first = self._first
        if first is None or first[0] is not messages[0]:
            first = self._first = messages[0], self._message(messages[0], first=True)
        earlier, later = self._later, {}
        for message in messages[1:]:
            key = id(message)
            later[key] = earlier.get(key) or (message, self._message(message, first=False))
        self._later = later
        return [first, *(later[id(message)] for message in messages[1:])]

    def _message(self, message: Message, first: bool) -> bytes:
        """Return a message as JSON; the first one of a context, or each of texts, starts with the line of its isolation."""
        first = first or not ENDPOINTS[self._settings.request.endpoint].streamed
        text = self._texts.encoded(message.pieces, self._isolation.first_line if first else "")
        return self._dialect.message(message, text)

    def _options(self, ask: Ask) -> bytes:
        """Return what follows the messages: a comma and keys, if there are any, and the closing brace."""
        if ask.tools or ask.tool_choice is not None or ask.extra_body:
            return self._built_options(ask)
        salt = self._isolation.value if self._isolation.kind == "salt" else ""
        return self._texts.ending(salt, self._settings, ask.output_tokens, lambda: self._built_options(ask))

    def _built_options(self, ask: Ask) -> bytes:
        request = self._settings.request
        options = self._dialect.options(request, ask)
        if self._isolation.kind == "salt":
            options["cache_salt"] = self._isolation.value
        options = options | thaw(request.extra_body) | dict(ask.extra_body)
        return b"," + _json(options)[1:] if options else b"}"
