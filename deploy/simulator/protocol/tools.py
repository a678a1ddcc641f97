"""Tools of a chat request: vLLM's checks, random calls, and calls in the history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from . import json_fields
from .errors import ApiError, invalid
from .schema import example
from .script import ToolCall, call_pieces, make_call

_TWO_CALLS = 0.2  # share of the answers with calls that have two, where the request allows it


@dataclass(frozen=True, slots=True)
class Tools:
    """Callable functions. `choice`: none, auto, required, or named, with the function in `named`."""

    functions: Sequence[Mapping[str, Any]] = ()
    choice: str = "none"
    named: str | None = None
    parallel: bool = True


def parse_tools(document: Mapping[str, Any]) -> Tools:
    """The tools of a chat request; ApiError where vLLM's own checks would refuse them."""
    listed = document.get("tools")
    if isinstance(listed, list) and not listed:
        raise ApiError("tools: an empty list; name a tool, or leave the key out", param="tools")
    choice = document.get("tool_choice", "auto" if listed else "none")
    named = _named(choice, listed) if choice not in (None, "none") else None
    functions = [_function(tool, place) for place, tool in enumerate(json_fields.items(document, "tools") or ())]
    if named is not None and named not in (each["name"] for each in functions):
        raise ApiError(f"tool_choice: {named} is not among the tools", param="tool_choice")
    parallel = json_fields.flag(document, "parallel_tool_calls", True)
    return Tools(functions, "named" if named is not None else str(choice or "none"), named, parallel)


def _named(choice: Any, listed: Any) -> str | None:
    if not listed:
        raise ApiError("tool_choice: there are no tools to choose from", param="tool_choice")
    if isinstance(choice, dict):
        function = choice.get("function")
        if not isinstance(function, dict) or not function:
            raise ApiError("tool_choice: needs a function", param="tool_choice.function")
        if not isinstance(function.get("name"), str):
            raise ApiError("tool_choice: needs a function's name", param="tool_choice.function.name")
        return str(function["name"])
    if choice not in ("auto", "required"):
        raise ApiError(f"tool_choice: {choice!r} is not none, auto, required or a function", param="tool_choice")
    return None


def _function(tool: Any, place: int) -> Mapping[str, Any]:
    if not isinstance(tool, dict):
        raise invalid(f"tools.{place}", "needs an object")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise invalid(f"tools.{place}.function", "needs an object with a name")
    if not isinstance(function.get("name"), str):
        raise invalid(f"tools.{place}.function.name", "needs a string")
    return function


def check_parsers(tools: Tools, parser: bool, auto: bool) -> None:
    """Raise ApiError if the server lacks a flag that the choice needs."""
    if tools.choice == "auto" and not (parser and auto):
        raise ApiError('tool_choice "auto": start the server with --enable-auto-tool-choice and --tool-call-parser')
    if tools.choice in ("required", "named") and not parser:
        raise ApiError(f"tool_choice {tools.named or tools.choice}: start the server with --tool-call-parser")


def choose_calls(tools: Tools, dice: Random, auto_share: float) -> tuple[ToolCall, ...]:
    """The calls of one answer: always where one is required, else in `auto_share` of the answers; perhaps two."""
    lot, second = dice.random(), dice.random()
    if not tools.functions or tools.choice == "none" or (tools.choice == "auto" and lot >= auto_share):
        return ()
    functions = [each for each in tools.functions if tools.named in (None, each["name"])]
    count = 2 if tools.named is None and tools.parallel and second < _TWO_CALLS else 1
    picked = [dice.choice(functions) for _ in range(count)]
    return tuple(make_call(each["name"], example(each.get("parameters") or {}, dice), dice) for each in picked)


def history_tokens(calls: Any) -> list[str]:
    """The tokens of a message's tool calls, as they were when the model made them; other shapes have none."""
    made = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            made.append(ToolCall("", str(function.get("name")), str(function.get("arguments") or "")))
    return [piece.token for piece in call_pieces(made)[:-1]]
