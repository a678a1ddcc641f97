"""Script of a server that answers as other servers, gateways and bridges do."""

import json
import socket
import time
from collections import Counter
from typing import Any

from scripted_server import chunk

PIECES = 5
PROMPT, TOTAL = 20, 8  # tokens


def _piece(text: Any = " some text", **more: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}


def _finish(reason: str, **more: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], **more}


def _usage(output: int) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": PROMPT, "completion_tokens": output}}


# Events of each kind of answer. Bytes are sent as they are, without `data: `.
ANSWERS: dict[str, list[Any]] = {
    "zeros": [*[_piece(**_usage(0))] * PIECES, _finish("stop", **_usage(TOTAL))],
    "totals": [*[_piece(**_usage(TOTAL))] * PIECES, _finish("length", **_usage(TOTAL))],
    "running": [*[_piece(**_usage(at + 4)) for at in range(PIECES)], _finish("eos_token", **_usage(TOTAL))],
    "odd": [
        *(
            _piece([{"type": "text", "text": " some text"}], error=False),
            b"data: null",
            _piece(error={}),
            _piece("\ud83d"),
        ),
        *(
            _piece(usage="none"),
            _piece(id=5),
            _finish("content_filter"),
            {"choices": None},
            {"choices": [], **_usage(TOTAL)},
        ),
    ],
    "of each piece": [*[_piece(**_usage(1))] * PIECES, _finish("stop")],
    "no usage": [*[_piece()] * PIECES, _finish("stop")],
    "no finish reason": [*[_piece()] * PIECES, {"choices": [], **_usage(TOTAL)}],
    "interrupted": [*[_piece()] * PIECES, _finish("insufficient_system_resource", **_usage(TOTAL))],
    "error event": [*[_piece()] * PIECES, b"event: error\n: the queue of the gateway is full"],
}
KINDS = list(ANSWERS)


sent: Counter[str] = Counter()  # answers by kind


def answer(sock: socket.socket, request: bytes) -> None:
    """Answer a request; turns with each kind of answer in turn."""
    path = request.split(b" ")[1]
    if path == b"/v1/models":
        _reply(sock, b"application/json", [json.dumps({"data": [{"id": "bridge"}]}).encode()])
    elif path != b"/v1/chat/completions":
        sock.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
    else:
        of_preflight = json.loads(request.partition(b"\r\n\r\n")[2])["max_tokens"] == 1
        kind = "zeros" if of_preflight else KINDS[sent.total() % len(KINDS)]
        sent[kind] += not of_preflight
        events = [each if isinstance(each, bytes) else b"data: " + json.dumps(each).encode() for each in ANSWERS[kind]]
        _reply(sock, b"text/event-stream", [each + b"\n\n" for each in [*events, b"data: [DONE]"]])


def _reply(sock: socket.socket, kind: bytes, parts: list[bytes]) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n" % kind)
    *first, last = map(chunk, parts)
    for each in first:
        sock.sendall(each)
        time.sleep(0.005)
    sock.sendall(last + b"0\r\n\r\n")
