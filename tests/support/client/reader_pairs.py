"""Send the same bytes to clients with different readers, and compare the outcomes of the turn.

Both ends of the connection are in this process. A piece is sent when the reader has read the previous one, so the reads of a case
are always the same (the Python reader splits pieces over 2,048 bytes).
"""

import array
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import gevent
import gevent.socket
import pytest
from chat_events import ANSWER
from fuzz_replies import ReplyCase
from scripted_server import chunked
from tls_peer import Handshake, Peer, garbage

from inferload.base.clock import now_ns
from inferload.base.tls import TlsSettings
from inferload.client.answers.answer import Frames
from inferload.client.client import Client, ClientSettings
from inferload.client.connection import reader_choice
from inferload.client.connection.reply import AnyConnection
from inferload.client.connection.target import Target
from inferload.client.turn import Turn
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.scenario.schema.endpoints import EndpointName
from inferload.turns.record import Failure

PATIENCE_S = 5.0
GOOD = ReplyCase((chunked(*ANSWER),), "open")
RESET = struct.pack("ii", 1, 0)
# Ends of a TLS stream; those "with data" are in the read of the last bytes. The connection stays open without a close.
NOTIFIED = ("close_notify", "close_notify_with_data", "close_notify_then_close")
TLS_READERS: dict[str, reader_choice.ReaderName] = {"tls": "native", "python tls": "python"}
BROKEN = ("fatal_alert", "fatal_alert_with_data", "garbage_with_data", "half", "close", "reset")


class TurnOutcome(NamedTuple):
    """Result of a turn, equal for both readers."""

    failure: str | None
    status: int | None
    text: str
    reasoning: str
    tool_calls: tuple[object, ...]
    events: int
    tokens: tuple[int | None, ...]
    finish_reason: str | None
    request_id: str | None
    late: bool  # a complete reply whose end was detected only by the parsing at a timeout
    reused: str  # result of a valid turn on the same connection; "" if the connection was closed


class PairClient(Client):
    """Client whose newest connection has its other end in `far`. Tests of a reader that was not built are skipped."""

    scheme = "http"
    parses_each_read = False  # else at the end of the reply, nearly always
    parser = reader_choice.parser()

    def __init__(self, reader: reader_choice.ReaderName, endpoint: EndpointName = "chat") -> None:
        if reader == "native" and not reader_choice.built():
            pytest.skip("the compiled reader was not built")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.far: socket.socket | None = None
        self.newest: AnyConnection | None = None
        self.near_fd = -1
        self.results: list[TurnResult] = []
        with environment(reader_choice.VARIABLE, reader):
            url = f"{self.scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
            settings = ClientSettings(Target.parse(url), "m", tls=TlsSettings(insecure=True), endpoint=endpoint)
            super().__init__(settings, self.results.append)
        self.finish_reasons = True  # else the result of a turn would depend on those before it

    def dial(self) -> AnyConnection:
        plain = socket.create_connection(
            self._listener.getsockname()
        )  # gevent's function would resolve the address in a thread
        near = gevent.socket.socket(fileno=plain.detach())
        self.near_fd = near.fileno()
        self.far, _ = self._listener.accept()
        self.far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # send each piece at once
        self.newest = self._watched(near)
        return self.newest

    def _watched(self, near: gevent.socket.socket) -> AnyConnection:
        return self._dialer._watched(near, None)

    def on_wire(self, case: ReplyCase) -> ReplyCase:
        """Return the case with the bytes to send, and one of the endings that `answered` knows."""
        return case

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


class TlsPairClient(PairClient):
    """PairClient with TLS, whose server side is `peer`. `version`: see tls_peer."""

    scheme = "https"

    def __init__(self, version: str, reader: reader_choice.ReaderName, endpoint: EndpointName = "chat") -> None:
        self._version = version
        self.peer: Peer | None = None
        super().__init__(reader, endpoint)

    def _watched(self, near: gevent.socket.socket) -> AnyConnection:
        assert self._dialer._layer is not None
        layer, handshake = self._dialer._layer(), Handshake(self._version)
        layer.handshake(handshake)
        self.peer = handshake.peer
        return self._dialer._watched(near, layer)

    def on_wire(self, case: ReplyCase) -> ReplyCase:
        assert self.peer is not None
        pieces = [self.peer.data(piece) for piece in case.pieces]
        if case.ending in ("open", "close", "reset"):
            return ReplyCase(tuple(pieces), case.ending)
        if case.ending == "half":
            return ReplyCase((*pieces, self.peer.close_notify()[:-3]), "close")
        record, _, how = case.ending.partition("_with_")
        record, _, close = record.partition("_then_")
        end = garbage() if record == "garbage" else getattr(self.peer, record)()
        pieces = [*pieces[:-1], pieces[-1] + end] if how and pieces else [*pieces, end]
        return ReplyCase(tuple(pieces), close or "stay")


