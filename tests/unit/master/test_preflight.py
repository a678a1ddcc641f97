"""Preflight of a run with tasks: one endpoint with a streamed token is sufficient."""

import json
import socket
import threading

import gevent
import pytest
from scripted_server import ScriptedServer, chunked

from inferload.client.client import ClientSettings
from inferload.client.connection import reader_choice
from inferload.client.connection.target import Target
from inferload.client.probe import first_token
from inferload.errors import UsageError
from inferload.master.lifecycle.preflight import _check_streams

REFUSED = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
TOKEN = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}}


def only_messages(sock: socket.socket, request: bytes) -> None:
    """Stream a token at /v1/messages; refuse every other path."""
    events = [b"data: %s\n\n" % json.dumps(event).encode() for event in (TOKEN, {"type": "message_stop"})]
    sock.sendall(chunked(*events) if request.startswith(b"POST /v1/messages ") else REFUSED)


def refuse(sock: socket.socket, _request: bytes) -> None:
    sock.sendall(REFUSED)


def test_tasks_require_one_streaming_endpoint() -> None:
    server = ScriptedServer([only_messages])
    try:
        settings = ClientSettings(Target.parse(server.url), "m")
        _check_streams(settings, any_endpoint=True)
        with pytest.raises(UsageError, match="404"):
            _check_streams(settings, any_endpoint=False)
    finally:
        server.close()


def test_without_a_streaming_endpoint_tasks_are_refused() -> None:
    server = ScriptedServer([refuse])
    try:
        with pytest.raises(UsageError, match="404"):
            _check_streams(ClientSettings(Target.parse(server.url), "m"), any_endpoint=True)
    finally:
        server.close()
    paths = [request.split()[1].decode() for request in server.requests]
    assert paths == ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]


def test_a_preflight_that_is_killed_closes_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(reader_choice.VARIABLE, "python")
    closed = threading.Event()

    def wait_for_end(sock: socket.socket, _request: bytes) -> None:
        sock.recv(1)
        closed.set()

    server = ScriptedServer([wait_for_end])
    try:
        checking = gevent.spawn(first_token, ClientSettings(Target.parse(server.url), "m"))
        with gevent.Timeout(10):
            while not server.requests:
                gevent.sleep(0.01)
            checking.kill()
        assert closed.wait(10)
    finally:
        server.close()
