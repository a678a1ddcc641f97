"""Scripts of servers that insist on their own fields: an earlier answer that does not come back as it was sent is a 400.

The n-th answer of a conversation depends on n alone: two answers call tools if the request has any, the others are texts.
"""

import json
import re
import socket
import time
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any, NamedTuple

from scripted_server import chunked
from streamed_answers import Json, block_events, chat_events, item_events

CUT = partial(Random(0).randint, 0)
NINE = re.compile("[A-Za-z0-9]{9}")
PLANNED = "look"  # tool of planned calls, which come instead of the server's


class Refused(Exception):
    """The request is refused."""


def chat_answer(number: int, called: bool) -> Json:
    """Return an answer with its reasoning, unknown fields, and two calls, one of them without an id."""
    text = "" if called else f"text {number}"
    answer: Json = {"role": "assistant", "content": text, "reasoning_content": f"thought {number}"}
    answer["annotations"] = [{"at": number}, {"at": "x"}]
    function = {"name": "list_files", "arguments": "{}", "own": {"mark": f"{number}"}}
    call = {"id": None, "type": "function", "function": function}
    signed = call | {"id": f"call{number:05}", "extra_content": {"google": {"thought_signature": "s" * 9}}}
    return answer | ({"tool_calls": [signed, call]} if called else {})


def gateway_answer(number: int, called: bool) -> Json:
    """Return an answer of parts, with the parts of its reasoning."""
    answer = chat_answer(number, called)
    del answer["reasoning_content"], answer["annotations"]
    details = [
        {"index": 0, "type": "reasoning.text", "text": f"thought {number}", "signature": f"s{number}", "format": "f-1"},
        {"index": 1, "type": "reasoning.encrypted", "data": "QUJD" * 9, "id": f"r{number}"},
    ]
    return answer | {"content": [{"type": "text", "text": f"text {number}"}], "reasoning_details": details}


def huge_answer(number: int, called: bool) -> Json:
    """Return an answer; the second one is too large to be sent back."""
    return chat_answer(number, called) | ({"blob": "x" * 1_500_000} if number else {})


def blocks(number: int, called: bool) -> list[Json]:
    """Return the content of an answer of Anthropic's API."""
    content: list[Json] = [
        {"type": "thinking", "thinking": f"thought {number}", "signature": f"signed {number}"},
        {"type": "redacted_thinking", "data": f"secret {number}"},
        {"type": "text", "text": f"text {number}", "citations": [{"cited_text": "a", "at": number}]},
    ]
    call = {"type": "tool_use", "id": f"toolu_{number}", "name": "list_files", "input": {"path": "."}}
    return content + ([call] if called else [])


def items(number: int, called: bool) -> list[Json]:
    """Return the items of a response."""
    thought = {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": f"thought {number}"}
    call = {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"c{number}",
        "name": "list_files",
        "arguments": "{}",
    }
    part = {"type": "output_text", "text": f"text {number}", "annotations": [], "logprobs": []}
    text = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [part]}
    return [thought, call if called else text]


def said_in_chat(body: Json) -> Iterable[tuple[Any, bool]]:
    """Yield the answers of a history, and whether each called tools of the server. Ids are checked, and left out."""
    called: set[str] = set()
    for message in body["messages"]:
        if message["role"] == "tool":
            called.remove(message["tool_call_id"])
        elif message["role"] == "assistant":
            if called or not all(NINE.fullmatch(call["id"]) for call in message.get("tool_calls", ())):
                raise Refused(f"ids of calls: {called}, {message}")
            called = {call["id"] for call in message.get("tool_calls", ())}
            calls = [
                call | {"id": None} for call in message.pop("tool_calls", ()) if call["function"]["name"] != PLANNED
            ]
            yield message | ({"tool_calls": calls} if calls else {}), bool(calls)


def said_in_blocks(body: Json) -> Iterable[tuple[Any, bool]]:
    for message in body["messages"]:
        if message["role"] == "assistant":
            content = [block for block in message["content"] if block.get("name") != PLANNED]
            yield content, content[-1]["type"] == "tool_use"


def said_in_items(body: Json) -> Iterable[tuple[Any, bool]]:
    own = [
        item
        for item in body["input"]
        if item["type"] in ("reasoning", "function_call") or item.get("role") == "assistant"
    ]
    own = [item for item in own if item.get("name") != PLANNED]
    ids = [item["id"] for item in own if "id" in item]
    if len(set(ids)) < len(ids):
        raise Refused(f"duplicate items: {ids}")
    for at in range(0, len(own), 2):
        yield own[at : at + 2], own[at + 1]["type"] == "function_call"


def comparable(answer: Any, sent: Any) -> Any:
    """Return an answer without ids of calls in chats, and without those of items that a history has twice."""
    if isinstance(answer, dict) and "tool_calls" in answer:
        return answer | {"tool_calls": [call | {"id": None} for call in answer["tool_calls"]]}
    if isinstance(answer, list) and "id" not in sent[0] and answer[0]["type"] == "reasoning":
        return [{name: field for name, field in item.items() if name != "id"} for item in answer]
    return answer


class Api(NamedTuple):
    """Path, n-th answer, answers in a history, and events of an answer."""

    path: bytes
    answer_of: Callable[[int, bool], Any]
    said_in: Callable[[Json], Iterable[tuple[Any, bool]]]
    events_of: Callable[[Any], Iterable[Json]]


def serve(api: Api, sock: socket.socket, request: bytes) -> None:
    """Answer a request if the answers in its history are as they were sent. Their numbers are in their reasoning."""
    head, _, data = request.partition(b"\r\n\r\n")
    page = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
    if b"/v1/models" in head:
        models = json.dumps({"data": [{"id": "scripted"}]}).encode()
        sock.sendall(page % (b"200 OK", len(models), models))
        return
    if api.path not in head:
        sock.sendall(page % (b"404 Not Found", 0, b""))
        return
    time.sleep(0.01)  # a user without a pause would take no virtual time
    body = json.loads(data)
    try:
        history = list(api.said_in(body))
        for sent, called in history:
            earlier = api.answer_of(int(re.findall(r"thought (\d+)", json.dumps(sent))[0]), called)
            if sent != comparable(earlier, sent):
                raise Refused(f"{sent} instead of {earlier}")
    except (Refused, KeyError, IndexError, TypeError) as error:
        text = json.dumps({"error": {"message": f"{type(error).__name__}: {error}"}}).encode()
        sock.sendall(page % (b"400 Bad Request", len(text), text))
        return
    calls = (
        bool(body.get("tools")) and body.get("tool_choice", "auto") in ("auto", {"type": "auto"}) and len(history) < 2
    )
    events = [
        b"data: " + json.dumps(event).encode() + b"\n\n" for event in api.events_of(api.answer_of(len(history), calls))
    ]
    sock.sendall(chunked(*events, b"data: [DONE]\n\n"))


# Chat completions with unknown fields, those of a gateway with parts, and those with a huge answer; Anthropic's API; responses.
fields, gateway, huge = (
    partial(serve, Api(b"/chat/completions", answer, said_in_chat, partial(chat_events, cut=CUT)))
    for answer in (chat_answer, gateway_answer, huge_answer)
)
signatures = partial(serve, Api(b"/messages", blocks, said_in_blocks, partial(block_events, cut=CUT)))
encrypted = partial(serve, Api(b"/responses", items, said_in_items, item_events))
