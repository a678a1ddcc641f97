"""Parser of documents of data sets: conversations with questions, answers and their lengths."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from inferload.scenario.schema.sources import Columns, Sampler
from inferload.workload.content.messages import Role
from inferload.workload.traces.turn import TraceFault, count_of, is_missing, name_of

_NAMES: Mapping[Role, tuple[str, ...]] = {
    "user": ("human", "user", "prompter"),
    "assistant": ("gpt", "chatgpt", "bing", "bard", "assistant", "model", "claude"),
    "system": ("system", "developer"),
}
_ROLES: Mapping[str, Role] = {name: role for role, names in _NAMES.items() for name in names}

# Reasons to leave out a record.
Skip = Literal["not a conversation", "one side only", "empty"]

RoleText = tuple[Role, str]


class Exchange(msgspec.Struct, frozen=True):
    """Question with its recorded answer and the requested length of the answer. None: not recorded."""

    question: str
    answer: str | None = None
    output_tokens: int | None = None


class RecordedConversation(Struct, frozen=True):
    """Conversation of one record, possibly a part of a session with several records."""

    turns: tuple[Exchange, ...]
    lead: tuple[RoleText, ...] = ()  # messages before the first turn
    tools: bytes = b""  # JSON array
    session: str | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)  # parts of the document that are not sent, by kind

    def texts(self) -> list[str]:
        """Return all texts in order."""
        lead = [text for _role, text in self.lead]
        return lead + [text for turn in self.turns for text in (turn.question, turn.answer) if text is not None]


class DocumentError(ValueError):
    """Document without a valid conversation."""


def parse(document: Any, sampler: Sampler, columns: Columns) -> RecordedConversation | Skip:
    """Return the conversation of a document, or the reason to leave it out. DocumentError for missing or invalid keys."""
    dropped: Counter[str] = Counter()
    document = _keyed(document, columns, dropped)
    if not isinstance(document, Mapping):
        return "not a conversation"
    messages = _messages(document, columns, dropped, any_role=sampler == "first_two")
    if not any(text.strip() for _role, text in messages):
        return "empty"
    system = _text(document, columns.system)
    lead: tuple[RoleText, ...] = (("system", system),) if system else ()
    questions = _questions(document, columns) if sampler == "conversation" else None
    conversation = questions or _SAMPLERS[sampler](messages, dropped)
    if isinstance(conversation, str):
        return conversation
    lengths = _value(document, columns.output_tokens)
    turns = list(conversation.turns)
    known = lengths if isinstance(lengths, list) else [None] * (len(turns) - 1) + [lengths]
    if questions and len(known) > len(turns):  # a length for each question, also for blank ones
        known = [length for length, (_role, text) in zip(known, messages, strict=False) if text.strip()]
    if len(known) < len(turns):
        raise DocumentError(f"{columns.output_tokens} has {len(known)} lengths for {len(turns)} turns")
    for number, length in enumerate(known[: len(turns)] if sampler == "first_two" else known[-len(turns) :]):
        if (tokens := _tokens(columns.output_tokens, length)) is not None:
            turns[number] = replace(turns[number], output_tokens=tokens)
    return RecordedConversation(
        tuple(turns),
        (*lead, *conversation.lead),
        _tools(document, columns),
        name_of({"session": _value(document, columns.session_id)}, "session"),
        dict(dropped),
    )


def _messages(
    document: Mapping[str, Any], columns: Columns, dropped: Counter[str], *, any_role: bool
) -> list[RoleText]:
    """Return all text messages of a document in order, and count the others. `any_role`: unknown roles count as user."""
    for key in (columns.messages, *_CONVERSATIONS):
        if (listed := _listed(_value(document, key), in_cell=True)) is not None:
            if listed and all(map(_are_turns, listed)):  # as in SGLang's agentic traces
                raise DocumentError(f"{key} has several conversations; write each as a line: jq -c '.{key}[]'")
            if _are_texts(listed):  # as in UltraChat
                return [(("user", "assistant")[number % 2], text) for number, text in enumerate(listed)]
            return [message for item in listed if (message := _message(item, dropped, any_role)) is not None]
    prompt = _value(document, columns.prompt)
    if (listed := _listed(prompt, in_cell=False)) is not None:
        if _are_texts(listed):
            return [("user", text) for text in listed]
        return [message for item in listed if (message := _message(item, dropped, any_role)) is not None]
    if not isinstance(prompt, str):
        raise DocumentError(
            f"no text: neither {columns.prompt} nor {columns.messages} among its keys {', '.join(document) or '(none)'}"
        )
    answer = _text(document, columns.answer)
    return [("user", prompt), ("assistant", answer)] if answer else [("user", prompt)]


def _questions(document: Mapping[str, Any], columns: Columns) -> RecordedConversation | None:
    """Return the turns of a prompt that is a list of questions, as in MT-Bench, with the answers that are known."""
    listed = _listed(_value(document, columns.prompt), in_cell=False) or []
    if not _are_texts(listed) or _listed(_value(document, columns.messages), in_cell=True) is not None:
        return None
    known = _listed(_value(document, columns.answer), in_cell=False) or []
    answers = [text if isinstance(text, str) and text.strip() else None for text in known] + [None] * len(listed)
    asked = (Exchange(text, answer) for text, answer in zip(listed, answers, strict=False) if text.strip())
    return RecordedConversation(tuple(asked))


# Bodies of requests in files of a batch API: OpenAI's and Anthropic's; of AIPerf's traces.
_BODIES = ("body", "params", "payload")
# Limits of an answer in a body: its planned length, as no answer is recorded.
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
# Keys of a record, its body or its turns that change the load and are not sent.
_CHANGES_LOAD = (
    "delay timestamp image images audio audios video videos extra temperature top_p top_k min_p stop stop_sequences n seed "
    "frequency_penalty presence_penalty repetition_penalty logit_bias logprobs prompt_logprobs response_format structured_outputs "
    "tool_choice thinking reasoning reasoning_effort chat_template_kwargs min_tokens ignore_eos priority"
)
_NOT_SENT = frozenset((*_CHANGES_LOAD.split(), *_LIMITS))
_CONVERSATIONS = ("conversations", "conversation", "items")  # of ShareGPT's files
_PROMPT = Columns().prompt


def _count_not_sent(document: Mapping[str, Any], dropped: Counter[str], *lengths: str) -> None:
    """Count the keys that are not sent. `lengths`: those that are used as lengths of answers."""
    for key in sorted((_NOT_SENT & document.keys()).difference(lengths)):
        value = document[key]
        if not is_missing(value) and (value or key != "delay"):
            dropped[f"`{key}`"] += 1


def _are_turns(value: Any) -> bool:
    """Return whether a value is a list of turns of AIPerf or SGLang: with a text, or with new messages."""
    keys = {"text", "texts", "messages"}
    turns = value if isinstance(value, list) else []
    return bool(turns) and all(isinstance(turn, Mapping) and keys & turn.keys() for turn in turns)


def _of_turns(document: Mapping[str, Any], columns: Columns, dropped: Counter[str]) -> Mapping[str, Any]:
    """Return a document of turns as one with a list of questions, each with its planned length."""
    systems: list[str] = []
    asked: list[str] = []
    lengths: list[Any] = []
    for turn in document["turns"]:
        _count_not_sent(turn, dropped)
        dropped.update(["`tools`"] if turn.get("tools") else [])
        said = _said(turn, dropped)
        of_system = [text for role, text in said if role == "system"]
        if of_system and asked:
            dropped["later system messages"] += len(of_system)
        else:
            systems += of_system
        dropped.update("answers in turns" for role, _ in said if role == "assistant")
        text = "\n".join(text for role, text in said if role == "user")
        if text.strip():
            asked.append(text)
            lengths.append(turn.get("output_length"))
        elif not of_system:
            dropped["turns without text"] += 1
    system = {columns.system: "\n".join(systems)} if systems else {}
    return {**document, columns.prompt: asked, columns.output_tokens: lengths, **system}


def _said(turn: Mapping[str, Any], dropped: Counter[str]) -> list[RoleText]:
    """Return the texts of a turn: those of its messages, or its own."""
    messages = turn.get("messages")
    if not isinstance(messages, list):
        parts = turn.get("texts") or [turn.get("text")]
        named = [part.get("contents") or () if isinstance(part, Mapping) else (part,) for part in parts]
        content = [text for texts in named for text in texts if isinstance(text, str)]
        messages = [{"role": turn.get("role"), "content": content}]
    return [message for item in messages if (message := _message(item, dropped, any_role=True)) is not None]


def _keyed(document: Any, columns: Columns, dropped: Counter[str]) -> Any:
    """Return a document with keys: a text is a prompt, a list the messages or turns; a line of a batch is its request's body."""
    if isinstance(document, str):
        return {columns.prompt: document}
    if isinstance(document, list) and (_are_texts(document) or (document and all(map(is_message, document)))):
        return {columns.messages: document}
    if _are_turns(document):
        document = {"turns": document}
    if not isinstance(document, Mapping):
        return document
    _count_not_sent(document, dropped, columns.output_tokens)
    if all(_value(document, key) is None for key in (columns.prompt, columns.messages, *_CONVERSATIONS)):
        turns = document.get("turns")
        if _are_turns(turns):
            return _of_turns(document, columns, dropped)
        prompt = turns if isinstance(turns, list) and _are_texts(turns) else document.get("text")  # as AIPerf's
        if prompt and columns.prompt == _PROMPT:
            document = {**document, columns.prompt: prompt}
    if document.get("output_length") is not None:
        document = {columns.output_tokens: document["output_length"], **document}
    body = next((document[key] for key in _BODIES if isinstance(document.get(key), Mapping)), None)
    if body is None or any(_value(document, key) is not None for key in (columns.prompt, columns.messages)):
        return document
    limit = next((body[key] for key in _LIMITS if body.get(key) is not None), None)
    _count_not_sent(body, dropped, *_LIMITS)
    said = body.get("messages", body.get("input"))
    system = body.get("system", body.get("instructions"))
    names = {columns.prompt: body.get("prompt"), columns.messages: said, columns.system: system}
    if isinstance(said, str):  # /v1/responses
        names |= {columns.prompt: said, columns.messages: None}
    names = {name: value for name, value in names.items() if value is not None}
    return {**body, **names} | ({} if limit is None else {columns.output_tokens: limit})


