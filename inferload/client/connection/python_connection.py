"""Keep-alive connection that is read in the event loop: TLS, and machines without the native thread (see `NativeConnection`).

A read watcher is registered for the whole life of the connection and calls back from the event loop: no greenlet switch and no
failed `recv` per chunk. The callback takes the time and pushes the bytes to a parser that finds the end of the body; the parsing
of events is deferred (`HttpReply.body`). The kernel's receive timestamp dates a chunk that waited while this process was busy.
"""

import socket
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from inferload.base.clock import NS_PER_MS, now_ns, wall_ns
from inferload.client.connection.reply import MARKED_S, ConnectionLost, GatheredReply
from inferload.client.connection.tcp_info import ConnectionEnd, TcpInfo, connection_end, is_rejected, tcp_info

if TYPE_CHECKING:
    from inferload.client.connection.tls import TlsLayer

_READ_BYTES = 2_048  # a larger buffer would be allocated and released for each token of 200 bytes
_ANCILLARY_BYTES = socket.CMSG_SPACE(16)

WAITED_NS = NS_PER_MS  # a longer poll waited: no socket was readable when it began


class LoopPolls:
    """Two watchers of an event loop that stamp the begin and the end of its latest poll."""

    def __init__(self, loop: Any) -> None:
        self._begun_ns = self._returned_ns = self._earlier_ns = now_ns()  # _earlier_ns: end of the poll before
        # The last before the poll and the first after it: callbacks of equal priority may run on the other side of the stamp.
        self._watchers = loop.prepare(ref=False, priority=loop.MINPRI), loop.check(ref=False, priority=loop.MAXPRI)
        for watcher, stamp in zip(self._watchers, (self._begin, self._return), strict=True):
            watcher.start(stamp)

    def unseen_since_ns(self) -> int:
        """Return the earliest time at which a socket that the latest poll reported may have become readable."""
        waited = self._returned_ns - self._begun_ns > WAITED_NS
        return self._returned_ns if waited else self._earlier_ns

    def _begin(self) -> None:
        self._earlier_ns, self._begun_ns = self._returned_ns, now_ns()

    def _return(self) -> None:
        self._returned_ns = now_ns()


@cache  # of an event loop, for all its connections
def polls_of(loop: Any) -> LoopPolls:
    return LoopPolls(loop)


def offered(sock: Any, data: bytes) -> bytes | memoryview:
    """Send data on a gevent socket without blocking; return the rest that did not fit into its buffer."""
    try:
        sent = sock._sock.send(data)
    except (BlockingIOError, InterruptedError):
        return data
    return b"" if sent == len(data) else memoryview(data)[sent:]


