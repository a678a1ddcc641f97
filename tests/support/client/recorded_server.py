"""Script of a server with recorded streams of vLLM 0.32 on the endpoints that the simulator lacks, and a short chat."""

import json
import socket
import time

from paths import ROOT
from scripted_server import HEAD, chunk

ENDPOINTS = ("responses", "messages")
GAP_S = 0.005  # between events
_CHAT = {"index": 0, "delta": {"role": "assistant", "content": "yes"}, "finish_reason": "length"}
_USAGE = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}


def _events() -> dict[str, list[bytes]]:
    """Events of the answer by path."""
    events = {}
    for name in ENDPOINTS:
        stream = (ROOT / f"tests/data/recorded/vllm-0.32-{name}.sse").read_bytes()
        events[f"/v1/{name}"] = [event + b"\n\n" for event in stream.split(b"\n\n") if event]
    chat = [json.dumps(each).encode() for each in ({"choices": [_CHAT]}, {"choices": [], "usage": _USAGE})]
    events["/v1/chat/completions"] = [b"data: " + data + b"\n\n" for data in (*chat, b"[DONE]")]
    return events


_EVENTS = _events()
_MODELS = json.dumps({"data": [{"id": "tiny"}]}).encode()


def recorded(sock: socket.socket, request: bytes) -> None:
    """Answer a request with the recorded events of its path."""
    path = request.split(b" ")[1].decode()
    if path == "/v1/models":
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(_MODELS) + _MODELS)
    elif path in _EVENTS:
        sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        *events, last = _EVENTS[path]
        for event in events:
            sock.sendall(chunk(event))
            time.sleep(GAP_S)
        sock.sendall(chunk(last) + b"0\r\n\r\n")
    else:
        sock.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
