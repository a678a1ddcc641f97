"""Scripts of the workload `chat`: each turn adds one user message and waits for the answer."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from random import Random
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inferload.scenario.schema.chat import ONE, Chat, ContextLimit, Documents, Group, Images
from inferload.scenario.schema.distributions import Constant, Distribution, draw_count, mean_of
from inferload.turns.record import SAMPLE
from inferload.workload.content.data import DataContext, Notes, Opened
from inferload.workload.content.messages import SHARED, Message, Piece
from inferload.workload.content.script import Ask, Fork, Script, TurnReply
from inferload.workload.popularity import zipf
from inferload.workload.sources.api import AnswerLengths, SourceTurn
from inferload.workload.sources.registry import open_source

_Value = TypeVar("_Value")


class _PlannedTurn(msgspec.Struct, frozen=True):
    question: tuple[Piece, ...]
    output_tokens: int
    think_time_s: float
    answer: Piece | None = None  # recorded answer


def _always(value: _Value) -> Callable[[Random], _Value]:
    return lambda _rng: value


def _image_urls(images: Images, index: int, number: int) -> tuple[str, ...]:
    if images.url is not None:
        return (images.url,) * images.per_message
    from inferload.workload.content.images import pictures  # of few scenarios

    keys = (f"{index}/{number}/{image}" for image in range(images.per_message))
    return pictures(keys, images.variants, images.width_px, images.height_px)


def _answer_lengths(workload: Chat) -> AnswerLengths:
    output_tokens = workload.output_tokens
    if output_tokens is None:
        return AnswerLengths()
    return AnswerLengths(planned=True, mean=None if workload.history == "recorded" else mean_of(output_tokens))


# Drawn for each turn, in this order: (think time, tokens of the question, tokens of the answer).
_Numbers = tuple[float, int, int]


def _numbers(think_time_s: Distribution, prompt: Distribution, output: Distribution, rng: Random) -> _Numbers:
    return think_time_s.draw(rng), draw_count(prompt, rng), draw_count(output, rng)


class ChatSessions(Opened):
    """Chat sessions of one class."""

    digest: str | None = None
    draws = False

    def __init__(self, workload: Chat, class_name: str, data: DataContext) -> None:
        self._workload, self._seed = workload, data.seed
        self._source = open_source(workload.source, class_name, data, _answer_lengths(workload))
        documents = workload.documents
        self._documents = None if documents is None else DocumentPool(documents, self._source.text, data.seed)
        self.digest = self._source.digest
        turns = workload.turns or ONE
        distributions = (workload.think_time_s, workload.prompt_tokens or ONE, workload.output_tokens or ONE)
        constant = all(isinstance(distribution, Constant) for distribution in (turns, *distributions))
        self.draws = self._source.draws or documents is not None or not constant
        self.alike = self._source.alike and not self.draws and workload.context is None
        self._turns: Callable[[Random], int] = partial(draw_count, turns)
        self._numbers: Callable[[Random], _Numbers] = partial(_numbers, *distributions)
        if not self.draws:  # constants need no random numbers
            self._turns, self._numbers = _always(self._turns(Random(0))), _always(self._numbers(Random(0)))

    # -- a session

    def script(self, index: int, rng: Random, notes: Notes) -> Script:
        """Return the script of session `index`: a conversation, or the group of its samples."""
        group = self._workload.group
        return self._conversation(index, rng, notes) if group is None else self._group(group, index, rng, notes)

    def _group(self, group: Group, index: int, rng: Random, notes: Notes) -> Script:
        state, samples = rng.getstate(), list[tuple[str, Script]]()
        for number in range(1, group.samples + 1):
            own = Random()
            own.setstate(state)  # equal draws, and so an equal prompt
            seed = Random(f"{self._seed}/sample/{index}/{number}").getrandbits(31) if group.seeds else None
            options = {} if seed is None else {"seed": seed}
            samples.append((f"{SAMPLE}{number}", self._conversation(index, own, notes, options)))
        yield Fork(tuple(samples))

    def _conversation(
        self, index: int, rng: Random, notes: Notes, options: Mapping[str, Any] = MappingProxyType({})
    ) -> Script:
        """`options`: further keys of the bodies."""
        workload = self._workload
        recorded = self._source.session(index, rng)
        plan = self._generated(index, rng) if recorded is None else self._recorded(recorded.turns, rng)
        head = self._system(index) if recorded is None else (*self._system(index), *recorded.lead)
        tools = b"" if recorded is None else recorded.tools
        history: tuple[Message, ...] = ()
        reply = TurnReply(None, None)
        for number, turn in enumerate(plan):
            question = self._question(turn, index, number, rng)
            if workload.context is not None:
                request = NextRequest(head, history, question, turn.output_tokens)
                fitted = fit(workload.context, request, f"{index}/{number}")
                notes.update([f"context {fitted.note}"] if fitted.note else ())
                if fitted.question is None:
                    return
                history, question = fitted.history, fitted.question
            keep = workload.history == "live" and number < len(plan) - 1
            messages = (*head, *history, question)
            ask = Ask(messages, turn.output_tokens, turn.think_time_s, tools=tools, keep=keep)
            if workload.history == "server":
                if history and reply.text is not None and not reply.response_id:
                    notes.update(["sessions that ended because the server gave an answer no id"])
                    return
                ask = _continued(ask, reply.response_id, len(ask.messages) - 1 if history else 0)
            if workload.group is not None:
                ask = replace(ask, final=number == len(plan) - 1, extra_body={**ask.extra_body, **options})
            sent = yield ask
            assert isinstance(sent, TurnReply)
            reply = sent
            if workload.history != "none":
                history += (question, self._answer(turn, reply, index, number))

    # Each turn takes the same random numbers, so that no turn changes those of another.
    def _generated(self, index: int, rng: Random) -> list[_PlannedTurn]:
        plan = []
        for number in range(self._turns(rng)):
            think_time_s, prompt_tokens, output_tokens = self._numbers(rng)
            question = (self._source.text(f"text/{index}/{number}", prompt_tokens),)
            plan.append(_PlannedTurn(question, output_tokens, think_time_s if number else 0.0))
        return plan

    def _recorded(self, turns: Sequence[SourceTurn], rng: Random) -> list[_PlannedTurn]:
        workload = self._workload
        plan = []
        for number, turn in enumerate(turns[: self._turns(rng) if workload.turns else None]):
            think_time_s, _, output_tokens = self._numbers(rng)
            if workload.output_tokens is None:
                output_tokens = turn.output_tokens or 1
            plan.append(_PlannedTurn(turn.question, output_tokens, think_time_s if number else 0.0, turn.answer))
        return plan

    def _question(self, turn: _PlannedTurn, index: int, number: int, rng: Random) -> Message:
        pieces = turn.question if self._documents is None else self._documents.beside(turn.question, rng)
        images = self._workload.images
        return Message("user", pieces, images=() if images is None else _image_urls(images, index, number))

    def _answer(self, turn: _PlannedTurn, reply: TurnReply, index: int, number: int) -> Message:
        if self._workload.history == "recorded":
            answer = turn.answer or self._source.text(f"said/{index}/{number}", turn.output_tokens)
            return Message("assistant", (answer,))
        return reply.message(calls=())  # tool calls would need results

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

    # -- facts

    def sample(self) -> Sequence[str]:
        """Return sample texts of the source."""
        return self._source.sample()

    def warnings(self) -> list[str]:
        """Return the warnings of the source."""
        return self._source.warnings()

    def facts(self) -> dict[str, Any]:
        """Return the source and the context limit for the manifest."""
        context = self._workload.context
        return {"source": self._source.facts(), "context": None if context is None else context.model_dump()}

    def in_words(self) -> list[str]:
        """Return the lines of the plan."""
        lines = self._source.in_words()
        if self._workload.history == "recorded":
            lines.append("requests carry the answers of the source as history, not those of the server")
        if self._workload.history == "server":
            lines.append(
                "the server keeps the history: requests have only the new message; token counts are those of the whole context"
            )
        if (group := self._workload.group) is not None:
            lines.append(f"groups of {group.samples} samples of one prompt, which start together; a session is a group")
        if self._documents is not None:
            lines.append(self._documents.in_words())
        if (images := self._workload.images) is not None:
            lines.append(f"images: {images.per_message} per message, their tokens not counted here")
        return lines


def _continued(ask: Ask, response_id: str, stored: int) -> Ask:
    """Return a turn whose answer the server keeps, and which continues from an earlier one. `stored`: its messages there."""
    after = {"previous_response_id": response_id} if stored and response_id else {}
    return replace(ask, stored=stored, extra_body={"store": True, **after})


_TRIES = 64
_CACHED = 4096  # documents


class DocumentPool:
    """All documents of a class; document 0 is drawn most often."""

    def __init__(self, documents: Documents, text: Callable[[str, int], Piece], seed: int) -> None:
        self._documents = documents
        self._text = text
        self._seed = seed
        self._popularity = zipf(documents.count, documents.zipf)
        self._document = lru_cache(maxsize=_CACHED)(self._drawn)

    def beside(self, question: tuple[Piece, ...], rng: Random) -> tuple[Piece, ...]:
        """Return a question with the drawn documents of its turn."""
        documents = tuple(self._document(number) for number in self.draw(rng))
        return (*documents, *question) if self._documents.position == "before" else (*question, *documents)

    def draw(self, rng: Random) -> list[int]:
        """Draw the numbers of different documents for one turn."""
        numbers: list[int] = []
        for _ in range(_TRIES * self._documents.per_turn):
            number = self._popularity.draw(rng)
            if number not in numbers:
                numbers.append(number)
            if len(numbers) == self._documents.per_turn:
                return numbers
        others = (number for number in range(self._documents.count) if number not in numbers)
        return [*numbers, *(next(others) for _ in range(self._documents.per_turn - len(numbers)))]

    def _drawn(self, number: int) -> Piece:
        tokens = draw_count(self._documents.tokens, Random(f"{self._seed}/document/{number}"))
        return self._text(f"{SHARED}document/{number}", tokens)

    def in_words(self) -> str:
        """Return the line of the plan."""
        documents = self._documents
        return (
            f"{documents.per_turn} of {documents.count:,} documents {documents.position} each question; "
            f"{self._popularity.in_words()}"
        )


Note = Literal["stopped", "truncated", "compacted"]


class FittedRequest(Struct, frozen=True):
    """History and question within the limit. `question` None: the session ends."""

    history: tuple[Message, ...]
    question: Message | None
    note: Note | None = None


class NextRequest(Struct, frozen=True):
    """Next request without a limit. `history`: alternating questions and answers."""

    head: tuple[Message, ...]
    history: tuple[Message, ...]
    question: Message
    output_tokens: int


def fit(limit: ContextLimit, request: NextRequest, key: str) -> FittedRequest:
    """Fit the next request and its answer into the limit. `key`: identity of the summary.

    Messages of unknown length count as 0 tokens. A question that does not fit without history ends the session.
    """
    history, question = request.history, request.question
    room = limit.limit_tokens - request.output_tokens - sum(map(_tokens, request.head)) - _tokens(question)
    used = sum(map(_tokens, history))
    if used <= room:
        return FittedRequest(history, question)
    if limit.then == "compact" and history and limit.summary_tokens <= room:
        # Part of the question, because many chat templates require alternating user and assistant messages.
        summary = Piece(f"summary/{key}", limit.summary_tokens)
        return FittedRequest((), replace(question, pieces=(summary, *question.pieces)), "compacted")
    if limit.then == "truncate" and room >= 0:
        while used > room:
            used -= sum(map(_tokens, history[:2]))
            history = history[2:]
        return FittedRequest(history, question, "truncated")
    return FittedRequest((), None, "stopped")


def _tokens(message: Message) -> int:
    return message.tokens or 0