def _value(document: Mapping[str, Any], name: str) -> Any:
    """Return the value of a key, or of a path of keys and positions such as `body.messages` or `turns.0`; None if missing."""
    if name in document:
        return document[name]
    value: Any = document
    for part in name.split(".") if "." in name else ():
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isascii() and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return None if value is document else value


def _listed(value: Any, *, in_cell: bool) -> list[Any] | None:
    """Return the elements of a list, also of one that is a text in a cell of a table, or a column for each key."""
    if in_cell and isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return None
    if isinstance(value, Mapping) and value and all(isinstance(column, list) for column in value.values()):
        return [dict(zip(value, row, strict=False)) for row in zip(*value.values(), strict=False)]
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else None


def _are_texts(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)


def is_message(value: Any) -> bool:
    """Return True for an object with the role of a message."""
    return isinstance(value, Mapping) and ("role" in value or "from" in value)


# Keys of a message's text: of OpenAI, ShareGPT, Gemini, OpenAssistant.
_CONTENTS = ("content", "value", "parts", "text")
_OF_TOOLS = ("tool", "function", "tool_result", "observation", "ipython")


def _message(message: Any, dropped: Counter[str], any_role: bool) -> RoleText | None:
    if not isinstance(message, dict | Mapping):  # dict first: the check for Mapping is slow
        dropped["no messages"] += 1
        return None
    name = str(message.get("role", message.get("from"))).lower()
    text = next((message[key] for key in _CONTENTS if message.get(key) is not None), None)
    role = _ROLES.get(name, "user" if any_role else None)
    if role is None:
        dropped["messages of tools" if name in _OF_TOOLS else "messages of other roles"] += 1
        return None
    if message.get("tool_calls") or message.get("function_call"):
        calls = message.get("tool_calls")
        dropped["tool calls"] += len(calls) if isinstance(calls, list) else 1
    if not isinstance(text, str) and isinstance(text, Sequence):  # parts, of which only texts are sent
        text = "\n".join([content for part in text if (content := _part(part, dropped)) is not None])
    if not isinstance(text, str):
        dropped["messages without text"] += 1
        return None
    return role, text


