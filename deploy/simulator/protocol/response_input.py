"""Conversion of /v1/responses requests to chat requests. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from . import json_fields
from .errors import ApiError, invalid


def chat_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a response request to a chat request. Raise ApiError if invalid."""
    content = document.get("input")
    if content is None:
        raise invalid("input", "is missing")
    if not isinstance(content, str | list):
        raise invalid("input", "needs a string or a list of items")
    if json_fields.flag(document, "background"):
        kind = "invalid_request_error"
        raise ApiError("background: not supported, since responses are not stored", kind=kind, param="background")
    if (before := json_fields.text(document, "previous_response_id")) is not None:
        raise ApiError(f"response {before}: responses are not stored", 404, "invalid_request_error", "response_id")
    messages: list[Any] = []
    if instructions := json_fields.text(document, "instructions"):
        messages.append({"role": "system", "content": instructions})
    messages += [{"role": "user", "content": content}] if isinstance(content, str) else _messages(content)
    chat = {key: value for key, value in document.items() if key not in ("input", "instructions", "stream_options")}
    chat |= {"messages": messages, "max_completion_tokens": document.get("max_output_tokens"), "max_tokens": None}
    chat |= {"logprobs": None, "top_logprobs": None, "n": None, "return_token_ids": None}
    if (tools := json_fields.items(document, "tools")) is not None:
        chat["tools"] = [{"type": "function", "function": tool} for tool in tools if is_function(tool)]
    if not chat.get("tools"):
        chat.pop("tools", None)
        chat.pop("tool_choice", None)
    elif isinstance(choice := document.get("tool_choice"), dict):
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    reasoning = json_fields.mapping(document, "reasoning") or {}
    if reasoning.get("effort"):
        chat["reasoning_effort"] = reasoning["effort"]
    text_format = (json_fields.mapping(document, "text") or {}).get("format")
    if isinstance(text_format, dict) and text_format.get("type") == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": text_format}
    return chat


def is_function(tool: Any) -> bool:
    """Return True for a function of the client, False for a built-in tool of the server."""
    return isinstance(tool, dict) and tool.get("type") == "function"


def _messages(items: list[Any]) -> list[Any]:
    messages: list[Any] = []
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise invalid(f"input.{index}", "needs an object")
        if item.get("type") == "function_call":
            call = {"function": {"name": item.get("name"), "arguments": item.get("arguments")}}
            if messages and messages[-1].get("role") == "assistant":
                messages[-1].setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif item.get("type") == "function_call_output":
            output = item.get("output")
            messages.append({"role": "tool", "content": output if isinstance(output, str) else json.dumps(output)})
        elif item.get("type") != "reasoning":
            messages.append(dict(item))
    return messages


def check_tools(chat: Mapping[str, Any], auto: bool) -> dict[str, Any]:
    """Disable tools if automatic tool choice is off. Unlike a chat request, a response request is not refused for it."""
    choice = chat.get("tool_choice", "auto")
    if "tools" in chat and choice == "auto" and not auto:
        return {**chat, "tool_choice": "none"}
    return dict(chat)
