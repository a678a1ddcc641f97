"""State of a connection in the kernel."""

import contextlib
import socket
import struct
import sys
from collections.abc import Iterator

import pytest

from inferload.base.clock import now_ns
from inferload.client.connection.tcp_info import TcpInfo, connection_end, is_rejected, tcp_info

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO of Linux")
RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection that has answered a request."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        near.sendall(b"ping")
        far.recv(10)
        far.sendall(b"pong")
        near.recv(10)
        with far:
            yield near, far


def reset(far: socket.socket) -> None:
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    far.close()


def wait_for_end(near: socket.socket) -> None:
    near.settimeout(10)
    with contextlib.suppress(ConnectionResetError):
        assert near.recv(10) == b""


def test_a_connection_over_the_loopback_interface_has_a_short_round_trip(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    info = tcp_info(pair[0])
    assert info.is_open
    assert info.round_trip_ns is not None
    assert 0 < info.round_trip_ns < 1_000_000_000


@pytest.mark.parametrize("end", [socket.socket.close, reset])
def test_a_connection_that_the_peer_has_ended_is_not_open(
    pair: tuple[socket.socket, socket.socket], end: object
) -> None:
    near, far = pair
    end(far)  # type: ignore[operator]
    assert tcp_info(near).is_open is False  # nothing was read


def test_a_request_behind_a_close_is_rejected(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    before = tcp_info(near)
    far.close()
    near.send(b"request")
    wait_for_end(near)
    end = connection_end(near, now_ns(), before, is_reset=False)
    assert end.is_unacknowledged
    assert is_rejected(near, before)


def test_a_request_behind_half_a_close_is_not_rejected(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    before = tcp_info(near)
    far.shutdown(socket.SHUT_WR)
    near.send(b"request")
    wait_for_end(near)
    assert far.recv(10) == b"request"
    assert not is_rejected(near, before)


def test_a_close_behind_the_request_acknowledges_it(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    before = tcp_info(near)
    near.send(b"request")
    far.recv(10)
    far.close()
    wait_for_end(near)
    end = connection_end(near, now_ns(), before, is_reset=False)
    assert not end.is_unacknowledged
    assert not is_rejected(near, before)
    assert end.answered_ns is not None
    # The kernel's clock, not that of the client.
    assert connection_end(near, now_ns() + 10**12, before, is_reset=False).answered_ns == end.answered_ns


def test_a_reset_has_no_time(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    before = tcp_info(near)
    near.send(b"request")
    far.recv(10)
    reset(far)
    wait_for_end(near)
    end = connection_end(near, now_ns(), before, is_reset=True)
    assert end.answered_ns is None


def test_a_socket_without_a_connection_has_no_round_trip() -> None:
    with socket.socket() as unconnected:
        assert tcp_info(unconnected).round_trip_ns is None
    assert tcp_info(unconnected) == TcpInfo()


def test_a_socket_of_another_kind_has_no_state() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert tcp_info(here) == TcpInfo()
