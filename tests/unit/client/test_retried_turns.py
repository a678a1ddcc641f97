"""Turns on a keep-alive connection that ends without a reply: sent again if its close crossed the request, else failed.

Both ends are in this process, so that the order of all steps is fixed. Where a limit of time must hold, it is raised; where it
must be exceeded, the end comes later: no machine is too slow for that.
"""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import gevent
import pytest
from fuzz_replies import ReplyCase
from reader_pairs import GOOD, TLS_READERS, PairClient, answered, pair_client, send_pieces

from inferload.base.clock import NS_PER_S, now_ns
from inferload.client import retry
from inferload.client import turn as turns
from inferload.client.client import Client
from inferload.client.connection import python_connection
from inferload.client.connection.connect import DialError
from inferload.client.connection.tcp_info import ConnectionEnd, tcp_info
from inferload.client.turn import Turn
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.turns.record import Failure, TurnRecord

RESET = struct.pack("ii", 1, 0)
LATE_S = 0.1  # twenty times the limit, and longer than a kernel delays an acknowledgement
End = Callable[[PairClient], None]


def fin(client: PairClient) -> None:
    far_of(client).shutdown(socket.SHUT_RDWR)


def reset(client: PairClient) -> None:
    far_of(client).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    far_of(client).close()


def close_notify(client: PairClient) -> None:
    far_of(client).sendall(b"".join(client.on_wire(ReplyCase((), "close_notify")).pieces))


def half_close(client: PairClient) -> None:
    far_of(client).shutdown(socket.SHUT_WR)


PLAIN_ENDS, TLS_ENDS = (fin, reset, half_close), (fin, reset, close_notify)
CASES = [
    *((reader, end) for reader in ("python", "native") for end in PLAIN_ENDS),
    *((reader, end) for reader in TLS_READERS for end in TLS_ENDS),
]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1].__name__}")
def case(request: pytest.FixtureRequest) -> Iterator[tuple[PairClient, End]]:
    """A client with an idle connection, and a way to end it."""
    reader, end = request.param
    client = pair_client(reader)
    answered(client, GOOD)
    yield client, end
    client.close()


def far_of(client: PairClient) -> socket.socket:
    assert client.far is not None
    return client.far


def start(client: PairClient, body: bytes = b"{}") -> Turn:
    return client.start(TurnRequest(body, "s0.1", "s0", 1, "chat", "measure", now_ns()))


def raise_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "SLACK_NS", 3600 * NS_PER_S)


def wait_for(condition: Callable[[], object]) -> None:
    with gevent.Timeout(20):
        while not condition():
            gevent.idle()


def answer(client: PairClient, turn: Turn, first: socket.socket) -> TurnResult:
    """Answer the request on the connection after `first`."""
    wait_for(lambda: client.far is not first and turn._written_ns is not None)
    send_pieces(client, client.on_wire(GOOD))
    return result_of(turn)


def result_of(turn: Turn) -> TurnResult:
    with gevent.Timeout(20):
        return turn.wait()


def check_order(record: TurnRecord) -> None:
    instants = [
        at
        for name in ("planned", "sent", "written", "first_event", "first", "last", "closed")
        if (at := getattr(record, f"{name}_ns")) is not None
    ]
    assert instants == sorted(instants)


