"""One sequence of bytes to a client of each reader, and what becomes of the turn.

Both ends of the connection are in this process. A piece is sent when the reader has taken the one before it, so that a case always
comes in the same reads (the Python reader cuts a piece over 2,048 bytes).
"""

import array
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Iterator
from typing import Any, NamedTuple

import gevent
import gevent.socket
from chat_events import ANSWER
from fuzz_replies import Case
from scripted_server import chunked

from inferload.client.client import Client, ClientSettings
from inferload.client.connection import reader_choice
from inferload.client.connection.reply import AnyConnection
from inferload.client.connection.target import Target
from inferload.client.turn import Turn
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.measure.clock import now_ns
from inferload.measure.record import Failure

PATIENCE_S = 5.0
GOOD = Case((chunked(*ANSWER),), "open")
RESET = struct.pack("ii", 1, 0)


class Outcome(NamedTuple):
    """What both readers must agree on."""

    failure: str | None
    status: int | None
    text: str
    reasoning: str
    tool_calls: tuple[object, ...]
    events: int
    tokens: tuple[int | None, ...]
    finish_reason: str | None
    request_id: str | None
    late: bool  # a whole answer whose end was found only when a time-out had it parsed
    reused: str  # what became of a good turn on the same connection; "" where the connection was not kept


class PairClient(Client):
    """A client whose newest connection ends in `far`."""

    def __init__(self, reader: reader_choice.ReaderName) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.far: socket.socket | None = None
        self.newest: AnyConnection | None = None
        self.near_fd = -1
        self.results: list[TurnResult] = []
        with environment(reader_choice.VARIABLE, reader):
            url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
            super().__init__(ClientSettings(Target.parse(url), "m"), self.results.append)

    def dial(self) -> AnyConnection:
        plain = socket.create_connection(self._listener.getsockname())  # gevent's would resolve the address in a thread
        near = gevent.socket.socket(fileno=plain.detach())
        self.near_fd = near.fileno()
        self.far, _ = self._listener.accept()
        self.far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a piece does not wait for an acknowledgement
        self.newest = self._dialer._watched(near, None)
        return self.newest

    def close(self) -> None:
        self.forget_idle()
        super().close()
        self._listener.close()

    def forget_idle(self) -> None:
        """Close the connections of earlier cases."""
        if self.far is not None:
            self.far.close()
        self.far = None
        while (idle := self.idle_connection()) is not None:
            idle.close()


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """An environment variable with this value, as long as the block runs."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def outcome(client: PairClient, case: Case) -> Outcome:
    """What becomes of a turn with this reply, on a connection of its own."""
    client.forget_idle()
    result, late = answered(client, case)
    kept = [each for each in client._idle if not each.closed]
    reused = ""
    if kept and case.ending == "open":
        again, _ = answered(client, GOOD)
        fresh = " on another connection" if again.record.connect_ns is not None else ""
        reused = f"{again.record.failure or again.text}{fresh}"
    record = result.record
    return Outcome(
        None if record.failure is None else str(record.failure),
        record.status,
        result.text,
        result.reasoning,
        result.tool_calls,
        len(record.event_ns or ()),
        (record.input_tokens, record.output_tokens, record.cached_tokens),
        record.finish_reason,
        record.request_id,
        late and record.failure is None,
        reused,
    )


def answered(client: PairClient, case: Case) -> tuple[TurnResult, bool]:
    """The result of a turn whose request gets this reply, and whether it was over only after what a time-out does."""
    before = len(client.results)
    turn = client.start(TurnRequest(b"{}", "s0.0", "s0", 0, "chat", "measure", now_ns()))
    with gevent.Timeout(PATIENCE_S, RuntimeError(f"the {client.reader} reader hangs")):
        while turn._sent_ns is None:
            gevent.sleep(0)
        late = _play(client, turn, case)
        result = turn.wait()
    assert client.results[before:] == [result], "a turn has one record"
    assert client.in_flight == 0
    return result, late


def _play(client: PairClient, turn: Turn, case: Case) -> bool:
    far, connection = client.far, client.newest
    assert far is not None
    assert connection is not None
    far.recv(65_536)
    for piece in case.pieces:
        try:
            far.sendall(piece)
        except OSError:  # the client has closed the connection
            break
        _taken(client, connection)
    if case.ending == "open":
        _digested(client)
        if turn.result is not None:
            return False
        turn.queue_parsing()
        _digested(client)
        turn.give_up(Failure.UNFINISHED, "no more comes")
        return True
    if case.ending == "reset":
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    far.close()
    return False


def _taken(client: PairClient, connection: Any) -> None:
    """Wait until the reader has taken what was sent, and has said what follows from it."""
    unread = array.array("i", [0])
    while not connection.closed:  # with the native reader this waits for a read that is under way
        fcntl.ioctl(client.near_fd, termios.FIONREAD, unread)
        if not unread[0]:
            break
        gevent.idle()
    if not connection.closed:
        _digested(client)


def _digested(client: PairClient) -> None:
    """Let the event loop hear what there is to hear, and parse what it has."""
    gevent.idle()  # unlike sleep(0) it polls first
    while len(client.parse_queue):
        gevent.idle()
    gevent.idle()
