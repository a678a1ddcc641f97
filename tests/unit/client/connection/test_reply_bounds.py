"""Endless or malformed replies: bounded memory, one failed turn, and the same outcome from both readers."""

import socket
import time
from collections.abc import Callable, Iterator

import gevent
import psutil
import pytest
from chat_events import ANSWER, CHUNKED, event
from scripted_server import HEAD, Script, ScriptedServer, chunk, chunked, send

from inferload.base.clock import now_ns
from inferload.client.client import Client, ClientSettings
from inferload.client.connection import reader_choice
from inferload.client.connection.http1 import MAX_HEAD_BYTES
from inferload.client.connection.target import Target
from inferload.client.turn import Turn
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.scenario.schema.request import Timeouts
from inferload.turns.record import Failure

PATIENCE_S = 20.0
MIB = 1 << 20
MUCH = 20 * MIB  # of a reply that only a timeout ends


@pytest.fixture(autouse=True, params=["python", "native"])
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "native" and not reader_choice.built():
        pytest.skip("the compiled reader was not built")
    monkeypatch.setenv(reader_choice.VARIABLE, request.param)


@pytest.fixture
def start() -> Iterator[Callable[..., Turn]]:
    """Start a turn against scripts: start(script, ..., timeouts=...); later turns with start()."""
    open_: list[Client | ScriptedServer] = []

    def run(*scripts: Script, **settings: object) -> Turn:
        if scripts:
            server = ScriptedServer(list(scripts))
            client = Client(ClientSettings(Target.parse(server.url), "m", **settings), lambda _result: None)  # type: ignore[arg-type]
            open_.extend([client, server])
            run.server, run.client = server, client  # type: ignore[attr-defined]
        return run.client.start(TurnRequest(b"{}", "s0.0", "s0", 0, "chat", "measure", now_ns()))  # type: ignore[attr-defined, no-any-return]

    yield run
    for thing in open_:
        thing.close()


def waited(turn: Turn) -> TurnResult:
    with gevent.Timeout(PATIENCE_S):
        return turn.wait()


