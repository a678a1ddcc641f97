"""Collector of an answer as later requests carry it: as the server sent it, with fields that inferload does not know. No I/O.

It is collected from the events, beside what is measured, and only for turns whose answers are a part of a history. An endpoint's
`message` function writes it back (`inferload.workload.content.history`).
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import msgspec

from inferload.client.answers import lenient
from inferload.client.answers.answer import ToolCalls
from inferload.client.answers.merge import grow, grow_content, whole
from inferload.client.answers.number_bounds import UNDECODABLE
from inferload.workload.content.history import ITEM_TYPES, call_document, object_of, type_of, without_last_thought
from inferload.workload.content.messages import ToolCall

MOST_BYTES = 1 << 20  # of a turn

_TEXTS = ("content", "reasoning", "reasoning_content", "thinking", "reasoning_details", "refusal")
# Fields that no request takes.
_OF_REPLIES = frozenset(
    {"role", "finish_reason", "stop_reason", "logprobs", "usage", "token_ids", "token_id", "index", "executed_tools"}
)
# Events that are kept.
_WHOLE = (b"output_item.done", b"response.created", b"response.completed", b"response.incomplete")
_APPENDED = frozenset({"signature"})  # by deltas of Anthropic's API
_OF_CALLS = frozenset({"index", "id", "function"})


class Kept:
    """Answer to keep: pass the data of all events, and the texts of events that only have one."""

    def __init__(self) -> None:
        self.size = 0  # of the events since the answer was measured, and of the answer then
        self.too_large = False
        self.kept: list[Any] = []  # unfinished values

    def event(self, data: bytes) -> None:
        if self.too_large:
            return
        try:
            documents = [msgspec.json.decode(data)]
        except UNDECODABLE:
            try:
                documents = lenient.documents(data)
            except lenient.Broken:  # the turn fails
                return
        try:
            for document in documents:
                if isinstance(document, dict):
                    self.add(document)
            self.size += len(data)
            if self.size > MOST_BYTES:
                self.size = len(msgspec.json.encode(whole(self.kept)))
        except RecursionError:
            self.size = MOST_BYTES + 1
        self.too_large = self.size > MOST_BYTES

    def add(self, document: dict[str, Any]) -> None:
        raise NotImplementedError

    def json(self, calls: tuple[ToolCall, ...]) -> bytes | None:
        """Return the answer as JSON; b"" if it has only text and `calls`, its calls with their ids; None if it is too large."""
        if self.too_large:
            return None
        try:
            parts = self.parts(calls)
            encoded = b"" if parts is None else msgspec.json.encode(parts)
        except RecursionError:
            return None
        return encoded if len(encoded) <= MOST_BYTES else None

    def parts(self, calls: tuple[ToolCall, ...]) -> Any:
        raise NotImplementedError


class ChatKept(Kept):
    """Fields of a chat message apart from a text content."""

    def __init__(self) -> None:
        super().__init__()
        self._fields: dict[str, Any] = {}
        self.kept.append(self._fields)
        self._calls = ToolCalls()

    def add(self, document: dict[str, Any]) -> None:
        """Add the first choice of an event."""
        choices = document.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return
        delta, message = choice.get("delta"), choice.get("message")
        begun = self._fields or self._calls.others() or (isinstance(delta, dict) and any(delta.values()))
        if isinstance(message, dict) and not begun:
            delta = message
        if not isinstance(delta, dict):
            return
        for key, value in delta.items():
            if value is None or key in _OF_REPLIES:
                continue
            if key == "content":
                grow_content(self._fields, value)
            elif key == "tool_calls":
                for position, call in enumerate(value if isinstance(value, list) else [value]):
                    self._call(position, call)
            elif key == "function_call":
                self._call(0, {"index": 0, "function": value})
            elif key == "audio" and isinstance(value, dict):  # a request has its id only
                grow(self._fields, {key: {"id": value.get("id")}})
            else:
                grow(self._fields, {key: value})

    def text(self, key: str, text: str) -> None:
        if key == "content":
            grow_content(self._fields, text)
        elif key in _TEXTS:
            grow(self._fields, {key: text})

    def _call(self, position: int, call: Any) -> None:
        if not isinstance(call, dict) or not call:
            return
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        index, arguments = call.get("index"), function.get("arguments")
        if isinstance(arguments, dict | list):
            arguments = "{}"  # the answer has the text
        texts = [text if isinstance(text, str) else None for text in (call.get("id"), function.get("name"), arguments)]
        others = {key: value for key, value in call.items() if key not in _OF_CALLS and value is not None}
        of_function = {key: value for key, value in function.items() if key not in ("name", "arguments")}
        if of_function:
            others["function"] = of_function
        if any(texts) or others.keys() - {"type"}:
            parts = self._calls.add(_index(index, f"at {position}"), *texts)
            if not parts.others:
                self.kept.append(parts.others)
            grow(parts.others, others)

    def parts(self, calls: tuple[ToolCall, ...]) -> dict[str, Any] | None:
        """Return the fields; None for a text with plain calls."""
        fields: dict[str, Any] = whole(self._fields)
        for key in _TEXTS:
            if key == "content" and isinstance(fields.get(key), list):
                fields[key] = [part for part in fields[key] if not (isinstance(part, dict) and part.get("text") == "")]
            is_text = key == "content" and isinstance(fields.get(key), str)
            needed = key == "reasoning_content" and calls  # DeepSeek refuses calls without it
            if key in fields and (is_text or not (fields[key] or needed)):
                del fields[key]
        if fields.get("audio") == {}:
            del fields["audio"]
        others = [whole(each) for each in self._calls.others()]
        if not fields and all(set(each) <= {"type"} and each.get("type") in (None, "function") for each in others):
            return None
        if calls:
            others = others if len(others) == len(calls) else [{}] * len(calls)
            fields["tool_calls"] = [call_document(call, each) for call, each in zip(calls, others, strict=True)]
        return fields


class MessagesKept(Kept):
    """Content blocks of a message of Anthropic's API, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[int, dict[str, Any]] = {}  # by index

    def add(self, document: dict[str, Any]) -> None:
        """Add the start of a block, or one of its deltas: all their texts are appended."""
        kind, index = document.get("type"), _index(document.get("index"))
        if kind == "content_block_start" and isinstance(started := document.get("content_block"), dict):
            self._block(index, started)
        elif kind == "content_block_delta" and isinstance(delta := document.get("delta"), dict):
            name = str(delta.pop("type", ""))
            block = self._latest.get(index)
            if block is None:
                block = self._block(index, {"type": name.removesuffix("_delta")})
            if name == "citations_delta":
                delta = {"citations": [delta.get("citation")]}
            grow(block, delta, append=_APPENDED)

    def _block(self, index: int, started: dict[str, Any]) -> dict[str, Any]:
        block: dict[str, Any] = {}
        grow(block, started)
        self.kept.append(block)
        self._latest[index] = block
        return block

    def parts(self, calls: tuple[ToolCall, ...]) -> list[dict[str, Any]] | None:
        """Return the blocks; None for a text alone. A block that the server would refuse is left out."""
        blocks, left = [], list(calls)
        for each in self.kept:
            block = whole(each)
            kind, arguments = block.get("type"), block.pop("partial_json", None)
            if kind == "tool_use":
                if not left:
                    return None
                call = left.pop(0)
                block |= {"id": call.call_id, "name": call.name, "input": object_of(call.arguments)}
            elif isinstance(arguments, str) and arguments:
                block["input"] = object_of(arguments)
            # An API with signatures has one from the start; without it, the thinking was cut.
            if kind == "thinking" and "signature" not in block and (not block.get("thinking") or "signature" in each):
                continue
            if kind != "text" or str(block.get("text", "")).strip():
                blocks.append(block)
        plain = len(self.kept) < 2 and all(block.keys() == {"type", "text"} for block in blocks)
        return None if plain and len(blocks) == len(self.kept) else blocks


