"""Answers as messages of later requests, as the server sent them, for sessions of scenarios, live agents and conversations.

`Message.native` is JSON that only the endpoint of the answer writes: the fields of a chat message apart from a text content, or
the list of blocks (/messages) or items (/responses) of the whole answer.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from inferload.workload.content.messages import Message, Piece, ToolCall, sendable

MessageDict = Mapping[str, Any]  # message in the format of the chat API

CALL_TYPES = frozenset({"tool_use", "function_call", "custom_tool_call"})
THOUGHT_TYPES = frozenset({"thinking", "redacted_thinking", "reasoning"})
ITEM_TYPES = ("reasoning", "message", "function_call", "custom_tool_call")
_OF_MESSAGES = ("role", "content", "tool_call_id", "native")
_BLANK = {"tool_calls": [], "reasoning": ""}
_THOUGHTS = ("reasoning", "reasoning_content", "thinking", "reasoning_details")  # fields of a chat message


def edited(native: bytes, *, reasoning: bool, calls: bool) -> bytes:
    """Return the answer without its reasoning, or without its calls."""
    value = msgspec.json.decode(native)
    drop = (frozenset() if reasoning else THOUGHT_TYPES) | (frozenset() if calls else CALL_TYPES)
    if isinstance(value, list):
        left: Any = without_last_thought(_without(value, drop))
    else:
        names = (() if reasoning else _THOUGHTS) + (() if calls else ("tool_calls",))
        left = {name: field for name, field in value.items() if name not in names}
        if isinstance(parts := left.get("content"), list):
            left["content"] = _without(parts, drop)  # in its place: `has_reasoning` compares
        if not left.get("content", True):
            del left["content"]
    return msgspec.json.encode(left) if left or isinstance(value, list) else b""


def without_last_thought(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return items without a hidden reasoning at their end: OpenAI takes it only before the item that followed it."""
    while items and type_of(items[-1]) == "reasoning" and not items[-1].get("content"):
        items = items[:-1]
    return items


def without_ids(native: bytes) -> bytes:
    """Return an answer that a history has twice: services refuse the same id. Left out is what cannot be without one."""
    value = msgspec.json.decode(native) if native else None
    if not isinstance(value, list):
        return native
    left = [item for item in value if type_of(item) in ITEM_TYPES or not {"id", "tool_use_id"} & item.keys()]
    for item in left:
        item.pop("id", None)
    return msgspec.json.encode(left)


def has_reasoning(native: bytes) -> bool:
    """Return True if the reasoning of an answer is separate from its text."""
    return bool(native) and edited(native, reasoning=False, calls=True) != native


def _without(parts: list[Any], types: frozenset[str]) -> list[Any]:
    """Return the parts of other types, without calls of the server's own tools that have no result yet."""
    results = [part.get("tool_use_id") for part in parts if isinstance(part, dict)]
    left = [part for part in parts if type_of(part) not in types]
    return [part for part in left if not type_of(part).endswith("_tool_use") or part.get("id") in results]


def type_of(part: Any) -> str:
    """Return the type of a part, block or item; "" if it has none."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""


def native_list(message: Message) -> list[dict[str, Any]] | None:
    """Return the blocks or items of an answer; None if there are none of the server."""
    value = msgspec.json.decode(message.native) if message.native else None
    return value if isinstance(value, list) else None


def with_whole_calls(native: bytes, calls: tuple[ToolCall, ...]) -> tuple[bytes, tuple[ToolCall, ...]]:
    """Return an answer that was cut: the half arguments of a call, which servers refuse, are a text in an object."""
    mended = tuple(msgspec.structs.replace(call, arguments=_whole_arguments(call.arguments)) for call in calls)
    value = msgspec.json.decode(native) if native else None
    value = _without(value, frozenset()) if isinstance(value, list) else value
    of_chat = value.get("tool_calls", ()) if isinstance(value, dict) else ()
    for each in [*(value if isinstance(value, list) else ()), *(call.get("function") for call in of_chat)]:
        if isinstance(each, dict) and isinstance(arguments := each.get("arguments"), str):
            each["arguments"] = _whole_arguments(arguments)
    return msgspec.json.encode(value) if native else native, mended


def _whole_arguments(arguments: str) -> str:
    found = object_of(arguments)
    return msgspec.json.encode(found).decode() if "unparsed" in found else arguments


def object_of(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call as an object, which Anthropic's API needs; those of a cut call as a text in one."""
    try:
        found: dict[str, Any] = msgspec.json.decode(arguments or "{}", type=dict)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {"unparsed": sendable(arguments)}
    return found


def call_document(call: ToolCall, others: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Return a call in the format of the chat API. `others`: its further fields."""
    kind = others.get("type") or "function"
    document = {"id": call.call_id, "type": kind}
    if kind == "function" or call.name:
        document["function"] = {"name": call.name, "arguments": call.arguments} | others.get("function", {})
    return document | {name: field for name, field in others.items() if name not in ("type", "function")}


def chat_document(message: Message, content: Any) -> dict[str, Any]:
    """Return a message as the chat API takes it. `content`: its text."""
    native = msgspec.json.decode(message.native) if message.native else None
    fields: dict[str, Any] = native if isinstance(native, dict) else {}
    document = {"role": message.role, "content": content} | fields
    if message.reasoning and not fields:
        document["reasoning"] = sendable(message.reasoning)
    if message.tool_calls and "tool_calls" not in fields:
        document["tool_calls"] = [call_document(call) for call in message.tool_calls]
    if "tool_calls" not in document and document.get("reasoning_content") == "":
        del document["reasoning_content"]  # of calls that are left out
    if message.tool_call_id is not None:
        document["tool_call_id"] = message.tool_call_id
    return document


def text_of(message: Message) -> str:
    """Return the text of a message without generated pieces."""
    return " ".join(piece.literal or "" for piece in message.pieces)


def as_document(message: Message) -> dict[str, Any]:
    """Return a message in the format of the chat API, with a text content. `native`: a content of another form, as it came."""
    text = text_of(message)
    document = chat_document(message, text)
    if not isinstance(document["content"], str):
        document |= {"content": text, "native": {"content": document["content"]}}
    return document | ({} if (parts := native_list(message)) is None else {"native": parts})


def as_message(document: MessageDict) -> Message:
    """Convert a message of the chat API with a text content, as of `as_document`. ValueError for other contents or roles."""
    role, content = document.get("role"), document.get("content")
    if role not in ("system", "user", "assistant", "tool"):
        raise ValueError(f"role of a message is {role!r}; use system, user, assistant or tool")
    if not isinstance(content, str):
        raise ValueError(f"content of a {role} message is {type(content).__name__}; it must be text")
    calls = tuple(
        ToolCall(call["id"], function.get("name", ""), function.get("arguments", ""))
        for call in document.get("tool_calls") or ()
        for function in (call.get("function") or {},)
    )
    message = Message(
        role,
        (Piece("live", None, content),),
        next((text for name in _THOUGHTS if isinstance(text := document.get(name), str)), ""),
        calls,
        document.get("tool_call_id"),
    )
    native, known = document.get("native"), chat_document(message, content)
    fields = {
        name: field for name, field in document.items() if field is not None and (field or name not in known | _BLANK)
    }
    if not isinstance(native, list) and any(known.get(name) != field for name, field in fields.items()):
        native = {name: field for name, field in fields.items() if name not in _OF_MESSAGES} | (native or {})
    return message if native is None else msgspec.structs.replace(message, native=msgspec.json.encode(native))
