"""Conversion of /v1/messages requests (Anthropic's API) to chat requests. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from . import json_fields
from .errors import ApiError, invalid

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_COMMON_FIELDS = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "chat_template_kwargs",
    "cache_salt",
    "ignore_eos",
    "seed",
)


def chat_of(document: Mapping[str, Any], counted_only: bool = False) -> dict[str, Any]:
    """Convert a message request to a chat request. Raise ApiError if invalid. `counted_only`: for token counting."""
    limit = json_fields.integer(document, "max_tokens")
    if limit is None and not counted_only:
        raise invalid("max_tokens", "is missing")
    history = json_fields.items(document, "messages")
    if history is None:
        raise invalid("messages", "is missing")
    if limit is not None and limit < 1:
        raise ApiError(f"max_tokens: at least 1, not {limit}")
    messages: list[Any] = []
    if system := document.get("system"):
        messages.append({"role": "system", "content": _system(system)})
    for index, message in enumerate(history):
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
            raise invalid(f"messages.{index}.role", "needs an object with the role user, assistant or system")
        messages += _converted(message, index)
    chat = {key: document[key] for key in _COMMON_FIELDS if key in document}
    chat |= {"messages": messages, "max_tokens": limit, "stop": document.get("stop_sequences")}
    if tools := json_fields.items(document, "tools"):
        chat["tools"] = [_tool(tool, index) for index, tool in enumerate(tools)]
        chat |= _choice(document.get("tool_choice"))
    thinking = json_fields.mapping(document, "thinking") or {}
    if thinking.get("type") == "disabled":
        chat["chat_template_kwargs"] = {"enable_thinking": False}
    return chat


def _system(system: Any) -> str:
    if isinstance(system, str):
        return system
    if not isinstance(system, list):
        raise invalid("system", "needs a string or a list of blocks")
    return "\n".join(str(block.get("text", "")) for block in system if isinstance(block, dict))


def _converted(message: Mapping[str, Any], index: int) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"role": message["role"], "content": content}]
    if not isinstance(content, list):
        raise invalid(f"messages.{index}.content", "needs a string or a list of blocks")
    parts: list[dict[str, Any]] = []
    calls, results = [], []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            parts.append({"type": "text", "text": str(block.get("text", ""))})
        elif kind == "image":
            parts.append({"type": "image_url", "image_url": _image_url(block.get("source"))})
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            calls.append({"function": {"name": block.get("name"), "arguments": arguments}})
        elif kind == "tool_result":
            results.append({"role": "tool", "content": _result(block.get("content"))})
        elif kind not in ("thinking", "redacted_thinking"):
            raise ApiError(
                f"messages.{index}.content: {kind} blocks are not supported; use text, image and tool blocks"
            )
    own_message = [{"role": message["role"], "content": parts, "tool_calls": calls}] if parts or calls else []
    return results + own_message


def _image_url(source: Any) -> Any:
    """URL of an image, or a data URL of its bytes."""
    if not isinstance(source, dict):
        return None
    if source.get("type") == "url":
        return source.get("url")
    return f"data:{source.get('media_type')};base64,{source.get('data')}"


def _result(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _tool(tool: Any, index: int) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise invalid(f"tools.{index}.name", "needs an object with a name")
    schema = json_fields.mapping(tool, "input_schema")
    return {"type": "function", "function": {"name": tool["name"], "parameters": schema or {}}}


def _choice(choice: Any) -> dict[str, Any]:
    if not isinstance(choice, dict):
        return {}
    parallel = not choice.get("disable_parallel_tool_use")
    if choice.get("type") == "tool":
        named = {"type": "function", "function": {"name": choice.get("name")}}
        return {"tool_choice": named, "parallel_tool_calls": parallel}
    return {"tool_choice": _CHOICES.get(str(choice.get("type")), "auto"), "parallel_tool_calls": parallel}
