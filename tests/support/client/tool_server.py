"""Script of a server whose model calls a tool."""

import socket
import time

from scripted_server import body_of, one_model, streamed
from streamed_answers import chunk, end_events


def answer(sock: socket.socket, request: bytes) -> None:
    """Answer with a call of list_files first, and then without one."""
    time.sleep(0.01)  # a user without a pause would take no virtual time
    completion = body_of(request)
    delta, finish = {"content": "enough"}, "stop"
    if completion.get("tools") and completion["messages"][-1]["role"] == "user":
        call = {"index": 0, "id": "call-1", "function": {"name": "list_files", "arguments": "{}"}}
        delta, finish = {"tool_calls": [call]}, "tool_calls"
    sock.sendall(streamed(chunk(delta), *end_events("chat", 2, finish, prompt=10)))


model_with_tools = one_model(answer, name="scripted")
