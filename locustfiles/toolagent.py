"""Live agent with three real, harmless tools: a calculator, a clock, and the files of a temporary folder.

locust -f locustfiles/agent.py --scenario agent-live --host http://server:8000

The server needs automatic tool choice: vllm serve MODEL --enable-auto-tool-choice --tool-call-parser ...
"""

import ast
import json
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from inferload.workload.live_agent import LiveAgent, MessageDict, Say

_OPERATIONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def calculate(expression: str) -> float:
    """Return the value of an expression of numbers, + - * / and parentheses. ValueError for anything else."""

    def value(node: ast.AST) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return float(_OPERATIONS[type(node.op)](value(node.left), value(node.right)))
        raise ValueError(f"cannot calculate {expression!r}: use numbers, + - * / and parentheses")

    return value(ast.parse(expression[:200], mode="eval").body)


def definition(name: str, text: str, **arguments: str) -> dict[str, Any]:
    """Return a tool definition with text arguments, given by name and description."""
    properties = {key: {"type": "string", "description": meaning} for key, meaning in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": [*arguments]}
    return {"type": "function", "function": {"name": name, "description": text, "parameters": parameters}}


TOOLS = (
    definition("calculate", "Calculate.", expression="numbers, + - * / and parentheses"),
    definition("clock", "The time now, in UTC."),
    definition("list_files", "The files of the folder, with their sizes in bytes."),
)


class ToolAgent(LiveAgent):
    """Agent that asks one question and calls tools until an answer has no tool call."""

    def __init__(self, session: int, rng: Random) -> None:
        super().__init__(session, rng)
        self._folder = TemporaryDirectory(prefix="inferload-agent-")
        for number in range(rng.randint(2, 5)):
            Path(self._folder.name, f"note-{number}.txt").write_text("x" * rng.randint(1, 999))

    def step(self, messages: Sequence[MessageDict]) -> Say | None:
        """Return the question first, then the results of the tool calls."""
        if not messages:
            question = f"List the files, add {self.session} to the sum of their sizes, and say when you did it."
            return Say([{"role": "user", "content": question}], TOOLS)
        calls = messages[-1].get("tool_calls") or ()
        return Say([self._result(call) for call in calls], TOOLS) if calls else None

    def close(self) -> None:
        """Remove the folder."""
        self._folder.cleanup()

    def _result(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result message of a call. An error becomes the result, so that the model can retry."""
        function = call["function"]
        try:
            content = self._call(function["name"], json.loads(function["arguments"] or "{}"))
        except (ValueError, KeyError, TypeError, SyntaxError, ArithmeticError, RecursionError) as error:
            content = f"error: {type(error).__name__}: {error}"
        return {"role": "tool", "tool_call_id": call["id"], "content": content}

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if name == "calculate":
            return f"{calculate(str(arguments['expression'])):g}"
        if name == "clock":
            return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
        if name == "list_files":
            files = sorted(Path(self._folder.name).iterdir())
            return "\n".join(f"{file.name} {file.stat().st_size}" for file in files)
        raise ValueError(f"unknown tool {name!r}")