def _part(part: Any, dropped: Counter[str]) -> str | None:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) else None
    if isinstance(text, str):
        return text
    kind = part.get("type") if isinstance(part, Mapping) else None
    dropped[f"{kind if isinstance(kind, str) and len(kind) <= _LONGEST_KIND else 'unknown'} parts"] += 1
    return None


_LONGEST_KIND = 32


def _conversation(messages: list[RoleText], dropped: Counter[str]) -> RecordedConversation | Skip:
    """Return one turn per user message. Consecutive messages of one role are joined."""
    merged: list[RoleText] = []
    for role, text in messages:
        if merged and merged[-1][0] == role:
            merged[-1] = role, f"{merged[-1][1]}\n{text}"
        elif text.strip():
            merged.append((role, text))
        else:
            dropped["empty messages"] += 1
    first = next((number for number, (role, _) in enumerate(merged) if role == "user"), None)
    if first is None:
        return "one side only"
    lead = tuple(message for message in merged[:first] if message[0] == "system")
    if first > len(lead):
        dropped["answers before the first question"] += first - len(lead)
    turns: list[Exchange] = []
    for role, text in merged[first:]:
        if role == "user":
            turns.append(Exchange(text))
        elif role == "assistant" and turns[-1].answer is None:
            turns[-1] = Exchange(turns[-1].question, text)
        else:
            dropped["later system messages" if role == "system" else "second answers"] += 1
    return RecordedConversation(tuple(turns), lead)


