"""Scripts of servers that insist on their own fields: an earlier answer that does not come back as it was sent is a 400.

The n-th answer of a conversation depends on n alone: two answers call tools if the request has any, the others are texts.
"""

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

from scripted_server import chunked
from streamed_answers import Json, block_events, chat_events, item_events

Events = Iterator[Json]
CUT = partial(Random(0).randint, 0)
PLANNED_ID = re.compile("[A-Za-z0-9]{9}")


class Refused(Exception):
    """The request is refused."""


def number_of(message: Any) -> int:
    """Return the number of an answer by its reasoning: the history before a run repeats one answer."""
    return int(re.findall(r"(?:thought |rs_|text )(\d+)", json.dumps(message))[0])


def chat_answer(number: int, called: bool) -> Json:
    """Return an answer with its reasoning, unknown fields, and two calls, one of them without an id."""
    answer: Json = {
        "role": "assistant",
        "content": "" if called else f"text {number}",
        "reasoning_content": f"thought {number}",
    }
    answer["annotations"] = [{"at": number, "url": None}, {"at": "x"}]
    function = {"name": "list_files", "arguments": "{}", "own": {"mark": f"{number}"}}
    call = {"id": None, "type": "function", "function": function}
    calls = [call | {"id": f"call{number:05}", "extra_content": {"google": {"thought_signature": "s" * 9}}}, call]
    return answer | ({"tool_calls": calls} if called else {})


def gateway_answer(number: int, called: bool) -> Json:
    """Return an answer of parts, with the parts of its reasoning."""
    answer = chat_answer(number, called)
    del answer["reasoning_content"], answer["annotations"]
    details = [
        {"index": 0, "type": "reasoning.text", "text": f"thought {number}", "signature": f"s{number}", "format": "f-1"},
        {"index": 1, "type": "reasoning.encrypted", "data": "QUJD" * 9, "id": f"r{number}"},
    ]
    return answer | {"content": [{"type": "text", "text": f"text {number}"}], "reasoning_details": details}


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
    thought = {
        "type": "reasoning",
        "id": f"rs_{number}",
        "summary": [{"type": "summary_text", "text": "t"}],
        "encrypted_content": "e" * 9,
    }
    call = {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"call_{number}",
        "name": "list_files",
        "arguments": "{}",
        "status": "completed",
    }
    part = {"type": "output_text", "text": f"text {number}", "annotations": [], "logprobs": []}
    text = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [part]}
    return [thought, call if called else text]  # fmt: skip


def check_calls(message: Json, expected: Json) -> None:
    """Check the calls of a chat message: those of the server, or planned ones."""
    sent = message.pop("tool_calls", [])
    own = expected.pop("tool_calls", [])
    if any(not call["id"].startswith("call0") and not PLANNED_ID.fullmatch(call["id"]) for call in sent):
        raise Refused(f"tool call ids must be nine letters and digits: {sent}")
    if own and [call | {"id": None} for call in sent] != [call | {"id": None} for call in own]:
        raise Refused(f"calls {sent} instead of {own}")


def without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_null(field) for key, field in value.items() if field is not None}
    return [without_null(each) for each in value] if isinstance(value, list) else value


def check_chat(body: Json, answer: Callable[[int, bool], Json]) -> int:
    """Check the answers and the results of calls in a history; return the number of answers."""
    said, open_ids = 0, []
    for message in body["messages"]:
        if message["role"] == "tool":
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            raise Refused(f"calls without results: {open_ids}")
        if message["role"] == "assistant":
            open_ids = [call["id"] for call in message.get("tool_calls", ())]
            of_server = bool(body.get("tools")) and body.get("tool_choice") != "none" and bool(open_ids)
            expected = without_null(answer(number_of(message), of_server))
            check_calls(message, expected)
            if message != expected:
                raise Refused(f"{message} instead of {expected}")
            said += 1
    return said


