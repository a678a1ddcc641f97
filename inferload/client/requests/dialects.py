"""JSON formats of the endpoints: chat completions, completions, responses, and Anthropic messages.

Input: messages whose text is already a JSON string. The encoding of a message depends on that message alone, so that it is
encoded once for all turns.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from inferload.scenario.scenario import RequestOptions
from inferload.scenario.schema.endpoints import Endpoint, MaxTokensField
from inferload.workload.content.messages import Message, ToolCall
from inferload.workload.content.script import Ask

# Anthropic's API requires a limit; sent if the workload sets none.
MESSAGES_MAX_TOKENS = 4096

Encoded = Sequence[tuple[Message, bytes]]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Encoders of one endpoint.

    `message`: one message with its text as a JSON string. `context`: the keys with all messages. `options`: all other keys.
    """

    message: Callable[[Message, bytes], bytes]
    context: Callable[[Encoded], bytes]
    options: Callable[[RequestOptions, Ask], dict[str, Any]]


def sendable(text: str) -> str:
    """Return the text as valid UTF-8: halves of surrogate pairs joined, single halves replaced."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def _joined(encoded: Encoded) -> bytes:
    return b",".join([body for _message, body in encoded if body])


# -- chat completions


def _chat_message(message: Message, text: bytes) -> bytes:
    parts = [b'{"role":"', message.role.encode(), b'","content":', text]
    # Most messages have only text.
    if not (message.images or message.reasoning or message.tool_calls) and message.tool_call_id is None:
        parts.append(b"}")
        return b"".join(parts)
    if message.images:
        images = [_json({"type": "image_url", "image_url": {"url": url}}) for url in message.images]
        parts[-1] = b"[" + b",".join((*images, b'{"type":"text","text":' + text + b"}")) + b"]"
    if message.reasoning:
        parts += [b',"reasoning":', _json(sendable(message.reasoning))]
    if message.tool_calls:
        calls = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
        parts += [b',"tool_calls":', _json(calls)]
    if message.tool_call_id is not None:
        parts += [b',"tool_call_id":', _json(message.tool_call_id)]
    return b"".join((*parts, b"}"))


def _chat_context(encoded: Encoded) -> bytes:
    return b'"messages":[' + _joined(encoded) + b"]"


def _stream_options(request: RequestOptions) -> dict[str, Any]:
    if not request.usage:
        return {"stream": True}
    continuous = {"continuous_usage_stats": True} if request.continuous_usage else {}
    return {"stream": True, "stream_options": {"include_usage": True} | continuous}


def limit_key(request: RequestOptions, endpoint: Endpoint) -> MaxTokensField | Literal["max_output_tokens"]:
    """Return the key of the limit of an answer."""
    if endpoint == "responses":
        return "max_output_tokens"
    return request.max_tokens_field if endpoint == "chat" and request.max_tokens_field != "auto" else "max_tokens"


def _limited(request: RequestOptions, ask: Ask, endpoint: Endpoint) -> dict[str, Any]:
    options = _stream_options(request)
    if ask.output_tokens is not None:
        options[limit_key(request, endpoint)] = ask.output_tokens
    if request.ignore_eos:
        options["ignore_eos"] = True
    return options


def _chat_options(request: RequestOptions, ask: Ask) -> dict[str, Any]:
    options = _limited(request, ask, "chat")
    if ask.tools:
        options["tools"] = msgspec.Raw(ask.tools)
    if ask.tool_choice is not None:
        options["tool_choice"] = ask.tool_choice
    return options


# -- completions: concatenated texts without roles. An answer follows its prompt directly, as the model generated it, so that a
# prefix cache finds it; a blank line precedes any other message.


def _plain_text(message: Message, text: bytes) -> bytes:
    if message.images or message.tool_calls:
        raise ValueError("the completions endpoint does not support images and tool calls")
    return text


def _completions_options(request: RequestOptions, ask: Ask) -> dict[str, Any]:
    if ask.tools:
        raise ValueError("the completions endpoint does not support tools")
    return _limited(request, ask, "completions")


def _prompt(encoded: Encoded) -> bytes:
    parts: list[bytes] = []
    for message, text in encoded:
        if parts:
            parts.append(_gap(parts[-1], text) if message.role == "assistant" else rb"\n\n")
        parts.append(text[1:-1])
    return b'"prompt":"' + b"".join(parts) + b'"'


def _gap(before: bytes, text: bytes) -> bytes:
    """Return a blank between two words: generated and recorded answers do not start with one."""
    return b" " if _WORD_END.search(before[-8:]) and text[1:2].isalnum() else b""


_WORD_END = re.compile(rb"(?<!\\)[A-Za-z0-9]$(?<!\\u[0-9a-f]{4})")


# -- responses


def _input_items(message: Message, text: bytes) -> bytes:
    if message.tool_call_id is not None:
        head = {"type": "function_call_output", "call_id": message.tool_call_id}
        return _json(head)[:-1] + b',"output":' + text + b"}"
    items = []
    if message.reasoning:
        reasoning = {"type": "reasoning_text", "text": sendable(message.reasoning)}
        items.append(_json({"type": "reasoning", "summary": [], "content": [reasoning]}))
    if not (message.tool_calls and text == b'""'):
        items.append(b'{"role":"' + message.role.encode() + b'","content":' + _input_content(message, text) + b"}")
    for call in message.tool_calls:
        item = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        items.append(_json(item))
    return b",".join(items)


def _input_content(message: Message, text: bytes) -> bytes:
    if not message.images:
        return text
    images = [_json({"type": "input_image", "detail": "auto", "image_url": url}) for url in message.images]
    return b"[" + b",".join((*images, b'{"type":"input_text","text":' + text + b"}")) + b"]"


def _responses_options(request: RequestOptions, ask: Ask) -> dict[str, Any]:
    options: dict[str, Any] = {"stream": True, "store": False}
    if ask.output_tokens is not None:
        options["max_output_tokens"] = ask.output_tokens
    if request.ignore_eos:
        options["ignore_eos"] = True
    if ask.tools:
        options["tools"] = [{"type": "function"} | tool["function"] for tool in msgspec.json.decode(ask.tools)]
    if ask.tool_choice is not None:
        name = _named(ask.tool_choice)
        options["tool_choice"] = ask.tool_choice if name is None else {"type": "function", "name": name}
    return options


def _named(tool_choice: Any) -> str | None:
    """Return the tool that a chat-completions `tool_choice` names; None for auto, none and required."""
    return tool_choice["function"]["name"] if isinstance(tool_choice, Mapping) else None


# -- messages (Anthropic): a separate system prompt, contents in blocks


def _blocks(message: Message, text: bytes) -> bytes:
    if message.role == "system":
        return text
    if message.tool_call_id is not None:
        head = _json({"type": "tool_result", "tool_use_id": message.tool_call_id})
        return b'{"role":"user","content":[' + head[:-1] + b',"content":' + text + b"}]}"
    blocks = [_json({"type": "image", "source": _source(url)}) for url in message.images]
    if message.reasoning:
        blocks.append(_json({"type": "thinking", "thinking": sendable(message.reasoning), "signature": ""}))
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
    return _json({"type": "tool_use", "id": call.call_id, "name": call.name, "input": arguments})


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
    options: dict[str, Any] = {"stream": True, "max_tokens": ask.output_tokens or MESSAGES_MAX_TOKENS}
    if ask.tools:
        options["tools"] = [_anthropic_tool(tool["function"]) for tool in msgspec.json.decode(ask.tools)]
    if ask.tool_choice is not None:
        name = _named(ask.tool_choice)
        word = {"required": "any"}.get(ask.tool_choice, ask.tool_choice) if name is None else "tool"
        options["tool_choice"] = {"type": word} | ({} if name is None else {"name": name})
    return options


def _anthropic_tool(function: Mapping[str, Any]) -> dict[str, Any]:
    description = {"description": function["description"]} if "description" in function else {}
    return {"name": function["name"], **description, "input_schema": function.get("parameters", {"type": "object"})}


DIALECTS: Mapping[Endpoint, Dialect] = {
    "chat": Dialect(_chat_message, _chat_context, _chat_options),
    "completions": Dialect(_plain_text, _prompt, _completions_options),
    "responses": Dialect(_input_items, lambda encoded: b'"input":[' + _joined(encoded) + b"]", _responses_options),
    "messages": Dialect(_blocks, _system_and_messages, _messages_options),
}
