"""Tools of a chat request: vLLM's checks, random calls, and calls in the history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from inferload.content.messages import ToolCall

from . import json_fields
from .errors import ApiError, invalid
from .schema import example
from .script import call_pieces, make_call

_TWO_CALLS = 0.2  # share of answers with two calls among those with calls, if parallel calls are allowed


@dataclass(frozen=True, slots=True)
class Tools:
    """Callable functions. `choice` is none, auto, required, or named with the function name in `named`."""

    functions: Sequence[Mapping[str, Any]] = ()
    choice: str = "none"
    named: str | None = None
    parallel: bool = True


def parse_tools(document: Mapping[str, Any]) -> Tools:
    """Parse the tools of a chat request. Raise ApiError if vLLM would refuse them."""
    tools = document.get("tools")
    if isinstance(tools, list) and not tools:
        raise ApiError("tools: empty list; add a tool or remove the key", param="tools")
    choice = document.get("tool_choice", "auto" if tools else "none")
    named = _named(choice, tools) if choice not in (None, "none") else None
    functions = [_function(tool, index) for index, tool in enumerate(json_fields.items(document, "tools") or ())]
    if named is not None and named not in (function["name"] for function in functions):
        raise ApiError(f"tool_choice: {named} is not among the tools", param="tool_choice")
    parallel = json_fields.flag(document, "parallel_tool_calls", True)
    return Tools(functions, "named" if named is not None else str(choice or "none"), named, parallel)


def _named(choice: Any, tools: Any) -> str | None:
    if not tools:
        raise ApiError("tool_choice: needs tools", param="tool_choice")
    if isinstance(choice, dict):
        function = choice.get("function")
        if not isinstance(function, dict) or not function:
            raise ApiError("tool_choice: needs a function", param="tool_choice.function")
        if not isinstance(function.get("name"), str):
            raise ApiError("tool_choice: needs a function name", param="tool_choice.function.name")
        return str(function["name"])
    if choice not in ("auto", "required"):
        raise ApiError(f"tool_choice: {choice!r}: needs none, auto, required or a function", param="tool_choice")
    return None


def _function(tool: Any, index: int) -> Mapping[str, Any]:
    if not isinstance(tool, dict):
        raise invalid(f"tools.{index}", "needs an object")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise invalid(f"tools.{index}.function", "needs an object with a name")
    if not isinstance(function.get("name"), str):
        raise invalid(f"tools.{index}.function.name", "needs a string")
    return function


def check_parsers(tools: Tools, parser: bool, auto: bool) -> None:
    """Raise ApiError if the server lacks a flag required for the choice."""
    if tools.choice == "auto" and not (parser and auto):
        raise ApiError('tool_choice "auto": start the server with --enable-auto-tool-choice and --tool-call-parser')
    if tools.choice in ("required", "named") and not parser:
        raise ApiError(f"tool_choice {tools.named or tools.choice}: start the server with --tool-call-parser")


def choose_calls(tools: Tools, random: Random, auto_share: float) -> tuple[ToolCall, ...]:
    """Draw the calls of an answer: one or two, always if required, else in a share `auto_share` of the answers."""
    first, second = random.random(), random.random()
    if not tools.functions or tools.choice == "none" or (tools.choice == "auto" and first >= auto_share):
        return ()
    functions = [function for function in tools.functions if tools.named in (None, function["name"])]
    count = 2 if tools.named is None and tools.parallel and second < _TWO_CALLS else 1
    picked = [random.choice(functions) for _ in range(count)]
    return tuple(
        make_call(function["name"], example(function.get("parameters") or {}, random), random) for function in picked
    )


def history_tokens(calls: Any) -> list[str]:
    """Tokens of the tool calls of an earlier message, as the model wrote them; none for other types."""
    earlier = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            earlier.append(ToolCall("", str(function.get("name")), str(function.get("arguments") or "")))
    return [piece.token for piece in call_pieces(earlier)[:-1]]
