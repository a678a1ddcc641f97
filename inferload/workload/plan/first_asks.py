"""First turns of a run in short: the form of its requests without their length."""

from itertools import islice

import msgspec

from inferload.scenario.scenario import Scenario
from inferload.workload.content.images import picture_url
from inferload.workload.content.messages import Message, Piece
from inferload.workload.content.script import Ask, outline
from inferload.workload.sessions import Sessions

_SESSIONS = 500  # within which a session of each class is looked for
_WORD = Piece("hello", None, "Hello")
_PICTURE_PX = 64
PLAIN = Ask((Message("user", (_WORD,)),), 1)


def first_asks(scenario: Scenario, sessions: Sessions) -> list[Ask]:
    """Return the first turn of a session of each class, with a word for each text and small images.

    Roles, tools and options are those of the run. A class whose requests are not known before the run has a plain question.
    """
    if scenario.of_tasks:
        return [PLAIN]
    asks: dict[str, Ask] = {}
    for index in islice(sessions.indexes, _SESSIONS):
        name = sessions.class_of(index)
        if name not in asks:
            turns = outline(sessions.begin(index).script, index, most=1)
            asks[name] = in_short(turns[0].ask) if turns else PLAIN
        if len(asks) == len(sessions.classes):
            break
    return list(asks.values()) or [PLAIN]


def in_short(ask: Ask) -> Ask:
    """Return the turn with a word for each text that is not empty.

    It caches no prefix of the run's requests: prompts begin with the tools, so the first tool has another description.
    """
    tools = msgspec.json.decode(ask.tools) if ask.tools else []
    if tools:
        first = tools[0]["function"]
        tools[0]["function"] = first | {"description": f"Hello. {first.get('description', '')}"}
    return msgspec.structs.replace(
        ask, messages=tuple(map(_in_short, ask.messages)), tools=msgspec.json.encode(tools) if tools else b""
    )


def _in_short(message: Message) -> Message:
    empty = all(piece.literal == "" for piece in message.pieces)
    images = tuple(_picture() if url.startswith("data:") else url for url in message.images)
    reasoning = "Hello" if message.reasoning else ""
    pieces = message.pieces if empty else (_WORD,)
    return msgspec.structs.replace(message, pieces=pieces, images=images, reasoning=reasoning)


def _picture() -> str:
    return picture_url("first request", _PICTURE_PX, _PICTURE_PX)
