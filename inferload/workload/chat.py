"""Conversations of people as scripts: each turn adds one message and waits for the answer."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from random import Random
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from inferload.content.data import Data, Notes
from inferload.content.images import picture_url
from inferload.content.messages import SHARED, Message, Piece
from inferload.content.script import Ask, Reply, Script
from inferload.scenario.schema.chat import ONE, Chat, Images
from inferload.scenario.schema.distributions import Constant, Distribution, draw_count, mean_of
from inferload.workload.context_limit import Sent, fit
from inferload.workload.document_pool import Shelf
from inferload.workload.sources.api import Answers, Given, GivenTurn
from inferload.workload.sources.registry import open_source

_Value = TypeVar("_Value")


class _Turn(msgspec.Struct, frozen=True):
    """One turn as it is planned."""

    question: tuple[Piece, ...]
    output_tokens: int
    think_time_s: float
    answer: Piece | None = None  # as it was recorded


def _always(value: _Value) -> Callable[[Random], _Value]:
    return lambda _rng: value


def _pictures(wanted: Images, index: int, number: int) -> tuple[str, ...]:
    """The pictures of a message."""
    if wanted.url is not None:
        return (wanted.url,) * wanted.per_message
    keys = [f"{index}/{number}/{place}" for place in range(wanted.per_message)]
    return tuple(
        picture_url(f"picture/{Random(key).randrange(wanted.variants)}", wanted.width_px, wanted.height_px)
        for key in keys
    )


def _answers(workload: Chat) -> Answers:
    law = workload.output_tokens
    if law is None:
        return Answers()
    return Answers(given=True, tokens=None if workload.history == "recorded" else mean_of(law))


# What is drawn for a turn, in this order: (think time, tokens of the question, tokens of the answer).
_Numbers = tuple[float, int, int]


def _numbers(think_time_s: Distribution, prompt: Distribution, output: Distribution, rng: Random) -> _Numbers:
    return think_time_s.draw(rng), draw_count(prompt, rng), draw_count(output, rng)


class Chats:
    """The chat sessions of one class."""

    def __init__(self, workload: Chat, class_name: str, data: Data) -> None:
        self._workload = workload
        self._source = open_source(workload.source, class_name, data, _answers(workload))
        self._shelf = None if workload.documents is None else Shelf(workload.documents, self._source.text, data.seed)
        self.digest = self._source.digest
        turns = workload.turns or ONE
        laws = (workload.think_time_s, workload.prompt_tokens or ONE, workload.output_tokens or ONE)
        constant = all(isinstance(law, Constant) for law in (turns, *laws))
        self.draws = self._source.draws or self._shelf is not None or not constant
        self._turns: Callable[[Random], int] = partial(draw_count, turns)
        self._numbers: Callable[[Random], _Numbers] = partial(_numbers, *laws)
        if not self.draws:  # whatever the random numbers were: these, of which there need be none
            self._turns, self._numbers = _always(self._turns(Random(0))), _always(self._numbers(Random(0)))

    # -- a session

    def script(self, index: int, rng: Random, notes: Notes) -> Script:
        """Session `index`."""
        workload = self._workload
        given = self._source.given(index, rng)
        plan = self._plan(index, given, rng)
        head = self._system(index) if given is None else (*self._system(index), *given.lead)
        tools = b"" if given is None else given.tools
        said: tuple[Message, ...] = ()
        for number, turn in enumerate(plan):
            question = self._question(turn, index, number, rng)
            if workload.context is not None:
                fitted = fit(workload.context, Sent(head, said, question, turn.output_tokens), f"{index}/{number}")
                notes.update([f"context {fitted.note}"] if fitted.note else ())
                if fitted.question is None:
                    return
                said, question = fitted.said, fitted.question
            reply = yield Ask((*head, *said, question), turn.output_tokens, turn.think_time_s, tools=tools)
            assert isinstance(reply, Reply)
            if workload.history != "none":
                said += (question, self._answer(turn, reply, index, number))

    def _plan(self, index: int, given: Given | None, rng: Random) -> list[_Turn]:
        """All turns of a session; every one takes the same random numbers, so that no turn shifts another's."""
        return self._made(index, rng) if given is None else self._recorded(given.turns, rng)

    def _made(self, index: int, rng: Random) -> list[_Turn]:
        """As many turns as are drawn, of made-up text."""
        plan = []
        for number in range(self._turns(rng)):
            think_time_s, prompt_tokens, output_tokens = self._numbers(rng)
            question = (self._source.text(f"text/{index}/{number}", prompt_tokens),)
            plan.append(_Turn(question, output_tokens, think_time_s if number else 0.0))
        return plan

    def _recorded(self, turns: Sequence[GivenTurn], rng: Random) -> list[_Turn]:
        """The source's own turns, at most as many as are drawn."""
        workload = self._workload
        plan = []
        for number, turn in enumerate(turns[: self._turns(rng) if workload.turns else None]):
            think_time_s, _, output_tokens = self._numbers(rng)
            if workload.output_tokens is None:
                output_tokens = turn.output_tokens or 1
            plan.append(_Turn(turn.question, output_tokens, think_time_s if number else 0.0, turn.answer))
        return plan

    def _question(self, turn: _Turn, index: int, number: int, rng: Random) -> Message:
        pieces = turn.question if self._shelf is None else self._shelf.beside(turn.question, rng)
        wanted = self._workload.images
        return Message("user", pieces, images=() if wanted is None else _pictures(wanted, index, number))

    def _answer(self, turn: _Turn, reply: Reply, index: int, number: int) -> Message:
        if self._workload.history == "recorded":
            made = turn.answer or self._source.text(f"said/{index}/{number}", turn.output_tokens)
            return Message("assistant", (made,))
        message = reply.message()  # nobody runs the tools here, and a call wants a result
        return replace(message, tool_calls=()) if message.tool_calls else message

    def _system(self, index: int) -> tuple[Message, ...]:
        if self._workload.system_prompt_shared_by == "run":
            return self._shared_system
        return self._system_prompt(f"system/{index}")

    @cached_property
    def _shared_system(self) -> tuple[Message, ...]:
        return self._system_prompt(f"{SHARED}system")

    def _system_prompt(self, key: str) -> tuple[Message, ...]:
        tokens = self._workload.system_prompt_tokens
        return (Message("system", (self._source.text(key, tokens),)),) if tokens else ()

    # -- what is said of it

    def sample(self) -> Sequence[str]:
        """Texts to measure counts with."""
        return self._source.sample()

    def warnings(self) -> list[str]:
        """The source's."""
        return self._source.warnings()

    def facts(self) -> dict[str, Any]:
        """The source, and what becomes of long conversations."""
        context = self._workload.context
        return {"source": self._source.facts(), "context": None if context is None else context.model_dump()}

    def in_words(self) -> list[str]:
        """The same for people."""
        lines = self._source.in_words()
        if self._workload.history == "recorded":
            lines.append("earlier answers in a request are the source's own, whatever the server answered")
        if self._shelf is not None:
            lines.append(self._shelf.in_words())
        if (images := self._workload.images) is not None:
            lines.append(f"{images.per_message} pictures in each message; their tokens are not in the figures here")
        return lines
