"""Conversations of people as scripts: each turn adds one message and waits for the answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from msgspec.structs import replace

from inferload.workload.chatkind import ONE, Chat
from inferload.workload.context import Sent, fit
from inferload.workload.data import Data, Notes
from inferload.workload.distributions import draw_count, mean_of
from inferload.workload.images import picture_url
from inferload.workload.messages import SHARED, Message, Piece
from inferload.workload.retrieval import Shelf
from inferload.workload.script import Ask, Reply, Script
from inferload.workload.sources.given import Answers, Given, GivenTurn
from inferload.workload.sources.opening import open_source


@dataclass(frozen=True, slots=True)
class _Turn:
    """One turn as it is planned."""

    question: tuple[Piece, ...]
    output_tokens: int
    think_time_s: float
    answer: Piece | None  # as it was recorded


def _answers(workload: Chat) -> Answers:
    law = workload.output_tokens
    if law is None:
        return Answers()
    return Answers(given=True, tokens=None if workload.history == "recorded" else mean_of(law))


class Chats:
    """The chat sessions of one class."""

    def __init__(self, workload: Chat, class_name: str, data: Data) -> None:
        self._workload = workload
        self._source = open_source(workload.source, class_name, data, _answers(workload))
        self._shelf = None if workload.documents is None else Shelf(workload.documents, self._source.text, data.seed)
        self.digest = self._source.digest

    # -- a session

    def script(self, index: int, rng: Random, notes: Notes) -> Script:
        """Session `index`."""
        workload = self._workload
        given = self._source.given(index, rng)
        plan = self._plan(index, given, rng)
        head = (*self._system(index), *(given.lead if given else ()))
        said: tuple[Message, ...] = ()
        for number, turn in enumerate(plan):
            question = self._question(turn, index, number, rng)
            if workload.context is not None:
                fitted = fit(workload.context, Sent(head, said, question, turn.output_tokens), f"{index}/{number}")
                notes.update([f"context {fitted.note}"] if fitted.note else ())
                if fitted.question is None:
                    return
                said, question = fitted.said, fitted.question
            reply = yield Ask(
                (*head, *said, question),
                turn.output_tokens,
                turn.think_time_s,
                tools=given.tools if given else b"",
            )
            assert isinstance(reply, Reply)
            if workload.history != "none":
                said += (question, self._answer(turn, reply, f"said/{index}/{number}"))

    def _plan(self, index: int, given: Given | None, rng: Random) -> list[_Turn]:
        """All turns of a session; every one takes the same random numbers, so that no turn shifts another's."""
        workload = self._workload
        recorded = () if given is None else given.turns
        wanted = draw_count(workload.turns or ONE, rng) if given is None or workload.turns else len(recorded)
        plan = []
        for number in range(wanted if given is None else min(wanted, len(recorded))):
            think_time_s = workload.think_time_s.draw(rng)
            prompt_tokens = draw_count(workload.prompt_tokens or ONE, rng)
            output_tokens = draw_count(workload.output_tokens or ONE, rng)
            turn = self._made(index, number, prompt_tokens) if given is None else recorded[number]
            if workload.output_tokens is None:
                output_tokens = turn.output_tokens or 1
            plan.append(_Turn(turn.question, output_tokens, think_time_s if number else 0.0, turn.answer))
        return plan

    def _made(self, index: int, number: int, prompt_tokens: int) -> GivenTurn:
        return GivenTurn((self._source.text(f"text/{index}/{number}", prompt_tokens),))

    def _question(self, turn: _Turn, index: int, number: int, rng: Random) -> Message:
        pieces = turn.question if self._shelf is None else self._shelf.beside(turn.question, rng)
        return Message("user", pieces, images=self._images(index, number))

    def _images(self, index: int, number: int) -> tuple[str, ...]:
        wanted = self._workload.images
        if wanted is None:
            return ()
        if wanted.url is not None:
            return (wanted.url,) * wanted.per_message
        keys = [f"{index}/{number}/{place}" for place in range(wanted.per_message)]
        return tuple(
            picture_url(f"picture/{Random(key).randrange(wanted.variants)}", wanted.width_px, wanted.height_px)
            for key in keys
        )

    def _answer(self, turn: _Turn, reply: Reply, key: str) -> Message:
        if self._workload.history == "recorded":
            return Message("assistant", (turn.answer or self._source.text(key, turn.output_tokens),))
        return replace(reply.message(), tool_calls=())  # nobody runs the tools here, and a call wants a result

    def _system(self, index: int) -> tuple[Message, ...]:
        tokens = self._workload.system_prompt_tokens
        key = f"{SHARED}system" if self._workload.system_prompt_shared_by == "run" else f"system/{index}"
        return (Message("system", (self._source.text(key, tokens),)),) if tokens else ()

    # -- what is said of it

    def sample(self) -> Sequence[str]:
        """Texts to measure counts with."""
        return self._source.sample()

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
