"""Tools of a chat request: vLLM's checks, random calls, and calls in the history."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from . import json_fields
from .errors import ApiError, invalid
from .script import ToolCall, call_pieces
from .text import VOCABULARY

_VALUES: Mapping[str, Any] = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None}


@dataclass(frozen=True, slots=True)
class Tools:
    """Callable functions. `choice` is none, auto, required, or named with the function name in `named`."""

    functions: Sequence[Mapping[str, Any]] = ()
    choice: str = "none"
    named: str | None = None


def parse_tools(document: Mapping[str, Any]) -> Tools:
    """Parse the tools of a chat request. Raise ApiError if vLLM would refuse them."""
    tools = json_fields.items(document, "tools")
    if tools is not None and not tools:
        raise ApiError("tools: empty list; add a tool or remove the key", param="tools")
    choice = document.get("tool_choice", "auto" if tools else "none")
    named = _named(choice, tools) if choice not in (None, "none") else None
    functions = [_function(tool, index) for index, tool in enumerate(tools or ())]
    if named is not None and named not in (function["name"] for function in functions):
        raise ApiError(f"tool_choice: {named} is not among the tools", param="tool_choice")
    return Tools(functions, "named" if named is not None else str(choice or "none"), named)


def _named(choice: Any, tools: Any) -> str | None:
    if not tools:
        raise ApiError("tool_choice: needs tools", param="tool_choice")
    if isinstance(choice, dict):
        function = choice.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ApiError("tool_choice: needs a function name", param="tool_choice.function.name")
        return str(function["name"])
    if choice not in ("auto", "required"):
        raise ApiError(f"tool_choice: {choice!r}: needs none, auto, required or a function", param="tool_choice")
    return None


def _function(tool: Any, index: int) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid(f"tools.{index}.function", "needs an object with a name")
    if tool.get("type", "function") != "function":
        raise invalid(f"tools.{index}.type", "needs function")
    json_fields.mapping(function, "parameters")
    return function


def check_parsers(tools: Tools, parser: bool, auto: bool) -> None:
    """Raise ApiError if the server lacks a flag required for the choice."""
    if tools.choice == "auto" and not (parser and auto):
        raise ApiError('tool_choice "auto": start the server with --enable-auto-tool-choice and --tool-call-parser')
    if tools.choice in ("required", "named") and not parser:
        raise ApiError(f"tool_choice {tools.named or tools.choice}: start the server with --tool-call-parser")


def choose_calls(tools: Tools, random: Random, auto_share: float) -> tuple[ToolCall, ...]:
    """Draw the call of an answer: always if required, else in a share `auto_share` of the answers."""
    if not tools.functions or tools.choice == "none" or (tools.choice == "auto" and random.random() >= auto_share):
        return ()
    function = random.choice([each for each in tools.functions if tools.named in (None, each["name"])])
    arguments = json.dumps(_arguments(function.get("parameters"), random), ensure_ascii=False)
    return (ToolCall(f"chatcmpl-tool-{random.getrandbits(64):016x}", function["name"], arguments),)


def _arguments(schema: Any, random: Random) -> dict[str, Any]:
    """Values of the top-level properties of a schema, by `enum` or `type`; nested schemas are not followed."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return {name: _value(each, random) for name, each in properties.items()} if isinstance(properties, dict) else {}


def _value(schema: Any, random: Random) -> Any:
    fields = schema if isinstance(schema, dict) else {}
    if isinstance(fields.get("enum"), list) and fields["enum"]:
        return random.choice(fields["enum"])
    kind = fields.get("type")
    return _VALUES[kind] if isinstance(kind, str) and kind in _VALUES else random.choice(VOCABULARY)


def history_tokens(message: Mapping[str, Any], index: int) -> list[str]:
    """Tokens of the tool calls of an earlier message, as the model wrote them. Raise ApiError for other types."""
    earlier = []
    for call in json_fields.items(message, "tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) and call.get("type") == "function" else None
        fields = function if isinstance(function, dict) else {}
        texts: list[Any] = [call.get("id") if fields else None, fields.get("name"), fields.get("arguments")]
        if not all(isinstance(text, str) for text in texts):
            raise invalid(f"messages.{index}.tool_calls", "needs functions with id, type, name, and arguments as text")
        earlier.append(ToolCall(*texts))
    return [piece.token for piece in call_pieces(earlier)[:-1]]
