"""The end of an answer is its end marker: the body may stay open, go on, or break behind it."""

import time
from collections.abc import Iterator
from itertools import pairwise

import gevent
import pytest
from chat_events import ANSWER, CHUNKED
from endpoint_answers import INCOMPLETE, MESSAGES, RESPONSES
from fuzz_replies import ReplyCase
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_parsers import pushed
from reader_pairs import PairClient, answered, send_pieces, unchecked_clients
from scripted_server import HEAD, chunk

from inferload.base.clock import now_ns
from inferload.client.connection import reader_choice
from inferload.client.connection.http1 import News
from inferload.client.connection.python_parser import PythonParser
from inferload.client.turn import Turn
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.scenario.schema.endpoints import EndpointName
from inferload.turns.remarks import Remark

ANSWERS: dict[str, tuple[EndpointName, list[bytes]]] = {
    "chat": ("chat", ANSWER),
    "without a space": ("chat", [event.replace(b"data: ", b"data:") for event in ANSWER]),
    "carriage returns": ("chat", [event.replace(b"\n", b"\r\n") for event in ANSWER]),
    "without the last blank line": ("chat", [*ANSWER[:-1], b"data: [DONE]"]),
    "with one line end": ("chat", [*ANSWER[:-1], b"data: [DONE]\n"]),
    "messages": ("messages", MESSAGES),
    "messages, one line end": ("messages", [*MESSAGES[:-1], MESSAGES[-1][:-1]]),
    "responses": ("responses", RESPONSES),
    "incomplete": ("responses", INCOMPLETE),
}
TEXTS = {"chat": "Grüße \u2028x", "messages": "Hi", "responses": "Hi"}
FRAMINGS = ("chunked", "length", "close")
# What a server or a proxy sends behind the end marker, each as a body part; None: the framing breaks.
BEHIND = {
    "nothing": (),
    "pings": (b": ping\n\n", b": ping\n\n"),
    "events": (ANSWER[1], ANSWER[-1], b"data: {broken\n\n", b'data: {"error": "late"}\n\n'),
    "half an event": (b"data: ",),
}


@pytest.fixture(params=["python", "native", "tls", "python tls"])
def connect(request: pytest.FixtureRequest) -> Iterator[object]:
    """connect(endpoint): a client whose turns no periodic check ends."""
    with unchecked_clients(request.param) as of:
        yield of


def body(framing: str, events: list[bytes]) -> list[bytes]:
    """Return the parts of a reply up to the end marker, without the end of its body."""
    if framing == "chunked":
        return [HEAD + CHUNKED + b"\r\n", *map(chunk, events)]
    length = b"Content-Length: 1000000\r\n" if framing == "length" else b""
    return [HEAD + length + b"\r\n", *events]


def begun(client: PairClient) -> Turn:
    """Start a turn whose request has arrived."""
    turn = client.start(TurnRequest(b"{}", "s0.0", "s0", 0, "chat", "measure", now_ns()))
    with gevent.Timeout(5):
        while turn._sent_ns is None:
            gevent.sleep(0)
    assert client.far is not None
    client.far.recv(65_536)
    return turn


def ended(turn: Turn) -> TurnResult:
    with gevent.Timeout(5, RuntimeError("the turn goes on behind its end marker")):
        return turn.wait()


def check(client: PairClient, result: TurnResult, endpoint: EndpointName, seen_ns: int) -> None:
    record = result.record
    assert (record.failure, result.text, record.input_tokens, record.output_tokens) == (None, TEXTS[endpoint], 7, 2)
    assert record.last_ns is not None
    assert record.last_ns <= record.closed_ns <= seen_ns
    assert not [connection for connection in client._idle if not connection.closed]


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("name", ANSWERS)
def test_a_turn_ends_though_its_body_stays_open(connect, framing: str, name: str) -> None:  # type: ignore[no-untyped-def]
    endpoint, events = ANSWERS[name]
    client = connect(endpoint)
    turn = begun(client)
    send_pieces(client, client.on_wire(ReplyCase(tuple(body(framing, events)), "open")))
    seen_ns = now_ns()
    check(client, ended(turn), endpoint, seen_ns)
    assert list(turn._parser.answer.remarks) == [Remark.OPEN_BODY]
    assert turn.result is not None
    waited_ns = turn.result.over_ns - turn.result.record.closed_ns
    assert waited_ns >= 20_000_000  # else the session's next turn would count as late


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("joined", [False, True])
def test_data_behind_the_end_marker_is_ignored(connect, framing: str, behind: str, joined: bool) -> None:  # type: ignore[no-untyped-def]
    client = connect("chat")
    turn = begun(client)
    *first, last = body(framing, ANSWER)
    more = [chunk(part) if framing == "chunked" else part for part in BEHIND[behind]]
    pieces = [last + b"".join(more)] if joined else [last, *more]
    send_pieces(client, client.on_wire(ReplyCase((*first, pieces[0]), "open")))
    seen_ns = now_ns()
    send_pieces(client, client.on_wire(ReplyCase(tuple(pieces[1:]), "open")))
    check(client, ended(turn), "chat", seen_ns)


