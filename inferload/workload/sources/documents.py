"""From documents as data sets have them to turns: who said what, what was answered, and how long it was. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from inferload.workload.messages import Role
from inferload.workload.sources.kinds import Columns, Sampler

_NAMES: Mapping[Role, tuple[str, ...]] = {
    "user": ("human", "user", "prompter"),
    "assistant": ("gpt", "chatgpt", "bing", "bard", "assistant", "model", "claude"),
    "system": ("system", "developer"),
}
_ROLES: Mapping[str, Role] = {name: role for role, names in _NAMES.items() for name in names}

# Why a conversation is left out.
Skip = Literal["not a conversation", "one side only", "empty"]

Said = tuple[Role, str]


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a user said, what was answered (None: not recorded), and how long an answer was asked for (None: not said)."""

    question: str
    answer: str | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Talk:
    """One conversation, or a part of one that goes on in a later record of the same session."""

    turns: tuple[Exchange, ...]
    lead: tuple[Said, ...] = ()  # what stands in front of the first turn
    tools: bytes = b""  # JSON array
    session: str | None = None

    def texts(self) -> list[str]:
        """All that is said in it, in order."""
        lead = [text for _role, text in self.lead]
        return lead + [text for turn in self.turns for text in (turn.question, turn.answer) if text is not None]


class DocumentError(ValueError):
    """A document that is no conversation at all: which key is missing, or what is wrong with it."""


def talk_of(document: Any, sampler: Sampler, columns: Columns) -> Talk | Skip:
    """The conversation that a document holds, or why it is left out; DocumentError where it has no text at all."""
    if not isinstance(document, Mapping):
        return "not a conversation"
    said = _said(document, columns)
    if not any(text.strip() for _role, text in said):
        return "empty"
    system = _text(document, columns.system)
    lead: tuple[Said, ...] = (("system", system),) if system else ()
    talk = _SAMPLERS[sampler](said)
    if isinstance(talk, str):
        return talk
    given = _whole_number(document, columns.output_tokens)
    if given is not None:
        *earlier, last = talk.turns
        talk = Talk((*earlier, Exchange(last.question, last.answer, given)), talk.lead)
    session = document.get(columns.session_id)
    return Talk(
        talk.turns, (*lead, *talk.lead), _tools(document, columns), None if session in (None, "") else str(session)
    )


def _said(document: Mapping[str, Any], columns: Columns) -> list[Said]:
    """Everything that is said in a document, in order."""
    for key in (columns.messages, "conversations", "conversation"):
        if isinstance(listed := document.get(key), Sequence) and not isinstance(listed, str):
            return [one for message in listed if (one := _message(message)) is not None]
    prompt = document.get(columns.prompt)
    if not isinstance(prompt, str):
        raise DocumentError(
            f"no text: neither {columns.prompt} nor {columns.messages}; it has {', '.join(document) or 'nothing'}"
        )
    answer = _text(document, columns.answer)
    return [("user", prompt), ("assistant", answer)] if answer else [("user", prompt)]


def _message(message: Any) -> Said | None:
    if not isinstance(message, Mapping):
        return None
    who = message.get("role", message.get("from"))
    text = message.get("content", message.get("value"))
    if isinstance(text, Sequence) and not isinstance(text, str):  # parts, of which the texts count
        text = "\n".join(
            part["text"] for part in text if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        )
    role = _ROLES.get(str(who).lower())
    return None if role is None or not isinstance(text, str) else (role, text)


def _conversation(said: list[Said]) -> Talk | Skip:
    """A turn for each message of the user; what one side says in a row is one message."""
    merged: list[Said] = []
    for role, text in said:
        if merged and merged[-1][0] == role:
            merged[-1] = role, f"{merged[-1][1]}\n{text}"
        elif text.strip():
            merged.append((role, text))
    begin = next((place for place, (role, _) in enumerate(merged) if role == "user"), None)
    if begin is None:
        return "one side only"
    lead = tuple(one for one in merged[:begin] if one[0] == "system")
    turns: list[Exchange] = []
    for role, text in merged[begin:]:
        if role == "user":
            turns.append(Exchange(text))
        elif role == "assistant" and turns[-1].answer is None:
            turns[-1] = Exchange(turns[-1].question, text)
    return Talk(tuple(turns), lead)


def _first_two(said: list[Said]) -> Talk | Skip:
    """One turn: the first message, and the second as its answer, whoever said them."""
    if len(said) < 2:
        return "one side only"
    return Talk((Exchange(said[0][1], said[1][1]),))


def _whole_prompt(said: list[Said]) -> Talk | Skip:
    """One turn: everything up to the last message of the user is the prompt."""
    last = max((place for place, (role, _) in enumerate(said) if role == "user"), default=None)
    if last is None:
        return "one side only"
    answer = next((text for role, text in said[last + 1 :] if role == "assistant"), None)
    return Talk((Exchange(said[last][1], answer),), tuple(said[:last]))


_SAMPLERS = {"conversation": _conversation, "first_two": _first_two, "whole_prompt": _whole_prompt}


def _text(document: Mapping[str, Any], key: str) -> str | None:
    value = document.get(key)
    return value if isinstance(value, str) and value.strip() else None


def _whole_number(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    if value is None or value == "":
        return None
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise DocumentError(f"{key} is {value!r}; it must be a whole number from 1")
    return number


def _tools(document: Mapping[str, Any], columns: Columns) -> bytes:
    tools = document.get(columns.tools)
    if isinstance(tools, str) and tools.strip():  # of a table
        try:
            tools = msgspec.json.decode(tools)
        except msgspec.DecodeError as error:
            raise DocumentError(f"{columns.tools} is not JSON: {error}") from None
    if not tools:
        return b""
    if not isinstance(tools, list):
        raise DocumentError(f"{columns.tools} must be a JSON array")
    return msgspec.json.encode(tools)
