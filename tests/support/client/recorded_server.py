"""Script of a server with recorded streams of vLLM 0.32 on the endpoints that the simulator lacks, and a short chat."""

import socket
import time

import streamed_answers
from paths import ROOT
from scripted_server import HEAD, NOT_FOUND, chunk, page, sse

ENDPOINTS = ("responses", "messages")
GAP_S = 0.005  # between events


def _events() -> dict[str, list[bytes]]:
    """Events of the answer by path."""
    events = {}
    for name in ENDPOINTS:
        stream = (ROOT / f"tests/data/recorded/vllm-0.32-{name}.sse").read_bytes()
        events[f"/v1/{name}"] = [event + b"\n\n" for event in stream.split(b"\n\n") if event]
    chat = [streamed_answers.text_event("chat", "yes"), *streamed_answers.end_events("chat", 1, prompt=5), b"[DONE]"]
    return events | {"/v1/chat/completions": [sse(event) for event in chat]}


_EVENTS = _events()


def recorded(sock: socket.socket, request: bytes) -> None:
    """Answer a request with the recorded events of its path."""
    path = request.split(b" ")[1].decode()
    if path not in _EVENTS:
        sock.sendall(page({"data": [{"id": "tiny"}]}) if path == "/v1/models" else NOT_FOUND)
        return
    sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    *events, last = _EVENTS[path]
    for event in events:
        sock.sendall(chunk(event))
        time.sleep(GAP_S)
    sock.sendall(chunk(last) + b"0\r\n\r\n")
