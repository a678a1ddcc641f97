"""Round trip of a connection, measured by the kernel."""

import socket
import sys

import pytest

from inferload.client.connection.round_trip import round_trip_ns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO of Linux")


def test_a_connection_over_the_loopback_interface_has_a_short_round_trip() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        accepted.close()
        trip_ns = round_trip_ns(client)
    assert trip_ns is not None
    assert 0 < trip_ns < 1_000_000_000


def test_a_socket_without_a_connection_has_none() -> None:
    with socket.socket() as unconnected:
        assert round_trip_ns(unconnected) is None
    assert round_trip_ns(unconnected) is None


def test_a_socket_of_another_kind_has_none() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert round_trip_ns(here) is None
