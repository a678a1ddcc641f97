"""State of a TCP connection, as the kernel has it."""

import socket
import struct
from typing import Any, NamedTuple

SO_TIMESTAMPNS = 35  # Linux; not in the socket module
_NS_PER_US, _NS_PER_MS = 1_000, 1_000_000
_ESTABLISHED = 1  # TCP_ESTABLISHED: neither side has closed the connection
_GONE = 7  # TCP_CLOSE: the peer has reset it
# `tcpi_state`, `tcpi_last_data_sent`, `tcpi_last_ack_recv` (ms ago), `tcpi_bytes_acked` and `tcpi_min_rtt` (us) of the kernel's
# struct tcp_info (linux/tcp.h).
_fields = struct.Struct("=B43xI8xI60xQ20xI")
_UNKNOWN_US = 2**32 - 1
_TCP_INFO = getattr(socket, "TCP_INFO", None)


class TcpInfo(NamedTuple):
    """State of a connection. None: the system does not report it."""

    is_open: bool | None = None  # neither side has closed or reset the connection
    is_reset: bool | None = None  # by the peer, perhaps after its close
    round_trip_ns: int | None = None  # smallest so far, the handshake included
    acked_bytes: int | None = None  # sent bytes that the peer's kernel has received, and 1 for the handshake
    answered_ns: int | None = None  # from the last byte sent to the latest segment of the peer, in ticks of 1 to 10 ms


class ConnectionEnd(NamedTuple):
    """End of a connection by its peer during a request.

    `seen_ns`: monotonic time at which it was read, which is never before it. `answered_ns`: see TcpInfo, of the segment that ended
    the connection; None for a reset, of which the kernel keeps no time. `is_unacknowledged`: the peer's kernel has acknowledged no
    byte of the request. `busy_ns`: longest time for which the end may have waited to be read.
    """

    seen_ns: int
    answered_ns: int | None = None
    is_unacknowledged: bool = False
    busy_ns: int = 0


def connection_end(sock: Any, seen_ns: int, before: TcpInfo, *, is_reset: bool, busy_ns: int = 0) -> ConnectionEnd:
    """Return the end of a connection, as the kernel has it. `before`: its state before the request."""
    after = tcp_info(sock)
    answered_ns = None if is_reset else after.answered_ns
    return ConnectionEnd(seen_ns, answered_ns, _is_unacknowledged(before, after), busy_ns)


def is_rejected(sock: Any, before: TcpInfo) -> bool:
    """Return True if the peer, which had closed the connection in order, has reset it and acknowledged no byte of the request.

    `before`: state before the request. A peer that has only ended its sending accepts the request, and its kernel acknowledges
    it; both ends look the same until a round trip after the request. False if neither has arrived.
    """
    after = tcp_info(sock)
    return after.is_reset is True and _is_unacknowledged(before, after)


def _is_unacknowledged(before: TcpInfo, after: TcpInfo) -> bool:
    return after.acked_bytes is not None and after.acked_bytes == before.acked_bytes


def tcp_info(sock: Any) -> TcpInfo:
    """Return the state of a connection in the kernel. `sock`: a socket of any kind, which may be closed."""
    sock = getattr(sock, "_sock", sock)  # gevent's socket calls the plain one
    if _TCP_INFO is None:
        return TcpInfo()
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _fields.size)
    except OSError:  # no TCP connection
        return TcpInfo()
    if len(info) < _fields.size:
        return TcpInfo()
    state, sent_ms_ago, heard_ms_ago, acked_bytes, least_us = _fields.unpack(info)
    trip_ns = None if least_us == _UNKNOWN_US else least_us * _NS_PER_US
    answered_ns = (sent_ms_ago - heard_ms_ago) * _NS_PER_MS
    return TcpInfo(state == _ESTABLISHED, state == _GONE, trip_ns, acked_bytes, answered_ns)
