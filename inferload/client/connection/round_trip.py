"""Round trip of a TCP connection, measured by the kernel."""

import socket
import struct
from typing import Any

_NS_PER_US = 1_000
_MIN_RTT_AT = 148  # offset of `tcpi_min_rtt` in the kernel's struct tcp_info (linux/tcp.h), microseconds
_UNKNOWN_US = 2**32 - 1
_TCP_INFO = getattr(socket, "TCP_INFO", None)
_min_rtt = struct.Struct("=I").unpack_from


def round_trip_ns(sock: Any) -> int | None:
    """Return the smallest round trip of a connected socket so far, the handshake included; None if the system reports none."""
    if _TCP_INFO is None:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _MIN_RTT_AT + 4)
    except OSError:  # the connection was reset
        return None
    if len(info) < _MIN_RTT_AT + 4:
        return None
    least_us: int = _min_rtt(info, _MIN_RTT_AT)[0]
    return None if least_us == _UNKNOWN_US else least_us * _NS_PER_US