def endless(first: bytes, then: bytes, taken: list[int], enough: int = 1 << 60) -> Script:
    """A script that sends until the client closes, for at most 60 s or 20 GB, without pauses up to `enough` bytes.

    `taken`: bytes of each piece.
    """
    piece = then * (MIB // len(then) + 1)

    def script(sock: socket.socket, _request: bytes) -> None:
        sock.sendall(first)
        until = time.monotonic() + 60
        for _ in range(20_000):
            if time.monotonic() > until:
                break
            sock.sendall(piece)
            taken.append(len(piece))
            if sum(taken) > enough:
                time.sleep(0.02)

    return script


STREAM = HEAD + CHUNKED + b"\r\n"


@pytest.mark.parametrize(
    ("first", "then", "failure", "detail"),
    [
        (STREAM, chunk(b": still here\n\n"), Failure.TIMEOUT_TURN, "0 s"),
        (STREAM, chunk(b": " + bytes(60_000) + b"\n\n"), Failure.TIMEOUT_TURN, "0 s"),
        (HEAD + b"\r\n", b": no chunks\n\n", Failure.TIMEOUT_TURN, "0 s"),
        (STREAM + chunk(event("a") + b"data: "), chunk(b"x" * 60_000), Failure.BAD_EVENT, "16 MiB"),
        (HEAD + b"\r\n" + event("a") + b"data: ", b"x" * 60_000, Failure.BAD_EVENT, "16 MiB"),
        (b"HTTP/1.1 500 Oh\r\n\r\n", b"no end of it ", Failure.HTTP_5XX, "no end of it"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", Failure.BAD_HTTP, "interim"),
        (HEAD, b"X-Pad: y\r\n", Failure.BAD_HTTP, "head"),
        (STREAM + b"".join(chunk(e) for e in ANSWER) + b"0\r\n", b"X-Pad: y\r\n", None, ""),
    ],
    ids=[
        "comments",
        "large comments",
        "no framing",
        "event",
        "event, no framing",
        "error",
        "interim",
        "head",
        "trailers",
    ],
)
def test_an_endless_reply_ends_its_turn_in_bounded_memory(
    start: Callable[..., Turn], first: bytes, then: bytes, failure: Failure | None, detail: str
) -> None:
    process = psutil.Process()
    taken: list[int] = []
    turn = start(endless(first, then, taken, MUCH), send(chunked(*ANSWER)), timeouts=Timeouts(turn_s=PATIENCE_S))
    before = process.memory_info().rss
    peak = before
    while turn.result is None:
        with gevent.Timeout(PATIENCE_S):
            turn.wait_until(now_ns() + 10_000_000)
        if failure is Failure.TIMEOUT_TURN and sum(taken) > MUCH:
            start.client.timeouts = Timeouts.model_construct(turn_s=0)  # type: ignore[attr-defined]
            turn.next_check_ns = 0
        peak = max(peak, process.memory_info().rss)
    assert (turn.result.record.failure, detail in turn.result.detail) == (failure, True), turn.result.detail
    assert peak - before < (16 if failure is Failure.TIMEOUT_TURN else 80) * MIB
    start.client.timeouts = Timeouts()  # type: ignore[attr-defined]
    assert waited(start()).record.failure is None


def test_other_turns_continue_during_an_endless_reply(start: Callable[..., Turn]) -> None:
    turn = start(endless(STREAM, chunk(b": still here\n\n"), []), send(chunked(*ANSWER)), timeouts=Timeouts(turn_s=60))
    with gevent.Timeout(PATIENCE_S):
        while turn._reply.last_ns is None:
            gevent.sleep(0.01)
    for _ in range(3):
        assert waited(start()).record.failure is None
    assert turn.result is None
    start.client.timeouts = Timeouts.model_construct(turn_s=0)  # type: ignore[attr-defined]
    turn.next_check_ns = 0
    assert waited(turn).record.failure is Failure.TIMEOUT_TURN


BODY = b"".join(ANSWER)
SURPLUS = [chunked(*ANSWER) + event("b"), HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY + event("b")]


@pytest.mark.parametrize("reply", SURPLUS, ids=["chunked", "length"])
def test_bytes_after_the_end_are_ignored_and_close_the_connection(start: Callable[..., Turn], reply: bytes) -> None:
    result = waited(start(send(reply), send(chunked(*ANSWER)), timeouts=Timeouts(between_events_s=PATIENCE_S)))
    assert result.record.failure is None, result.detail
    assert result.text == "Grüße \u2028x"
    assert waited(start()).record.failure is None
    assert start.server.connections == 2  # type: ignore[attr-defined]


A, B = event("a"), event("b")


@pytest.mark.parametrize("piece_bytes", [0, 1, 7, 100])
@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (chunk(A) + b"0x%x\r\n%s\r\n" % (len(B), B), "a"),
        (b"0x%x\r\n%s\r\n" % (len(A), A), ""),
        (chunk(A) + chunk(B) + b"zz\r\n", "ab"),
        (chunk(A) + b"%x\r\n%sxx\r\n" % (len(B), B), "ab"),
        (chunk(A) + b"1" * 16 + b"\r\n" + B, "a"),
        (chunk(A + B[:9]) + chunk(B[9:]) + b"-1\r\n", "ab"),
    ],
)
def test_malformed_framing_keeps_the_events_before_it(
    start: Callable[..., Turn], broken: bytes, text: str, piece_bytes: int
) -> None:
    result = waited(start(send(STREAM + broken, piece_bytes=piece_bytes)))
    assert result.record.failure is Failure.BAD_HTTP
    assert result.text == text


@pytest.mark.parametrize("piece_bytes", [0, 1_000, 60_000])
@pytest.mark.parametrize("too_much", [0, 1])
@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 102 Processing\r\n\r\n"])
def test_a_head_above_the_size_limit_is_refused(
    start: Callable[..., Turn], first: bytes, too_much: int, piece_bytes: int
) -> None:
    _, _, body = chunked(*ANSWER).partition(b"\r\n\r\n")
    pad = MAX_HEAD_BYTES - len(first + STREAM + b"X-Pad: \r\n") + too_much
    reply = first + STREAM[:-2] + b"X-Pad: %s\r\n\r\n" % (b"y" * pad) + body
    result = waited(start(send(reply, piece_bytes=piece_bytes)))
    assert result.record.failure is (Failure.BAD_HTTP if too_much else None), result.detail