def pair_client(reader: str, endpoint: EndpointName = "chat") -> PairClient:
    """Return a client by the name of its reader: native, python, uncompiled (Python parser), or one of TLS_READERS."""
    if reader in TLS_READERS:
        return TlsPairClient("TLSv1.3", TLS_READERS[reader], endpoint)
    client = PairClient("native" if reader == "native" else "python", endpoint)
    if reader == "uncompiled":
        client.parser, client.frames = None, Frames(None)
    return client


@contextlib.contextmanager
def unchecked_clients(reader: str) -> Iterator[Callable[[EndpointName], PairClient]]:
    """Yield a function that returns a client of an endpoint whose turns no periodic check ends, without idle connections."""
    clients: dict[EndpointName, PairClient] = {}

    def of(endpoint: EndpointName) -> PairClient:
        if endpoint not in clients:
            clients[endpoint] = pair_client(reader, endpoint)
            clients[endpoint]._sweeper.stop()
        clients[endpoint].forget_idle()
        return clients[endpoint]

    yield of
    for client in clients.values():
        client.close()


def asked(url: str) -> TurnResult:
    """Return the result of a turn that a client of its own sends, without a check of certificates."""
    client = Client(ClientSettings(Target.parse(url), "m", tls=TlsSettings(insecure=True)), lambda _result: None)
    with gevent.Timeout(20):
        result = client.start(TurnRequest(b"{}", "s0.0", "s0", 0, "chat", "measure", now_ns())).wait()
    client.close()
    return result


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable within the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def outcome(client: PairClient, case: ReplyCase) -> TurnOutcome:
    """Return the outcome of a turn with this reply on a new connection."""
    client.forget_idle()
    result, late = answered(client, case)
    idle = [connection for connection in client._idle if not connection.closed]
    reused = ""
    if idle and case.ending == "open":
        again, _ = answered(client, GOOD)
        fresh = " on another connection" if again.record.connect_ns is not None else ""
        reused = f"{again.record.failure or again.text}{fresh}"
    record = result.record
    return TurnOutcome(
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


def answered(client: PairClient, case: ReplyCase) -> tuple[TurnResult, bool]:
    """Return the result of a turn with this reply, and True if it ended only by the parsing at a timeout."""
    before = len(client.results)
    hangs = RuntimeError(f"the {client.reader.reader} reader hangs")
    with gevent.Timeout(PATIENCE_S, hangs), mock.patch.object(reader_choice, "_parser", client.parser):
        turn = client.start(TurnRequest(b"{}", "s0.0", "s0", 0, "chat", "measure", now_ns()))
        while turn._sent_ns is None:
            gevent.sleep(0)
        late = _send(client, turn, case)
        result = turn.wait()
    assert client.results[before:] == [result], "a turn has one record"
    assert client.in_flight == 0
    return result, late


def send_pieces(client: PairClient, case: ReplyCase) -> None:
    """Send pieces as they are on the wire; each one is read by itself."""
    assert client.far is not None
    for piece in case.pieces:
        try:
            client.far.sendall(piece)
        except OSError:  # the client has closed the connection
            break
        _wait_for_read(client, client.newest)


def _send(client: PairClient, turn: Turn, case: ReplyCase) -> bool:
    far = client.far
    assert far is not None
    far.recv(65_536)
    case = client.on_wire(case)
    send_pieces(client, case)
    if case.ending == "open":
        _process_events(client)
        if turn.result is not None:
            return False
        turn.queue_parsing()
        _process_events(client)
        turn.give_up(Failure.UNFINISHED, "no more comes")
        return True
    if case.ending == "stay":  # open, but the reply has ended
        return False
    if case.ending == "reset":
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    far.close()
    return False


def _wait_for_read(client: PairClient, connection: Any) -> None:
    """Wait until the reader has read and processed the bytes sent."""
    unread = array.array("i", [0])
    while not connection.closed:  # the native reader may be reading
        fcntl.ioctl(client.near_fd, termios.FIONREAD, unread)
        if not unread[0]:
            break
        gevent.idle()
    if not connection.closed:
        _process_events(client)
    if client.parses_each_read:
        for turn in tuple(client._live):
            turn.queue_parsing()
        _process_events(client)


def _process_events(client: PairClient) -> None:
    """Run the event loop until all pending events are processed and parsed."""
    gevent.idle()  # unlike sleep(0) it polls first
    while len(client.parse_queue):
        gevent.idle()
    gevent.idle()
