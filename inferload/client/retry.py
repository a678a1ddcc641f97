"""Rule for a second request of a turn: only for a keep-alive connection that the server closed while the request was on its way."""

from typing import NamedTuple

from inferload.base.clock import NS_PER_MS
from inferload.client.connection.tcp_info import ConnectionEnd

SLACK_NS = 5 * NS_PER_MS
ROUND_TRIPS = 2


class RequestInFlight(NamedTuple):
    """Request whose connection has ended. `last_byte_ns`: instant before its last byte; of an incomplete one before its first."""

    earlier_requests: int  # on the same connection
    earlier_attempts: int  # of the same turn
    received: bool  # the server has sent a byte of a reply
    is_begun: bool  # the kernel has taken a byte of it
    is_written: bool  # the whole request
    last_byte_ns: int
    round_trip_ns: int | None  # smallest of the connection; None: not reported by the system


def crossed_by_close(request: RequestInFlight, end: ConnectionEnd) -> bool:
    """Return True if the end of the connection may have crossed the request, so that it is sent again.

    A close that crosses the request arrives within a round trip; a server that ends the connection later has had the time to
    read the request. The time at which the end was seen is an upper bound, which a busy client exceeds by at most `busy_ns`. The
    kernel's time of a close decides within this span; it is in ticks, and holds for whole requests, since it begins with the last
    byte sent so far. A reset has no such time: the span does not count, unless the server's kernel has acknowledged the request,
    as it does within 40 ms of its arrival.
    """
    if not request.earlier_requests or request.earlier_attempts or request.received:
        return False
    if not request.is_begun:  # the connection was closed before
        return True
    limit_ns = ROUND_TRIPS * (request.round_trip_ns or 0) + SLACK_NS
    passed_ns = end.seen_ns - request.last_byte_ns
    least_ns = passed_ns - end.busy_ns
    if request.is_written and end.answered_ns is not None:
        passed_ns = min(passed_ns, max(end.answered_ns, least_ns))
    elif request.is_written and end.is_unacknowledged:
        passed_ns = least_ns
    return passed_ns <= limit_ns