class PythonConnection:
    """A connected socket that is read for one reply at a time. `watch` registers it with an event loop.

    `sock`: a gevent socket, whose `sendall` may block the calling greenlet; non-blocking calls use the plain socket below it.
    `marks`: parts of the end marker; a body that goes on 20 ms after one is parsed.
    """

    __slots__ = (
        "_decrypt", "_end", "_mark_timer", "_marks", "_paused", "_polls", "_recvmsg", "_reply", "_sock", "_tls",
        "_watcher", "closed", "info", "kept_ns", "turns",
    )  # fmt: skip

    def __init__(self, sock: Any, tls: "TlsLayer | None", marks: tuple[bytes, ...] = ()) -> None:
        self._sock = sock
        self._tls = tls
        self._recvmsg = sock._sock.recvmsg
        self._decrypt = None if tls is None else tls.decrypt
        self._reply: GatheredReply | None = None
        self._watcher: Any = None
        self._marks = marks
        self._mark_timer: Any = None
        self._paused = False
        self._end: ConnectionEnd | None = None  # by the server, during a reply
        self._polls: LoopPolls | None = None
        self.closed = False
        self.info = TcpInfo()
        self.turns = 0  # requests sent so far
        self.kept_ns = 0  # time since which the connection is idle

    def watch(self, loop: Any) -> None:
        """Register the read watcher until `close`."""
        self._polls = polls_of(loop)
        self._watcher = loop.io(self._sock.fileno(), 1)
        self._mark_timer = loop.timer(MARKED_S, MARKED_S)
        self._watcher.start(self._on_readable)

    def expect(self, on_done: Callable[[], None], on_parse_due: Callable[[], None] | None = None) -> GatheredReply:
        """Start the reply to which further reads belong."""
        assert self._reply is None
        self._reply = GatheredReply(on_done, on_parse_due, self._marks)
        if on_parse_due is not None:  # else nothing is handed over before the end
            self._reply.on_full, self._reply.on_room = self._pause, self._resume
            self._reply.on_mark = self._wait_for_end
        self.turns += 1
        return self._reply

    def refresh(self) -> bool:
        """Update `info` before a request. Return False if the server has closed the connection by now."""
        if self.turns and not self.closed:
            self._on_readable()  # the event loop may have been busy since the end arrived
        if self.closed:
            return False
        self.info = tcp_info(self._sock)
        return self.info.is_open is not False

    def offer(self, data: bytes) -> bytes | memoryview:
        """Send data without blocking; return the rest that did not fit. Raise OSError if the connection is lost."""
        return offered(self._sock, data if self._tls is None else self._tls.encrypt(data))

    def send_rest(self, rest: bytes | memoryview) -> None:
        """Send the rest of a request. Blocks this greenlet. Raise OSError if the connection is lost."""
        self._sock.sendall(rest)

    def cause_of(self, error: OSError) -> Exception:
        """Return why a request could not be sent: `error`, or the alert with which the server ended TLS before."""
        if self._tls is not None and not self.closed:
            self._on_readable()  # the alert ends the reply
        return error

    def end_by_peer(self) -> ConnectionEnd | None:
        """Return when and how the server ended the connection during the reply; None if its end was not read."""
        return self._end

    def is_rejected(self) -> bool:
        """Return True if the server's kernel rejected the latest request. Call it before `close`."""
        return is_rejected(self._sock, self.info)

    def release(self) -> None:
        """End the reply; any further read closes the connection."""
        self._reply = None
        self._resume()
        if self._mark_timer is not None:
            self._mark_timer.stop()

    def close(self) -> None:
        """Stop the watcher and close the socket. Idempotent."""
        self._stop()
        self._sock.close()

    def _stop(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._reply = None
        for watcher in (self._watcher, self._mark_timer):
            if watcher is not None:
                watcher.stop()
                watcher.close()

    def _on_readable(self) -> None:
        error: ConnectionLost | None = None
        try:
            data, ancillary, _flags, _address = self._recvmsg(_READ_BYTES, _ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as problem:
            data, ancillary, error = b"", [], ConnectionLost(f"the connection broke: {problem.strerror or problem}")
        mono_ns, wall_now_ns = now_ns(), wall_ns()
        ended, is_reset = not data, error is not None
        if self._decrypt is not None and error is None:
            data, ended, error = self._decrypt(data)
        reply = self._reply
        unexpected = bool(data) and (reply is None or reply.done)
        if ended and reply is not None:
            busy_ns = 0 if self._polls is None else mono_ns - self._polls.unseen_since_ns()
            self._end = connection_end(self._sock, mono_ns, self.info, is_reset=is_reset, busy_ns=busy_ns)
        if ended and reply is not None:
            self._stop()  # before the reply ends, which would keep the connection; its turn closes the socket
        elif ended or unexpected:
            self.close()
        if reply is None or unexpected:
            return
        if data:  # else a part of a record, or a record without application data
            reply.take(data, mono_ns, wall_now_ns, ancillary)
        if ended:
            reply.end(error)

    def _wait_for_end(self) -> None:
        """Have the reply parsed unless it ends soon, which nearly every one does: so it is parsed once."""
        if self._reply is not None and not self._reply.done and not self._mark_timer.active:
            # `start` would go on with the time that was left at the stop: none if the timer has expired.
            self._mark_timer.again(self._on_mark_timer, update=True)

    def _on_mark_timer(self) -> None:
        self._mark_timer.stop()
        if self._reply is not None:
            self._reply.on_parse_due()

    def _pause(self) -> None:
        """Stop reading until the reply is handed over, and request that."""
        if self._reply is not None and not self._paused:
            self._paused = True
            self._watcher.stop()
            self._reply.on_parse_due()

    def _resume(self) -> None:
        if self._paused and not self.closed:
            self._paused = False
            self._watcher.start(self._on_readable)
