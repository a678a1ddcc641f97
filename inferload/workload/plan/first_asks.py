"""First turns of a run, and turns with a history, for the checks before its load: with the texts of the plan, or in short."""

from collections.abc import Sequence
from itertools import islice

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inferload.scenario.scenario import Scenario
from inferload.workload.content.messages import Message, Piece
from inferload.workload.content.script import ANSWER, Ask, PlannedTurn, TurnReply, outline
from inferload.workload.sessions import Sessions

_SESSIONS = 500  # within which sessions of each class are looked for
_READ = 20  # sessions of a class among which the longest first turn, and a turn with a history, are looked for
_TURNS = 400  # of a class, after which the search ends
_WORD = Piece("hello", None, "Hello")
_PICTURE_PX = 64
PLAIN = Ask((Message("user", (_WORD,)),), 1)


class HistoryTurn(Struct, frozen=True):
    """A turn that carries earlier answers. `number`: in the outline of session `index`, from 0."""

    ask: Ask
    index: int
    number: int

    @property
    def live(self) -> bool:
        """True if the history has answers of the server."""
        return any(piece.key.startswith(ANSWER) for message in self.ask.messages for piece in message.pieces)

    def answered(self, sessions: Sessions, answer: TurnReply) -> Ask:
        """Return the turn with this answer for each earlier one; planned answers if the session ends before the turn."""
        turns = outline(sessions.begin(self.index).script, self.index, self.number + 1, answer)
        return turns[self.number].ask if len(turns) > self.number else self.ask


class FirstAsk(Struct, frozen=True):
    """First turn of a class.

    `planned_tokens`: of its prompt, without the chat template; None: unknown. `then`: a turn of the class with a history; None:
    it has none, or its requests are not known before the run.
    """

    class_name: str
    ask: Ask
    planned_tokens: int | None = None
    then: HistoryTurn | None = None

    @property
    def live(self) -> bool:
        """True if a history has answers of the server."""
        return self.then is not None and self.then.live


def first_asks(scenario: Scenario, sessions: Sessions) -> list[FirstAsk]:
    """Return the longest first turn of each class, with a turn of the class whose history has the most forms of messages.

    A class whose requests are not known before the run has a plain question.
    """
    if scenario.of_tasks:
        return [FirstAsk("tasks", PLAIN)]
    firsts: dict[str, FirstAsk] = {}
    left = {name: [_READ, _TURNS] for name in sessions.classes}
    for index in islice(sessions.indexes, _SESSIONS):
        name = sessions.class_of(index)
        if min(left[name]) > 0:
            turns = outline(sessions.begin(index).script, index, most=left[name][1])
            left[name] = [left[name][0] - 1, left[name][1] - len(turns)]
            firsts[name] = _with_session(firsts.get(name, FirstAsk(name, PLAIN)), turns, index)
        if not any(min(numbers) > 0 for numbers in left.values()):
            break
    return list(firsts.values())


def _with_session(known: FirstAsk, turns: Sequence[PlannedTurn], index: int) -> FirstAsk:
    """Return the findings on a class with the turns of one more session."""
    if turns:
        known = _longer(known, turns[0])
    found = [
        HistoryTurn(turn.ask, index, number)
        for number, turn in enumerate(turns)
        if number and any(message.role == "assistant" for message in turn.ask.messages)
    ]
    return replace(known, then=max([*([known.then] if known.then else []), *found], key=_forms, default=None))


def _longer(known: FirstAsk, first: PlannedTurn) -> FirstAsk:
    """Return the findings on a class with the longer first turn: with images, whose tokens are unknown, as the first one is."""
    has_images = _has_images(first.ask)
    planned = None if has_images else first.input_tokens
    longer = has_images == _has_images(known.ask) and (planned or 0) > (known.planned_tokens or 0)
    return replace(known, ask=first.ask, planned_tokens=planned) if longer or known.ask is PLAIN else known


def _has_images(ask: Ask) -> bool:
    return any(message.images for message in ask.messages)


def _forms(turn: HistoryTurn) -> tuple[int, int]:
    """Return (number of forms of its messages, minus the number of messages)."""
    messages = turn.ask.messages
    forms = {(message.role, min(len(message.tool_calls), 2), bool(message.reasoning)) for message in messages}
    return len(forms), -len(messages)


def in_short(ask: Ask, mark: str = "Hello", answers: bool = False) -> Ask:
    """Return the turn with a word for each text that is not empty.

    It caches no prefix of the run's requests: prompts begin with the tools, so the first tool has another description, which
    begins with `mark`. `answers`: keep the texts of answers of the server.
    """
    kept = [answers and any(piece.key.startswith(ANSWER) for piece in message.pieces) for message in ask.messages]
    messages = tuple(each if keep else _in_short(each) for each, keep in zip(ask.messages, kept, strict=True))
    return msgspec.structs.replace(ask, messages=messages, tools=_marked(ask.tools, mark))


def in_full(ask: Ask, mark: str) -> Ask:
    """Return the turn with all its texts, but small images, and with other tools by a description that begins with `mark`."""
    messages = tuple(msgspec.structs.replace(message, images=_small(message)) for message in ask.messages)
    return msgspec.structs.replace(ask, messages=messages, tools=_marked(ask.tools, mark))


def _marked(definitions: bytes, mark: str) -> bytes:
    tools = msgspec.json.decode(definitions) if definitions else []
    if not tools:
        return b""
    first = tools[0]["function"]
    tools[0]["function"] = first | {"description": f"{mark}. {first.get('description', '')}"}
    return msgspec.json.encode(tools)


def _in_short(message: Message) -> Message:
    empty = all(piece.literal == "" for piece in message.pieces)
    reasoning = "Hello" if message.reasoning else ""
    pieces = message.pieces if empty else (_WORD,)
    return msgspec.structs.replace(message, pieces=pieces, images=_small(message), reasoning=reasoning)


def _small(message: Message) -> tuple[str, ...]:
    """Return the images of a message, those in the request replaced by a small one."""
    if not message.images:
        return ()
    from inferload.workload.content.images import picture_url  # of few scenarios

    return tuple(
        picture_url("first request", _PICTURE_PX, _PICTURE_PX) if url.startswith("data:") else url
        for url in message.images
    )
