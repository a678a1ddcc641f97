"""Locustfile beside another: a script (see scripted_server) stands before the simulated server of a run on a virtual clock.

INFERLOAD_TEST_SCRIPT is JSON: `script`, as MODULE:FUNCTION; `url` of the server; `log`, a file of requests, a line of JSON each.
A script may call `sock.pass_on(request)`, which has the simulator answer. FUNCTION_metrics returns the page of metrics.
"""

import functools
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent / "client")]

import gevent

from inferload.locust import virtual_options
from inferload.run.virtual import server, start


class Socket:
    """Server's side of a connection: its script, and the part of the interface of sockets that scripts use."""

    def __init__(self, connect: Any, receive: Any, closed: Any) -> None:
        self._behind = connect(receive, closed)
        self._closed = closed
        self._data = b""
        self.sendall = receive

    def send(self, data: bytes) -> None:
        """Take bytes of the client."""
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        if end and len(body) == int(lengths[0] if lengths else 0):
            request, self._data = self._data, b""
            with open(SETTINGS["log"], "a") as log:
                log.write(json.dumps(request.decode()) + "\n")
            gevent.spawn(SCRIPT, self, request)

    def pass_on(self, request: bytes) -> None:
        """Send a request to the simulator, whose answer goes to the client."""
        server.current.server.later(functools.partial(self._behind.send, request))

    def shutdown(self, _how: int) -> None:
        self._closed()

    def close(self) -> None:
        self._behind.close()


def pass_on(sock: Socket, request: bytes) -> None:
    """Script that only lets requests be recorded."""
    sock.pass_on(request)


def scripted(*arguments: Any) -> Any:
    """Start the simulated server behind the script."""
    simulated = start_server(*arguments)
    simulated.connect = functools.partial(Socket, simulated.connect)
    simulated.metrics_page = getattr(SCRIPTS, f"{_function}_metrics", simulated.metrics_page)
    return simulated


SETTINGS = json.loads(os.environ["INFERLOAD_TEST_SCRIPT"])
_module, _, _function = SETTINGS["script"].partition(":")
SCRIPTS = importlib.import_module(_module) if _module else None
SCRIPT = getattr(SCRIPTS, _function) if _module else pass_on
start_server = virtual_options.server_of
virtual_options.server_of = scripted
start.URL = SETTINGS["url"]
