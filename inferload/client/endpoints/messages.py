"""Messages of Anthropic: /messages. The system prompt is separate, and contents are blocks."""

from collections.abc import Mapping
from typing import Any

import msgspec

from inferload.client.answers.anthropic import MessagesAnswer
from inferload.client.endpoints.chat import messages_of
from inferload.client.endpoints.dialect import Dialect, Encoded, sendable, to_json, tool_named, words
from inferload.scenario.schema.request import RequestOptions
from inferload.workload.content.messages import Message, ToolCall
from inferload.workload.content.script import Ask

_LIMIT_KEY = "max_tokens"
_MAX_TOKENS = 4096  # the API requires a limit; sent if the workload sets none
_FIELDS = words("system stop_sequences top_p top_k thinking metadata service_tier container context_management")


def _blocks(message: Message, text: bytes) -> bytes:
    if message.role == "system":
        return text
    if message.tool_call_id is not None:
        head = to_json({"type": "tool_result", "tool_use_id": message.tool_call_id})
        return b'{"role":"user","content":[' + head[:-1] + b',"content":' + text + b"}]}"
    blocks = [to_json({"type": "image", "source": _source(url)}) for url in message.images]
    if message.reasoning:
        blocks.append(to_json({"type": "thinking", "thinking": sendable(message.reasoning), "signature": ""}))
    calls = [_tool_use(call) for call in message.tool_calls]
    if not blocks and not calls:
        return b'{"role":"' + message.role.encode() + b'","content":' + text + b"}"
    if text != b'""':
        blocks.append(b'{"type":"text","text":' + text + b"}")
    return b'{"role":"' + message.role.encode() + b'","content":[' + b",".join((*blocks, *calls)) + b"]}"


def _tool_use(call: ToolCall) -> bytes:
    try:
        arguments = msgspec.json.decode(call.arguments, type=dict)
    except (msgspec.DecodeError, UnicodeEncodeError):
        arguments = {"unparsed": sendable(call.arguments)}  # of a truncated call: the endpoint accepts objects only
    return to_json({"type": "tool_use", "id": call.call_id, "name": call.name, "input": arguments})


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