class ResponsesKept(Kept):
    """Output items of a response."""

    def __init__(self) -> None:
        super().__init__()
        self._response: dict[str, Any] = {}

    def event(self, data: bytes) -> None:
        """Add an event, unless it is a part of an item: their ends have them whole."""
        if any(map(data.__contains__, _WHOLE)):
            super().event(data)

    def add(self, document: dict[str, Any]) -> None:
        """Add a whole item, or the whole response."""
        response = document.get("response")
        if document.get("type") == "response.output_item.done":
            self.kept.append([_index(document.get("output_index"), len(self.kept)), document.get("item")])
        elif isinstance(response, dict):
            self._response = response

    def parts(self, calls: tuple[ToolCall, ...]) -> list[dict[str, Any]] | None:
        """Return the items. Left out are those that were cut, and thoughts that a server that does not store them cannot find."""
        output = self._response.get("output")
        listed = output if isinstance(output, list) else []
        found = [item for _index, item in sorted(self.kept, key=itemgetter(0))]
        found = listed if len(listed) > len(found) else found  # of servers that give all items one index
        if not found or not all(isinstance(each, dict) for each in found):
            return None
        items, left, known = [], list(calls), [call.call_id for call in calls]
        for each in found:
            item = whole(_without_null(each) if type_of(each) in ITEM_TYPES else each)
            kind = item.get("type")
            if kind in ("function_call", "custom_tool_call"):
                if not left:
                    return None
                call = left.pop(0)
                if item.get("call_id") not in known:
                    item["call_id"] = call.call_id
            if kind == "reasoning" and (
                item.get("status") == "incomplete"
                or (self._response.get("store") is False and not (item.get("content") or item.get("encrypted_content")))
            ):
                continue
            if kind != "message" or item.get("content"):
                items.append(item)
        return without_last_thought(items)


def _index(value: object, other: Any = 0) -> Any:
    is_number = isinstance(value, int) or (isinstance(value, str) and value.isdecimal() and len(value) < 9)
    return int(value) if is_number else other  # type: ignore[call-overload]


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, list) else value