def _first_two(messages: list[RoleText], dropped: Counter[str]) -> RecordedConversation | Skip:
    """Return one turn: the first message and, as its answer, the second, whatever their roles."""
    if len(messages) < 2:
        return "one side only"
    if len(messages) > 2:
        dropped["messages after the first two"] += len(messages) - 2
    return RecordedConversation((Exchange(messages[0][1], messages[1][1]),))


def _whole_prompt(messages: list[RoleText], dropped: Counter[str]) -> RecordedConversation | Skip:
    """Return one turn: all messages up to the last user message are the prompt."""
    last = max((number for number, (role, _) in enumerate(messages) if role == "user"), default=None)
    if last is None:
        return "one side only"
    later = messages[last + 1 :]
    answer = next((text for role, text in later if role == "assistant"), None)
    if len(later) > (answer is not None):
        dropped["messages after the answer"] += len(later) - (answer is not None)
    return RecordedConversation((Exchange(messages[last][1], answer),), tuple(messages[:last]))


_SAMPLERS = {"conversation": _conversation, "first_two": _first_two, "whole_prompt": _whole_prompt}


def _text(document: Mapping[str, Any], key: str) -> str | None:
    value = _value(document, key)
    if isinstance(value, list):  # parts, of which only texts are sent
        value = "\n".join([text for part in value if (text := _part(part, Counter())) is not None])
    return value if isinstance(value, str) and value.strip() else None


def _tokens(name: str, length: object) -> int | None:
    if is_missing(length):
        return None
    try:
        tokens = count_of({name: length}, name)
    except TraceFault:
        tokens = 0
    if tokens < 1:
        raise DocumentError(f"{name} is {length!r}; it must be a whole number from 1")
    return tokens


def _tools(document: Mapping[str, Any], columns: Columns) -> bytes:
    tools = _value(document, columns.tools)
    if isinstance(tools, str) and tools.strip():  # cell of a table
        try:
            tools = msgspec.json.decode(tools)
        except msgspec.DecodeError as error:
            raise DocumentError(f"{columns.tools} is not JSON: {error}") from None
    if not tools:
        return b""
    if not isinstance(tools, list):
        raise DocumentError(f"{columns.tools} must be a JSON array")
    return msgspec.json.encode(tools)