def check_blocks(body: Json) -> int:
    said = 0
    for message in body["messages"]:
        if message["role"] == "assistant":
            types = [block["type"] for block in message["content"]]
            called = "tool_use" in types and body.get("tool_choice") != {"type": "none"}
            content = [block for block in message["content"] if called or block["type"] != "tool_use"]
            if content != blocks(number_of(content), called):
                raise Refused(f"messages: {content}")
            said += 1
    return said


def check_items(body: Json) -> int:
    own = ("reasoning", "message", "function_call")
    sent = [item for item in body["input"] if item["type"] in own and item.get("role", "assistant") == "assistant"]
    history = [item for item in sent if not PLANNED_ID.fullmatch(item.get("call_id", ""))]
    ids = [item["id"] for item in history if "id" in item]
    if len(set(ids)) < len(ids):
        raise Refused(f"duplicate items: {ids}")
    said = 0
    while history:
        expected = items(number_of(history), history[1]["type"] == "function_call")
        if "id" not in history[0]:
            expected = [{name: field for name, field in item.items() if name != "id"} for item in expected]
        if history[:2] != expected:
            raise Refused(f"input: {history[:2]} instead of {expected}")
        history, said = history[2:], said + 1
    return said


def serve(
    sock: socket.socket,
    request: bytes,
    path: bytes,
    check: Callable[[Json], int],
    events: Callable[[int, bool], Events],
) -> None:
    head, _, data = request.partition(b"\r\n\r\n")
    page = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
    if b"/v1/models" in head:
        models = json.dumps({"data": [{"id": "scripted"}]}).encode()
        sock.sendall(page % (b"200 OK", len(models), models))
        return
    if path not in head:
        sock.sendall(page % (b"404 Not Found", 0, b""))
        return
    time.sleep(0.01)  # a user without a pause would take no virtual time
    body = json.loads(data)
    try:
        said = check(body)
    except (Refused, KeyError, ValueError, IndexError, TypeError) as error:
        text = json.dumps({"error": {"message": f"{type(error).__name__}: {error}"}}).encode()
        sock.sendall(page % (b"400 Bad Request", len(text), text))
        return
    calls = (bool(body.get("tools")) and body.get("tool_choice", "auto") == "auto") or body.get("tool_choice") == {
        "type": "auto"
    }
    parts = [
        b"".join(
            (
                b"event: %s\n" % each["type"].encode() if "type" in each else b"",
                b"data: ",
                json.dumps(each).encode(),
                b"\n\n",
            )
        )
        for each in events(said, calls and said < 2)
    ]
    sock.sendall(chunked(*parts, b"data: [DONE]\n\n"))


def chat(sock: socket.socket, request: bytes, answer: Callable[[int, bool], Json]) -> None:
    serve(
        sock,
        request,
        b"/chat/completions",
        lambda body: check_chat(body, answer),
        lambda *of: chat_events(answer(*of), CUT),
    )


def fields(sock: socket.socket, request: bytes) -> None:
    """Serve chat completions whose answers have a reasoning and fields that nobody knows."""
    chat(sock, request, chat_answer)


def gateway(sock: socket.socket, request: bytes) -> None:
    """Serve chat completions of a gateway: contents of parts, and parts of reasoning by index."""
    chat(sock, request, gateway_answer)


def signatures(sock: socket.socket, request: bytes) -> None:
    """Serve messages with signed and redacted thinking."""
    serve(sock, request, b"/messages", check_blocks, lambda *of: block_events(blocks(*of), CUT))


def encrypted(sock: socket.socket, request: bytes) -> None:
    """Serve responses with encrypted reasoning."""
    serve(sock, request, b"/responses", check_items, lambda *of: item_events(items(*of)))


def huge(sock: socket.socket, request: bytes) -> None:
    """Serve chat completions whose second answer is too large to be sent back."""

    def answer(number: int, called: bool) -> Json:
        return chat_answer(number, called) | ({"blob": "x" * 1_500_000} if number else {})

    chat(sock, request, answer)
