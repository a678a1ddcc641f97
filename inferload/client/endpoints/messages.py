"""Messages of Anthropic: /messages. The system prompt is separate, and contents are blocks."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from inferload.client.answers.anthropic import MessagesAnswer
from inferload.client.endpoints.chat import messages_of
from inferload.client.endpoints.dialect import Dialect, Encoded, to_json, tool_named, words
from inferload.scenario.schema.request import RequestOptions
from inferload.workload.content.history import CALL_TYPES, THOUGHT_TYPES, native_list, object_of, type_of
from inferload.workload.content.messages import NO_TEXT, Message, ToolCall, sendable
from inferload.workload.content.script import Ask

_LIMIT_KEY = "max_tokens"
_MAX_TOKENS = 4096  # the API requires a limit; sent if the workload sets none
_FIELDS = words("system stop_sequences top_p top_k thinking metadata service_tier container context_management")


_NOT_BLANK = re.compile(rb'[^\s"\\]|\\[^nrt]')  # in a text as JSON: the API refuses texts of blanks


def _blocks(message: Message, text: bytes) -> bytes:
    if message.role == "system":
        return text
    if message.tool_call_id is not None:
        head = to_json({"type": "tool_result", "tool_use_id": message.tool_call_id})
        return b'{"role":"user","content":[' + head[:-1] + b',"content":' + text + b"}]}"
    if message.role == "assistant" and not (message.tool_calls or _NOT_BLANK.search(text)):
        text = NO_TEXT
    native = native_list(message)
    if native is not None:
        return _native(native, message, text)
    blocks = [to_json({"type": "image", "source": _source(url)}) for url in message.images]
    if message.reasoning:
        blocks.append(to_json({"type": "thinking", "thinking": sendable(message.reasoning)}))
    calls = [_tool_use(call) for call in message.tool_calls]
    if not blocks and not calls:
        return b'{"role":"' + message.role.encode() + b'","content":' + text + b"}"
    if text != b'""':
        blocks.append(b'{"type":"text","text":' + text + b"}")
    return b'{"role":"' + message.role.encode() + b'","content":[' + b",".join((*blocks, *calls)) + b"]}"


def _tool_use(call: ToolCall) -> bytes:
    return to_json({"type": "tool_use", "id": call.call_id, "name": call.name, "input": object_of(call.arguments)})


def _native(native: list[dict[str, Any]], message: Message, text: bytes) -> bytes:
    """Return an answer of the API as it came, with a text if it has only thoughts, and planned calls."""
    types = {type_of(block) for block in native}
    blocks = [to_json(block) for block in native]
    if types <= THOUGHT_TYPES and text != b'""':
        blocks.append(b'{"type":"text","text":' + text + b"}")
    if not types & CALL_TYPES:
        blocks += [_tool_use(call) for call in message.tool_calls]
    return b'{"role":"assistant","content":[' + b",".join(blocks) + b"]}"


def _source(url: str) -> dict[str, str]:
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    kind, _, data = url.removeprefix("data:").partition(",")
    return {"type": "base64", "media_type": kind.partition(";")[0], "data": data}


def _system_and_messages(encoded: Encoded) -> bytes:
    """Write leading system messages as `system`, and later ones among the messages."""
    leading = 0
    while leading < len(encoded) and encoded[leading][0].role == "system":
        leading += 1
    system = rb"\n\n".join([text[1:-1] for _message, text in encoded[:leading]])
    rest = [
        b'{"role":"system","content":' + body + b"}" if message.role == "system" else body
        for message, body in encoded[leading:]
    ]
    prefix = b'"system":"' + system + b'",' if leading else b""
    return prefix + b'"messages":[' + b",".join(rest) + b"]"


def _messages_options(request: RequestOptions, ask: Ask) -> dict[str, Any]:
    options: dict[str, Any] = {"stream": True, _LIMIT_KEY: ask.output_tokens or _MAX_TOKENS}
    if ask.tools:
        options["tools"] = [_anthropic_tool(tool["function"]) for tool in msgspec.json.decode(ask.tools)]
    if ask.tool_choice is not None:
        name = tool_named(ask.tool_choice)
        word = {"required": "any"}.get(ask.tool_choice, ask.tool_choice) if name is None else "tool"
        options["tool_choice"] = {"type": word} | ({} if name is None else {"name": name})
    return options


def _anthropic_tool(function: Mapping[str, Any]) -> dict[str, Any]:
    description = {"description": function["description"]} if "description" in function else {}
    return {"name": function["name"], **description, "input_schema": function.get("parameters", {"type": "object"})}


DIALECT = Dialect(
    answer=MessagesAnswer,
    message=_blocks,
    context=_system_and_messages,
    options=_messages_options,
    limit_key=lambda _request: _LIMIT_KEY,
    checked=messages_of,
    fields=_FIELDS,
    logprobs=lambda _count: {},
)
