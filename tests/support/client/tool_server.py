"""Script of a server whose model calls a tool."""

import json
import socket
import time
from typing import Any

from scripted_server import chunked


def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    document = {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def model_with_tools(sock: socket.socket, request: bytes) -> None:
    """Serve a model that first calls list_files, and then no tool."""
    head, _, body = request.partition(b"\r\n\r\n")
    if b"/v1/models" in head:
        page = json.dumps({"data": [{"id": "scripted"}]}).encode()
        sock.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(page) + page
        )
        return
    if b"/chat/completions" not in head:
        sock.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        return
    time.sleep(0.01)  # a user without a pause would take no virtual time
    completion = json.loads(body)
    if completion.get("tools") and completion["messages"][-1]["role"] == "user":
        tool_call = {"index": 0, "id": "call-1", "function": {"name": "list_files", "arguments": "{}"}}
        parts = [event({"tool_calls": [tool_call]}), event({}, "tool_calls")]
    else:
        parts = [event({"content": "enough"}), event({}, "stop")]
    usage = {"id": "x", "choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 2}}
    sock.sendall(chunked(*parts, b"data: " + json.dumps(usage).encode() + b"\n\n", b"data: [DONE]\n\n"))
