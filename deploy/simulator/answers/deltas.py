"""`delta` of a chat chunk, and tool calls of a message. Pure."""

import json
from collections.abc import Sequence
from typing import Any

from ..protocol.completion_request import CompletionRequest
from ..protocol.script import ARGUMENTS, CALL, CONTENT, REASONING, TokenPiece, ToolCall


def call_document(call: ToolCall) -> dict[str, Any]:
    """Tool call of a message."""
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def delta_of(pieces: Sequence[TokenPiece], completion: CompletionRequest) -> str:
    """`delta` of a chunk for these tokens; empty without visible output."""
    delta: dict[str, Any] = {}
    for kind in (CONTENT, REASONING):
        if text := "".join(piece.text for piece in pieces if piece.kind == kind):
            delta[kind] = text
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        _add_call(calls, piece, completion)
    if calls:
        delta = {"content": None, **delta, "tool_calls": calls}
    return f'"delta":{compact(delta)}' if delta else ""


def _add_call(calls: list[dict[str, Any]], piece: TokenPiece, completion: CompletionRequest) -> None:
    if piece.kind == CALL:
        call = completion.script.calls[piece.call]
        calls.append({"id": call.call_id, "type": "function", "index": piece.call, "function": {"name": call.name}})
    elif piece.kind == ARGUMENTS:
        if calls and calls[-1]["index"] == piece.call:
            function = calls[-1]["function"]
            function["arguments"] = function.get("arguments", "") + piece.text
        else:
            calls.append({"index": piece.call, "function": {"arguments": piece.text}})


def compact(document: Any) -> str:
    """JSON without spaces."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