def test_a_request_whose_connection_ends_at_once_is_sent_again(
    case: tuple[PairClient, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, end = case
    raise_limit(monkeypatch)
    before_ns = now_ns()
    turn, first = start(client), far_of(client)
    after_ns = now_ns()
    first.recv(100)
    gevent.sleep(0.02)
    end(client)
    record = answer(client, turn, first).record
    first.close()
    assert (record.failure, record.attempts, record.retries) == (None, 2, 1)
    assert record.sent_ns is not None
    assert before_ns <= record.sent_ns <= after_ns  # the first one
    assert record.written_ns is not None
    assert record.written_ns - record.sent_ns >= 0.02 * NS_PER_S
    assert record.connect_ns is None  # not before `sent`
    assert record.event_ns is not None
    assert record.first_ns == record.sent_ns + record.event_ns[0]
    check_order(record)


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle client", "busy client"])
def test_a_request_that_the_server_has_read_is_not_sent_again(case: tuple[PairClient, End], is_busy: bool) -> None:
    client, end = case
    turn, first = start(client), far_of(client)
    first.recv(100)
    (time.sleep if is_busy else gevent.sleep)(LATE_S)
    end(client)
    result = result_of(turn)
    first.close()
    record = result.record
    assert (record.failure, record.attempts, record.retries) == (Failure.CUT, 1, 0), result.detail
    assert client.far is first
    check_order(record)


def test_a_busy_client_sends_again_what_a_close_crossed(
    case: tuple[PairClient, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end arrives within the limit, and is read after it. Repeated if the end itself came late."""
    monkeypatch.setattr(python_connection, "WAITED_NS", 3600 * NS_PER_S)  # of a poll that does not wait
    client, end = case
    if client.reader.reader == "native":
        pytest.skip("its thread is not busy")
    while True:
        begun_ns = now_ns()
        turn, first = start(client), far_of(client)
        end(client)
        is_prompt = now_ns() - begun_ns < retry.SLACK_NS // 2
        time.sleep(0.03)
        if is_prompt:
            break
        turn.cancel()
        turn.wait()
        client.forget_idle()
        answered(client, GOOD)
    wait_for(lambda: client.far is not first or turn.result is not None)
    assert client.far is not first, turn.result
    record = answer(client, turn, first).record
    first.close()
    assert (record.failure, record.attempts) == (None, 2)


def test_the_work_of_a_client_whose_loop_goes_on_does_not_count(
    case: tuple[PairClient, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client works for 25 ms in steps of 2.5 ms, and looks at its sockets in between. Then the server ends the connection."""
    client, end = case
    ends: list[ConnectionEnd] = []
    monkeypatch.setattr(turns, "crossed_by_close", lambda _request, end: bool(ends.append(end)))
    turn, first = start(client), far_of(client)
    first.recv(100)
    for _ in range(10):
        _work(0.0025)
        gevent.sleep(0.0001)
    polled_ns = now_ns()
    wait_for_poll()
    end(client)
    record = result_of(turn).record
    first.close()
    assert (record.failure, record.attempts) == (Failure.CUT, 1)
    if client.reader.reader == "python":
        assert ends[0].seen_ns - ends[0].busy_ns >= polled_ns


def _work(work_s: float) -> None:
    end_ns = time.thread_time_ns() + work_s * NS_PER_S
    while time.thread_time_ns() < end_ns:
        pass


def wait_for_poll() -> None:
    """Wait until the event loop has looked at its sockets twice."""
    for _ in range(2):
        gevent.sleep(0.0001)


def test_a_connection_that_ended_before_the_request_is_not_used(case: tuple[PairClient, End]) -> None:
    client, end = case
    first = far_of(client)
    end(client)  # the event loop has not seen it
    if end is close_notify and client.reader.reader == "native":  # which the kernel does not know, but the thread
        while not client._idle[-1].closed:
            time.sleep(0.001)
    turn = start(client)
    record = answer(client, turn, first).record
    first.close()
    assert (record.failure, record.attempts) == (None, 1)
    assert record.connect_ns is not None
    check_order(record)


@contextmanager
def end_unseen(client: PairClient) -> Iterator[None]:
    """The client uses its idle connection within the block although its end arrives, which may be read late."""
    connection = client._idle[-1]
    connection.info = tcp_info(connection._sock)  # type: ignore[attr-defined]
    refresh = type(connection).refresh
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(connection), "refresh", lambda self: True if self is connection else refresh(self))
        raise_limit(patch)
        yield


def test_a_request_that_a_closed_server_did_not_accept_is_no_retry(case: tuple[PairClient, End]) -> None:
    """The end arrives between the last look at the connection and the request."""
    client, end = case
    if end not in (fin, reset):
        pytest.skip("the server's kernel accepts the request")
    first = far_of(client)
    with end_unseen(client):
        end(client)
        first.close()
        turn = start(client)
        record = answer(client, turn, first).record
    assert (record.failure, record.attempts, record.retries) == (None, 1, 0)
    check_order(record)


def test_a_request_that_a_half_closed_server_reads_is_counted(case: tuple[PairClient, End]) -> None:
    """The same segment arrives as of a server that has closed the connection, but the server reads the request."""
    client, end = case
    if end is not half_close:
        pytest.skip("of a server that has only ended its sending")
    connection, first = client._idle[-1], far_of(client)
    with end_unseen(client):
        end(client)
        turn = start(client)
        record = answer(client, turn, first).record
    assert first.recv(10) == b"POST /v1/c"
    first.close()
    assert (record.failure, record.attempts, record.retries) == (None, 2, 1)
    assert connection._sock.closed  # type: ignore[attr-defined]


def test_only_one_second_request_is_sent(case: tuple[PairClient, End], monkeypatch: pytest.MonkeyPatch) -> None:
    client, end = case
    raise_limit(monkeypatch)
    turn, first = start(client), far_of(client)
    first.recv(100)
    end(client)
    wait_for(lambda: client.far is not first and turn._written_ns is not None)
    second = far_of(client)
    second.recv(100)
    end(client)
    result = result_of(turn)
    first.close()
    assert (result.record.failure, result.record.attempts, result.record.retries) == (Failure.CUT, 2, 1)
    assert client.far is second
    check_order(result.record)


@pytest.mark.parametrize("how", ["cancelled", "unfinished"])
def test_a_second_request_that_does_not_end_is_counted(
    case: tuple[PairClient, End], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    client, end = case
    raise_limit(monkeypatch)
    turn, first = start(client), far_of(client)
    first.recv(100)
    end(client)
    wait_for(lambda: client.far is not first and turn._written_ns is not None)
    turn.cancel() if how == "cancelled" else turn.give_up(Failure.UNFINISHED, "the run ended")
    record = result_of(turn).record
    first.close()
    assert (record.cancelled, record.finished) == ((True, True) if how == "cancelled" else (False, False))
    assert (record.attempts, record.retries) == (2, 1)
    check_order(record)


def test_a_second_request_without_a_connection_was_not_sent(
    case: tuple[PairClient, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, end = case
    raise_limit(monkeypatch)

    def refuse() -> None:
        raise DialError(Failure.CONNECT, "refused")

    turn, first = start(client), far_of(client)
    first.recv(100)
    monkeypatch.setattr(client, "dial", refuse)
    end(client)
    record = result_of(turn).record
    first.close()
    assert (record.failure, record.attempts, record.retries) == (Failure.CONNECT, 1, 0)
    assert record.sent_ns is not None
    check_order(record)


@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "late"])
def test_a_request_that_is_being_written_has_the_same_limit(
    case: tuple[PairClient, End], monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    client, end = case
    if end not in (fin, reset):
        pytest.skip("the rest of the request is sent")
    if not is_late:
        raise_limit(monkeypatch)
    turn, first = start(client, bytes(16_000_000)), far_of(client)
    if is_late:
        gevent.sleep(LATE_S)
    end(client)
    first.close()  # with unread data: a reset
    if is_late:
        record = result_of(turn).record
        assert (record.failure, record.attempts, record.written_ns) == (Failure.CUT, 1, None)
    else:
        wait_for(lambda: client.far is not first)
        turn.cancel()
        record = result_of(turn).record
        assert (record.cancelled, record.attempts - record.retries) == (True, 1)
    check_order(record)


def test_a_refused_connection_sends_no_request() -> None:
    client = PairClient("python")
    client.dial = lambda: (_ for _ in ()).throw(DialError(Failure.CONNECT, "refused"))  # type: ignore[method-assign]
    record = result_of(start(client)).record
    Client.close(client)
    assert (record.failure, record.attempts, record.retries, record.sent_ns) == (Failure.CONNECT, 0, 0, None)
