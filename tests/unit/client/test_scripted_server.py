"""Servers of the tests."""

import socket
from collections.abc import Callable

import pytest
from balancer import ConnectionBalancer
from scripted_server import NOT_FOUND, ScriptedServer, send


@pytest.mark.parametrize("make", [lambda: ScriptedServer([send(NOT_FOUND)]), lambda: ConnectionBalancer([1])])
def test_a_closed_server_takes_no_connection(make: Callable[[], ScriptedServer | ConnectionBalancer]) -> None:
    server = make()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
