"""Responses of OpenAI: /responses."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from inferload.client.answers.responses import ResponsesAnswer
from inferload.client.endpoints.dialect import Dialect, Encoded, joined, to_json, tool_named, words
from inferload.client.requests.call_checks import input_of
from inferload.scenario.schema.request import RequestOptions
from inferload.workload.content.history import CALL_TYPES, THOUGHT_TYPES, native_list, type_of
from inferload.workload.content.messages import NO_TEXT, Message, sendable
from inferload.workload.content.script import Ask

_LIMIT_KEY = "max_output_tokens"
_FIELDS = words("""
        instructions reasoning text top_p top_k top_logprobs truncation previous_response_id conversation include metadata
        parallel_tool_calls max_tool_calls user service_tier store prompt_cache_key safety_identifier request_id priority
        cache_salt mm_processor_kwargs ignore_eos seed stop
        """)


def _input_items(message: Message, text: bytes) -> bytes:
    """Return a message as items, each with its type: llama.cpp refuses an answer without."""
    if message.tool_call_id is not None:
        head = {"type": "function_call_output", "call_id": message.tool_call_id}
        return to_json(head)[:-1] + b',"output":' + text + b"}"
    native = native_list(message)
    if text == b'""' and message.role == "assistant" and not message.tool_calls:
        text = NO_TEXT
    types = {type_of(item) for item in native or ()}
    items = [to_json(item) for item in native or ()]
    if message.reasoning and native is None:
        reasoning = {"type": "reasoning_text", "text": sendable(message.reasoning)}
        items.append(to_json({"type": "reasoning", "summary": [], "content": [reasoning]}))
    if types <= THOUGHT_TYPES and not (message.tool_calls and text == b'""'):
        begin = b'{"type":"message","role":"' + message.role.encode() + b'","content":'
        items.append(begin + _input_content(message, text) + b"}")
    sent = [item.get("call_id") for item in native or () if type_of(item) in CALL_TYPES]
    for call in message.tool_calls:
        item = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        items += [] if call.call_id in sent else [to_json(item)]
    return b",".join(items)


def _input(encoded: Encoded) -> bytes:
    """Return all items; the result of a custom tool has a type of its own."""
    custom = [
        item.get("call_id")
        for message, _body in encoded
        if b'"custom_tool_call"' in message.native
        for item in native_list(message) or ()
        if type_of(item) == "custom_tool_call"
    ]
    of_custom = (b"function_call", b"custom_tool_call", 1)
    encoded = [(each, body.replace(*of_custom) if each.tool_call_id in custom else body) for each, body in encoded]
    return b'"input":[' + joined(encoded) + b"]"


def _input_content(message: Message, text: bytes) -> bytes:
    if not message.images:
        return text
    images = [to_json({"type": "input_image", "detail": "auto", "image_url": url}) for url in message.images]
    return b"[" + b",".join((*images, b'{"type":"input_text","text":' + text + b"}")) + b"]"


def _responses_options(request: RequestOptions, ask: Ask) -> dict[str, Any]:
    options: dict[str, Any] = {"stream": True, "store": False}
    if ask.output_tokens is not None:
        options[_LIMIT_KEY] = ask.output_tokens
    if request.ignore_eos:
        options["ignore_eos"] = True
    if ask.tools:
        options["tools"] = [{"type": "function"} | tool["function"] for tool in msgspec.json.decode(ask.tools)]
    if ask.tool_choice is not None:
        name = tool_named(ask.tool_choice)
        options["tool_choice"] = ask.tool_choice if name is None else {"type": "function", "name": name}
    return options


DIALECT = Dialect(
    answer=ResponsesAnswer,
    message=_input_items,
    context=_input,
    options=_responses_options,
    limit_key=lambda _request: _LIMIT_KEY,
    checked=partial(input_of, name="input", kind=Mapping, items="items such as {'role': 'user', 'content': '...'}"),
    fields=_FIELDS,
    logprobs=lambda count: {"top_logprobs": count, "include": ["message.output_text.logprobs"]},
)
