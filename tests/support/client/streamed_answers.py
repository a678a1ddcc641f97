"""Answers of servers as streamed events, cut in any way. `cut`: draws a whole number up to a limit."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

from inferload.scenario.schema.endpoints import EndpointName

Json = dict[str, Any]
Cut = Callable[[int], int]
_TEXTS = {"text": "text_delta", "thinking": "thinking_delta", "signature": "signature_delta"}


def deltas_of(value: Json, cut: Cut) -> list[Json]:
    """Return an object in pieces."""
    queues = {key: pieces_of(key, part, cut) for key, part in value.items()}
    deltas: list[Json] = []
    while queues:
        taken = [key for key in queues if cut(2)] or [next(iter(queues))]
        deltas.append({key: queues[key].pop(0) for key in taken} | ({"nothing": None} if cut(1) else {}))
        queues = {key: left for key, left in queues.items() if left}
    return deltas or [{}]


def pieces_of(key: str, part: Any, cut: Cut) -> list[Any]:
    """Return a field in pieces: parts of a text, of an object, of items by their index; other values may be repeated."""
    if isinstance(part, dict):
        return deltas_of(part, cut)
    if isinstance(part, list) and part and all(isinstance(item, dict) and "index" in item for item in part):
        rests = [{name: field for name, field in item.items() if name != "index"} for item in part]
        pieces = [[{"index": at} | delta] for at, rest in enumerate(rests) for delta in deltas_of(rest, cut)]
        return pieces if cut(1) else [part]
    if isinstance(part, str) and key in ("id", "type", "signature", "format"):
        return [part] * (1 + cut(2))
    if isinstance(part, str | list) and len(part) > 1:
        at = 1 + cut(len(part) - 2)
        return [part[:at], *pieces_of(key, part[at:], cut)]
    return [part] if isinstance(part, str | list) else [part] * (1 + cut(1))


def chunk(delta: Json | None = None, finish: str | None = None, **more: Any) -> Json:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish, "token_ids": [1]}
    return {"id": "x", "choices": [choice], **more}


def text_event(endpoint: EndpointName, text: str, *, thought: bool = False) -> Json:
    kind = "thinking" if thought else "text"
    return {
        "chat": chunk({"reasoning_content" if thought else "content": text}),
        "completions": {"choices": [{"delta": {"reasoning": text}} if thought else {"text": text}]},
        "responses": {"type": f"response.{'reasoning' if thought else 'output'}_text.delta", "delta": text},
        "messages": {"type": "content_block_delta", "delta": {"type": f"{kind}_delta", kind: text}},
    }[endpoint]


def end_events(
    endpoint: EndpointName, tokens: int, reason: str = "length", hidden: int = 0, prompt: int | None = 7
) -> list[Json]:
    """Return the last events of an answer. `hidden`: of its output tokens; `prompt`: tokens, None: without a usage."""
    details = {"reasoning_tokens": hidden, "thinking_tokens": hidden}
    if endpoint in ("chat", "completions"):
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "completion_tokens_details": details}
        return [chunk(finish=reason), {"choices": [], **({} if prompt is None else {"usage": usage})}]
    counts = {"input_tokens": prompt, "output_tokens": tokens, "output_tokens_details": details}
    counted = {} if prompt is None else {"usage": counts}
    if endpoint == "messages":
        return [{"type": "message_delta", "delta": {"stop_reason": reason}, **counted}, {"type": "message_stop"}]
    kind = "completed" if reason == "stop" else "incomplete"
    return [{"type": f"response.{kind}", "response": {"id": "r", **counted}}]


def chat_events(message: Json, cut: Cut) -> Iterator[Json]:
    """Yield the events of a chat message; the id and the name of a call come first."""
    fields = {name: field for name, field in message.items() if name not in ("role", "tool_calls")}
    deltas = [{"role": "assistant", "content": ""}, *deltas_of(fields, cut)]
    for index, call in enumerate(message.get("tool_calls", ())):
        begun = {name: call[name] for name in ("id", "type")} | {"function": {"name": call["function"]["name"]}}
        rest = call | {"function": {name: field for name, field in call["function"].items() if name != "name"}}
        deltas += [{"tool_calls": [{"index": index} | delta]} for delta in (begun, *deltas_of(rest, cut))]
    yield from map(chunk, deltas)
    yield from end_events("chat", 9, "tool_calls" if "tool_calls" in message else "stop")


def block_events(content: list[Json], cut: Cut) -> Iterator[Json]:
    """Yield the events of a message of Anthropic's API."""
    yield {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 10, "output_tokens": 1}}}
    for index, block in enumerate(content):
        begun = {name: "" if name in _TEXTS else field for name, field in block.items() if name != "citations"}
        begun |= {"input": {}} if "input" in block else {}
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        texts = [(name, piece) for name in _TEXTS if name in block for piece in pieces_of("", block[name], cut)]
        deltas = [{"type": _TEXTS[name], name: piece} for name, piece in texts]
        if "input" in block:
            whole = json.dumps(block["input"])
            deltas += [{"type": "input_json_delta", "partial_json": piece} for piece in pieces_of("", whole, cut)]
        deltas += [{"type": "citations_delta", "citation": citation} for citation in block.get("citations", ())]
        yield from ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        yield {"type": "content_block_stop", "index": index}
    reason = "tool_use" if content[-1]["type"] == "tool_use" else "end_turn"
    yield from end_events("messages", 9, reason)


WAYS = ("deltas", "done", "added and done", "added")
_DELTAS = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}


def item_events(items: list[Json], ways: Iterable[str] = repeat("deltas"), *, listed: bool = True) -> Iterator[Json]:
    """Yield the events of a response. `ways`: of each item, one of WAYS; `listed`: the end has the items, too."""
    yield {"type": "response.created", "response": {"id": "r", "store": False}}
    for (index, item), way in zip(enumerate(items), ways, strict=False):
        called = "call" in item["type"]
        begun = item | ({"arguments": "", "input": ""} if called else {"content": None, "summary": []})
        if way != "done":
            added = item if called and way == "added" else begun
            yield {"type": "response.output_item.added", "output_index": index, "item": added}
        if way == "deltas":
            kind = _DELTAS.get(item["type"], "custom_tool_call_input")
            texts = [part["text"] for part in item.get("content") or item.get("summary", ())]
            for letter in "".join(texts) or item.get("arguments") or item.get("input", ""):
                yield {"type": f"response.{kind}.delta", "output_index": index, "delta": letter}
        null = {"phase": None} if item["type"] == "message" else {}
        yield {"type": "response.output_item.done", "output_index": index, "item": item | null}
    (end,) = end_events("responses", 9, "stop")
    end["response"] |= {"store": False, "output": items if listed else []}
    yield end
