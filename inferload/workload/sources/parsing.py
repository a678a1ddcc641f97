"""From documents as data sets have them to turns: who said what, what was answered, and how long it was. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from inferload.content.messages import Role
from inferload.scenario.schema.sources import Columns, Sampler

_NAMES: Mapping[Role, tuple[str, ...]] = {
    "user": ("human", "user", "prompter"),
    "assistant": ("gpt", "chatgpt", "bing", "bard", "assistant", "model", "claude"),
    "system": ("system", "developer"),
}
_ROLES: Mapping[str, Role] = {name: role for role, names in _NAMES.items() for name in names}

# Why a conversation is left out.
Skip = Literal["not a conversation", "one side only", "empty"]

Said = tuple[Role, str]


class Exchange(msgspec.Struct, frozen=True):
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
    dropped: Mapping[str, int] = field(default_factory=dict)  # what of the document is not sent, by kind

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
    dropped: Counter[str] = Counter()
    said = _said(document, columns, dropped)
    if not any(text.strip() for _role, text in said):
        return "empty"
    system = _text(document, columns.system)
    lead: tuple[Said, ...] = (("system", system),) if system else ()
    talk = _SAMPLERS[sampler](said, dropped)
    if isinstance(talk, str):
        return talk
    given = _whole_number(document, columns.output_tokens)
    turns = talk.turns
    if given is not None:
        turns = (*turns[:-1], replace(turns[-1], output_tokens=given))
    session = document.get(columns.session_id)
    return Talk(
        turns,
        (*lead, *talk.lead),
        _tools(document, columns),
        None if session in (None, "") else str(session),
        dict(dropped),
    )


def _said(document: Mapping[str, Any], columns: Columns, dropped: Counter[str]) -> list[Said]:
    """Everything that is said in a document, in order; what of it is no text of somebody's is counted."""
    for key in (columns.messages, "conversations", "conversation"):
        if isinstance(listed := document.get(key), Sequence) and not isinstance(listed, str):
            return [one for message in listed if (one := _message(message, dropped)) is not None]
    prompt = document.get(columns.prompt)
    if not isinstance(prompt, str):
        raise DocumentError(
            f"no text: neither {columns.prompt} nor {columns.messages}; it has {', '.join(document) or 'nothing'}"
        )
    answer = _text(document, columns.answer)
    return [("user", prompt), ("assistant", answer)] if answer else [("user", prompt)]


_OF_TOOLS = ("tool", "function", "tool_result", "observation", "ipython")


def _message(message: Any, dropped: Counter[str]) -> Said | None:
    if not isinstance(message, dict | Mapping):  # what it nearly always is first: to ask for the other takes longer
        dropped["no messages"] += 1
        return None
    who = str(message.get("role", message.get("from"))).lower()
    text = message.get("content", message.get("value"))
    if who not in _ROLES:
        dropped["messages of tools" if who in _OF_TOOLS else "messages of other roles"] += 1
        return None
    if message.get("tool_calls") or message.get("function_call"):
        calls = message.get("tool_calls")
        dropped["tool calls"] += len(calls) if isinstance(calls, list) else 1
    if not isinstance(text, str) and isinstance(text, Sequence):  # parts, of which the texts count
        text = "\n".join([one for part in text if (one := _part(part, dropped)) is not None])
    if not isinstance(text, str):
        dropped["messages without text"] += 1
        return None
    return _ROLES[who], text


def _part(part: Any, dropped: Counter[str]) -> str | None:
    text = part.get("text") if isinstance(part, Mapping) else None
    if isinstance(text, str):
        return text
    kind = part.get("type") if isinstance(part, Mapping) else None
    dropped[f"{kind if isinstance(kind, str) and len(kind) <= _LONGEST_KIND else 'unknown'} parts"] += 1
    return None


_LONGEST_KIND = 32


def _conversation(said: list[Said], dropped: Counter[str]) -> Talk | Skip:
    """A turn for each message of the user; what one side says in a row is one message."""
    merged: list[Said] = []
    for role, text in said:
        if merged and merged[-1][0] == role:
            merged[-1] = role, f"{merged[-1][1]}\n{text}"
        elif text.strip():
            merged.append((role, text))
        else:
            dropped["empty messages"] += 1
    begin = next((place for place, (role, _) in enumerate(merged) if role == "user"), None)
    if begin is None:
        return "one side only"
    lead = tuple(one for one in merged[:begin] if one[0] == "system")
    if begin > len(lead):
        dropped["answers in front of the first question"] += begin - len(lead)
    turns: list[Exchange] = []
    for role, text in merged[begin:]:
        if role == "user":
            turns.append(Exchange(text))
        elif role == "assistant" and turns[-1].answer is None:
            turns[-1] = Exchange(turns[-1].question, text)
        else:
            dropped["later system messages" if role == "system" else "second answers"] += 1
    return Talk(tuple(turns), lead)


def _first_two(said: list[Said], dropped: Counter[str]) -> Talk | Skip:
    """One turn: the first message, and the second as its answer, whoever said them."""
    if len(said) < _TWO:
        return "one side only"
    if len(said) > _TWO:
        dropped["messages behind the first two"] += len(said) - _TWO
    return Talk((Exchange(said[0][1], said[1][1]),))


_TWO = 2


def _whole_prompt(said: list[Said], dropped: Counter[str]) -> Talk | Skip:
    """One turn: everything up to the last message of the user is the prompt."""
    last = max((place for place, (role, _) in enumerate(said) if role == "user"), default=None)
    if last is None:
        return "one side only"
    behind = said[last + 1 :]
    answer = next((text for role, text in behind if role == "assistant"), None)
    if len(behind) > (answer is not None):
        dropped["messages behind the answer"] += len(behind) - (answer is not None)
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
