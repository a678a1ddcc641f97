"""Scripts of servers that insist on their own fields: an earlier answer that does not come back as it was sent is a 400.

The n-th answer of a conversation depends on n alone: two answers call tools if the request has any, the others are texts.
"""

import re
import socket
import time
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

from scripted_server import body_of, one_model, page, streamed
from streamed_answers import Json, block_events, chat_events, item_events

CUT = partial(Random(0).randint, 0)
NINE = re.compile("[A-Za-z0-9]{9}")
PLANNED = "look"  # tool of planned calls, which come instead of the server's
SENT: list[Any] = []  # answers, see `bare`


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
        {"index": 1, "type": "reasoning.encrypted", "data": "QUJD" * 9},
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
    call = {"type": "function_call", "call_id": f"c{number}", "name": "list_files", "arguments": "{}"}
    part = {"type": "output_text", "text": f"text {number}", "annotations": [], "logprobs": []}
    text = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return [thought, (call if called else text) | {"id": f"of_{number}"}]


def said_in_chat(body: Json) -> Iterable[Any]:
    """Yield the answers of a history, without planned calls. The ids of calls are checked."""
    called: set[str] = set()
    for message in body["messages"]:
        if message["role"] == "tool":
            called.remove(message["tool_call_id"])
        elif message["role"] == "assistant":
            calls = message.pop("tool_calls", ())
            if called or not all(NINE.fullmatch(call["id"]) for call in calls):
                raise Refused(f"ids of calls: {called}, {calls}")
            called = {call["id"] for call in calls}
            own = [call for call in calls if call["function"]["name"] != PLANNED]
            yield message | ({"tool_calls": own} if own else {})


def said_in_blocks(body: Json) -> Iterable[Any]:
    for message in body["messages"]:
        if message["role"] == "assistant":
            yield [block for block in message["content"] if block.get("name") != PLANNED]


def said_in_items(body: Json) -> Iterable[Any]:
    of_answers = ("reasoning", "function_call")
    own = [item for item in body["input"] if item["type"] in of_answers or item.get("role") == "assistant"]
    own = [item for item in own if item.get("name") != PLANNED]
    ids = [item["id"] for item in own if "id" in item]
    if len(set(ids)) < len(ids):
        raise Refused(f"duplicate items: {ids}")
    yield from (own[at : at + 2] for at in range(0, len(own), 2))


def bare(answer: Any) -> Any:
    """Return an answer without ids: a client may make those of calls, and omits those of items that a history has twice."""
    if isinstance(answer, dict):
        return {name: bare(field) for name, field in answer.items() if name != "id"}
    return [bare(each) for each in answer] if isinstance(answer, list) else answer


def serve(
    answer_of: Callable[[int, bool], Any],
    said_in: Callable[[Json], Iterable[Any]],
    events_of: Callable[[Any], Iterable[Json]],
    sock: socket.socket,
    request: bytes,
) -> None:
    """Answer a request if the answers in its history are as they were sent."""
    time.sleep(0.01)  # a user without a pause would take no virtual time
    body = body_of(request)
    try:
        history = list(map(bare, said_in(body)))
        if unknown := [said for said in history if said not in SENT]:
            raise Refused(f"never sent: {unknown}")
    except (Refused, KeyError, IndexError, TypeError) as error:
        sock.sendall(page({"error": {"message": f"{type(error).__name__}: {error}"}}, 400))
        return
    free = body.get("tools") and body.get("tool_choice", "auto") in ("auto", {"type": "auto"})
    answer = answer_of(len(history), bool(free) and len(history) < 2)
    SENT.append(bare(answer))
    sock.sendall(streamed(*events_of(answer)))


# Chat completions with unknown fields, with parts, and with a huge answer; Anthropic's API; responses.
fields, gateway, huge = (
    one_model(partial(serve, answer, said_in_chat, partial(chat_events, cut=CUT)), name="scripted")
    for answer in (chat_answer, gateway_answer, huge_answer)
)
signatures = one_model(partial(serve, blocks, said_in_blocks, partial(block_events, cut=CUT)), "/v1/messages")
encrypted = one_model(partial(serve, items, said_in_items, item_events), "/v1/responses")