@pytest.mark.parametrize("behind", [b"nonsense\r\n", b"fffffffffffffffffff\r\n", b"5\r\n: ping!", b"\r\n"])
@pytest.mark.parametrize("ending", ["open", "close", "reset"])
def test_a_break_behind_the_end_marker_is_no_failure(connect, behind: bytes, ending: str) -> None:  # type: ignore[no-untyped-def]
    client = connect("chat")
    result, _ = answered(client, ReplyCase((*body("chunked", ANSWER), behind), ending))
    check(client, result, "chat", now_ns())


@pytest.mark.parametrize("name", ["chat", "messages", "responses", "incomplete"])
def test_a_body_that_ends_soon_keeps_its_connection(connect, name: str) -> None:  # type: ignore[no-untyped-def]
    endpoint, events = ANSWERS[name]
    client = connect(endpoint)
    turn = begun(client)
    send_pieces(client, client.on_wire(ReplyCase((b"".join(body("chunked", events)),), "open")))
    send_pieces(client, client.on_wire(ReplyCase((b"0\r\n\r\n",), "open")))
    assert ended(turn).record.failure is None
    if not turn._parser.answer.remarks:  # else the machine was busy for 20 ms
        assert len([connection for connection in client._idle if not connection.closed]) == 1


def test_a_body_whose_end_was_read_but_not_reported_yet_keeps_its_connection(connect) -> None:  # type: ignore[no-untyped-def]
    client = connect("chat")
    turn = begun(client)
    assert client.far is not None
    for piece in client.on_wire(ReplyCase((b"".join([*body("chunked", ANSWER), b"0\r\n\r\n"]),), "open")).pieces:
        client.far.sendall(piece)
    time.sleep(0.03)  # the thread reads the whole body; the event loop does not run
    turn.step()
    assert ended(turn).record.failure is None
    assert not turn._parser.answer.remarks
    assert len([connection for connection in client._idle if not connection.closed]) == 1


def test_a_mark_within_the_text_ends_no_turn(connect) -> None:  # type: ignore[no-untyped-def]
    client = connect("chat")
    turn = begun(client)
    parts = body("chunked", [ANSWER[0], ANSWER[1].replace(b"Gr", b"[DONE] Gr"), *ANSWER[2:]])
    send_pieces(client, client.on_wire(ReplyCase(tuple(parts[:3]), "open")))
    gevent.get_hub().loop.update_now()
    until_ns = now_ns() + 60_000_000
    while now_ns() < until_ns:
        gevent.sleep(0.005)
    assert turn.result is None
    send_pieces(client, client.on_wire(ReplyCase((*parts[3:], b"0\r\n\r\n"), "open")))
    result = ended(turn)
    assert (result.record.failure, result.text) == (None, "[DONE] Grüße \u2028x")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_end_marker_is_seen_at_any_split_of_reads_and_chunks(connect, data: st.DataObject) -> None:  # type: ignore[no-untyped-def]
    name = data.draw(st.sampled_from(["chat", "messages", "incomplete"]))
    endpoint, events = ANSWERS[name]
    text = b"".join(events)
    near_end = st.integers(len(text) - 45, len(text))
    framing = data.draw(st.sampled_from(FRAMINGS))
    chunks = split(text, data.draw(st.lists(near_end, max_size=6))) if framing == "chunked" else [text]
    reply = b"".join(body(framing, chunks))
    at = data.draw(st.lists(st.integers(len(reply) - 70, len(reply)), max_size=12))
    pieces = split(reply, at)
    client = connect(endpoint)
    turn = begun(client)
    send_pieces(client, client.on_wire(ReplyCase(tuple(pieces), "open")))
    check(client, ended(turn), endpoint, now_ns())


def split(text: bytes, at: list[int] | range) -> list[bytes]:
    edges = sorted({0, *at, len(text)})
    return [text[a:b] for a, b in pairwise(edges) if b > a]


PARTS = [b"[", b"[DO", b"NE]", b"[DONE]", b"x", b"message_stop", b"message_", b"st", b"op", b".", b'.completed"']
MARKS = ((b"[DONE]",), (b"message_stop", b"[DONE]"), (b'.completed"', b'.incomplete"', b"[DONE]"))


@given(
    st.sampled_from(MARKS),
    st.lists(st.sampled_from(PARTS), max_size=9),
    st.lists(st.integers(0, 60), max_size=9),
)
def test_each_parser_finds_each_mark_at_any_split(marks: tuple[bytes, ...], words: list[bytes], at: list[int]) -> None:
    text = b"".join(words)
    pieces = split(text, [position for position in at if position < len(text)]) if text else []
    reads = split(b"".join(map(chunk, pieces)), at[::2]) if pieces else []
    compiled = reader_choice.parser()
    for parser in (PythonParser, *([] if compiled is None else [compiled.Reply])):
        assert any(news & News.MARKED for news in pushed(parser(marks), reads)) == any(mark in text for mark in marks)
