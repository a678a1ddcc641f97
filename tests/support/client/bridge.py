"""Script of a server that answers as other servers, gateways and bridges do."""

import socket
import time
from collections import Counter
from typing import Any

import streamed_answers
from scripted_server import HEAD, NOT_FOUND, body_of, chunk, page, sse

PIECES = 5
PROMPT, TOTAL = 20, 12  # tokens


def _piece(text: Any = " some text", **more: Any) -> dict[str, Any]:
    return streamed_answers.chunk({"content": text}, **more)


def _finish(reason: str, **more: Any) -> dict[str, Any]:
    return streamed_answers.chunk(finish=reason, **more)


def _usage(output: int) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": PROMPT, "completion_tokens": output}}


# Events of each kind of answer. Bytes are sent as they are, without `data: `.
ANSWERS: dict[str, list[Any]] = {
    "zeros": [*[_piece(**_usage(0))] * PIECES, _finish("stop", **_usage(TOTAL))],
    "totals": [*[_piece(**_usage(TOTAL))] * PIECES, _finish("length", **_usage(TOTAL))],
    "running": [*[_piece(**_usage(2 * at + 4)) for at in range(PIECES)], _finish("eos_token", **_usage(TOTAL))],
    "odd": [
        *(_piece([{"type": "text", "text": " some text"}], error=False), b"data: null"),
        *(_piece(error={}), _piece("\ud83d"), _piece(usage="none"), _piece(id=5), _finish("content_filter")),
        *({"choices": None}, {"choices": [], **_usage(9)}),
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
        sock.sendall(page({"data": [{"id": "bridge"}]}))
    elif path != b"/v1/chat/completions":
        sock.sendall(NOT_FOUND)
    else:
        of_preflight = body_of(request)["max_tokens"] == 1
        kind = "zeros" if of_preflight else KINDS[sent.total() % len(KINDS)]
        sent[kind] += not of_preflight
        sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for each in ANSWERS[kind]:
            sock.sendall(chunk(each + b"\n\n" if isinstance(each, bytes) else sse(each)))
            time.sleep(0.005)
        sock.sendall(chunk(sse(b"[DONE]")) + b"0\r\n\r\n")
