"""Answers of /v1/responses as items and typed events, in vLLM 0.32's format. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from inferload.content.messages import ToolCall

from ..protocol.completion_request import CompletionRequest
from ..protocol.http import LAST_CHUNK
from ..protocol.response_input import is_function
from ..protocol.script import ARGUMENTS, CALL, CONTENT, REASONING, TokenPiece
from .event_builder import TypedEvents
from .usage import Group, Timings, in_full


class ResponseEvents(TypedEvents):
    """Events of a response. `parameters` is the JSON document of the request."""

    def __init__(
        self,
        completion: CompletionRequest,
        group: Group,
        parameters: Mapping[str, Any],
        *,
        number: str,
        created_s: int,
        model: str,
        framed: bool,
    ) -> None:
        super().__init__(completion, group, framed)
        self._parameters, self._created, self._model = parameters, created_s, model
        self._id, self._number = f"resp_{number}", number
        self._sequence = 0
        self._items: list[dict[str, Any]] = []  # complete items
        self._open: dict[str, Any] | None = None
        self._text = ""

    def opening(self) -> bytes:
        """Events sent before the first token."""
        response = self._response("in_progress", None, None)
        events = self._event("response.created", {"response": response})
        return self._bytes(events + self._event("response.in_progress", {"response": response}))

    def role(self) -> bytes:
        """Return no event: roles are in the items."""
        return b""

    def closing(self, cached_tokens: int, timings: Timings) -> bytes:
        """Completion event with the whole response."""
        self._group.ended(cached_tokens)
        whole = self._response(self._status, timings, self._items)
        events = self._bytes(self._event("response.completed", {"response": whole}))
        return events + (LAST_CHUNK if self._framed else b"")

    def document(self, cached_tokens: int, timings: Timings) -> dict[str, Any]:
        """Whole response as one JSON document."""
        self._group.ended(cached_tokens)
        for piece in self._completion.script.pieces(0, self._completion.output_tokens):
            self._add(piece)
        self._close()
        for item in self._items:
            if item["type"] == "reasoning":
                item["status"] = None
        return self._response(self._status, timings, self._items)

    @property
    def _status(self) -> str:
        return "completed" if self._completion.ends_itself else "incomplete"

    def _add(self, piece: TokenPiece) -> str:
        kind = piece.kind
        if kind == CALL:
            return self._close() + self._open_call(self._completion.script.calls[piece.call])
        if kind not in (REASONING, CONTENT, ARGUMENTS) or not piece.text:
            return ""
        events = ""
        if kind != ARGUMENTS and (self._open is None or self._open["type"] != _ITEM[kind]):
            events = self._close() + self._open_text(kind)
        self._text += piece.text
        assert self._open is not None
        base: dict[str, Any] = {"delta": piece.text, "item_id": self._open["id"], "output_index": len(self._items)}
        if kind != ARGUMENTS:
            base["content_index"] = 0
        if kind == CONTENT:
            base["logprobs"] = []
        return events + self._event(_DELTA[kind], base)

    def _open_call(self, call: ToolCall) -> str:
        self._text = ""
        self._open = {
            **{"arguments": "", "call_id": call.call_id, "name": call.name, "type": "function_call"},
            **{"id": f"fc_{self._item_id()}", "async": None, "caller": None, "namespace": None},
            "status": "in_progress",
        }
        return self._event("response.output_item.added", {"item": self._open, "output_index": len(self._items)})

    def _open_text(self, kind: str) -> str:
        self._text = ""
        if kind == REASONING:
            part: dict[str, Any] = {"text": "", "type": "reasoning_text"}
            opened: dict[str, Any] = {
                "id": f"rs_{self._item_id()}",
                "summary": [],
                "type": "reasoning",
                "content": None,
            }
            opened |= {"encrypted_content": None, "status": "in_progress"}
        else:
            part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
            opened = {"id": f"msg_{self._item_id()}", "content": [], "role": "assistant", "status": "in_progress"}
            opened |= {"type": "message", "phase": None}
        self._open = opened
        index = len(self._items)
        events = self._event("response.output_item.added", {"item": opened, "output_index": index})
        part_event = {"content_index": 0, "item_id": opened["id"], "output_index": index, "part": part}
        return events + self._event("response.content_part.added", part_event)

    def _close(self) -> str:
        if self._open is None:
            return ""
        item, index, text = self._open, len(self._items), self._text
        base: dict[str, Any] = {"item_id": item["id"], "output_index": index}
        if item["type"] == "function_call":
            item = {**item, "arguments": text, "status": "completed"}
            done = {**base, "arguments": text, "name": item["name"]}
            events = self._event("response.function_call_arguments.done", done)
        else:
            events, item = self._close_text(item, text, {"content_index": 0, **base})
        events += self._event("response.output_item.done", {"item": item, "output_index": index})
        self._items.append(item)
        self._open = None
        return events

    def _close_text(self, item: dict[str, Any], text: str, base: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if item["type"] == "reasoning":
            part: dict[str, Any] = {"text": text, "type": "reasoning_text"}
            events = self._event("response.reasoning_text.done", {**base, "text": text})
        else:
            part = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
            events = self._event("response.output_text.done", {**base, "logprobs": [], "text": text})
        events += self._event("response.content_part.done", {**base, "part": part})
        return events, {**item, "content": [part], "status": "completed"}

    def _item_id(self) -> str:
        return f"{self._number}{len(self._items):02x}"

    def _event(self, name: str, document: dict[str, Any]) -> str:
        data = dict(sorted({**document, "sequence_number": self._sequence, "type": name}.items()))
        self._sequence += 1
        return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"

    def _response(self, status: str, timings: Timings | None, items: list[dict[str, Any]] | None) -> dict[str, Any]:
        """Response document as in vLLM; without `timings`, that of a response in progress."""
        parameters, complete = self._parameters, timings is not None
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        tools = [_tool(tool) for tool in parameters.get("tools") or () if is_function(tool)]
        document: dict[str, Any] = {
            **{"id": self._id, "created_at": self._created, "incomplete_details": cut},
            **{
                "instructions": parameters.get("instructions"),
                "metadata": parameters.get("metadata"),
                "model": self._model,
            },
            **{
                "object": "response",
                "output": items or [],
                "parallel_tool_calls": _value_or(parameters, "parallel_tool_calls", True),
            },
            **{"temperature": _value_or(parameters, "temperature", 1.0), "tool_choice": self._tool_choice(bool(tools))},
            **{"tools": tools, "top_p": _value_or(parameters, "top_p", 1.0), "background": False},
            **{"max_output_tokens": self._completion.output_limit, "max_tool_calls": parameters.get("max_tool_calls")},
            **{"previous_response_id": None, "prompt": None, "reasoning": parameters.get("reasoning")},
            **{
                "service_tier": _value_or(parameters, "service_tier", "auto"),
                "status": status,
                "text": parameters.get("text"),
            },
            **{
                "top_logprobs": parameters.get("top_logprobs"),
                "truncation": _value_or(parameters, "truncation", "disabled"),
            },
            **{"usage": self._usage() if complete else None, "user": parameters.get("user")},
        }
        if timings is not None:
            document["metrics"] = in_full(timings) if self._group.options.per_request_metrics else None
        penalties = {key: _value_or(parameters, key, 0.0) for key in ("presence_penalty", "frequency_penalty")}
        rest = ("kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages")
        return {**document, **penalties, **dict.fromkeys(rest)}

    def _tool_choice(self, tools: bool) -> Any:
        return _value_or(self._parameters, "tool_choice", "auto") if tools else "none"

    def _usage(self) -> dict[str, Any]:
        prompt, output, thought = self._group.counts()
        cached = (self._group.cached or 0) if self._group.options.prompt_tokens_details else 0
        input_details = {"cached_tokens": cached, "cache_write_tokens": 0}
        output_details = {"reasoning_tokens": thought, "tool_output_tokens": 0}
        return {
            "input_tokens": prompt,
            "input_tokens_details": {**input_details, "input_tokens_per_turn": [], "cached_tokens_per_turn": []},
            "output_tokens": output,
            "output_tokens_details": {
                **output_details,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": prompt + output,
        }


_ITEM = {REASONING: "reasoning", CONTENT: "message"}
_DELTA = {
    REASONING: "response.reasoning_text.delta",
    CONTENT: "response.output_text.delta",
    ARGUMENTS: "response.function_call_arguments.delta",
}


def _value_or(document: Mapping[str, Any], key: str, default: Any) -> Any:
    value = document.get(key)
    return default if value is None else value


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    named = {key: tool.get(key) for key in ("name", "parameters", "strict")}
    rest = ("allowed_callers", "async", "defer_loading", "description", "output_schema")
    return {**named, "type": "function", **{key: tool.get(key) for key in rest}}
