"""Every end of a plain and of a TLS stream, at every place of a reply: the turn ends at once, and the next one succeeds."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from itertools import accumulate, product

import gevent
import pytest
from chat_events import ANSWER, CHUNKED
from fuzz_replies import FORMS, Budget, ReplyCase, random_case
from reader_pairs import BROKEN, GOOD, NOTIFIED, PairClient, TlsPairClient, TurnOutcome, answered, outcome
from scripted_server import HEAD, chunk
from tls_peer import VERSIONS, server_context

from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.tls import TlsSettings
from inferload.client import retry
from inferload.client.client import Client, ClientSettings
from inferload.client.connection import reader_choice
from inferload.client.connection.reply import ConnectionLost, GatheredReply, nothing
from inferload.client.connection.target import Target
from inferload.client.fetch import Fetcher
from inferload.client.turn_record import TurnRequest
from inferload.turns.record import Failure

BODY = b"".join(ANSWER)
TEXT = "Grüße \u2028x"
REPLIES = {
    "chunked": [HEAD + CHUNKED + b"\r\n", *map(chunk, ANSWER), b"0\r\n\r\n"],
    "length": [HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY), *ANSWER],
    "close": [HEAD + b"\r\n", *ANSWER],
}
CASES = 30  # per round


@pytest.fixture(scope="module", params=product(VERSIONS, ("native", "python")), ids=" ".join)
def tls(request: pytest.FixtureRequest) -> Iterator[TlsPairClient]:
    version, reader = request.param
    client = TlsPairClient(version, reader)
    yield client
    client.close()


@pytest.fixture(scope="module", params=["python", "native"])
def plain(request: pytest.FixtureRequest) -> Iterator[PairClient]:
    client = PairClient(request.param)
    yield client
    client.close()


@pytest.fixture(scope="module")
def plain_outcomes() -> dict[tuple[PairClient, ReplyCase], TurnOutcome]:
    """Outcomes of plain clients that are known."""
    return {}


def places(parts: list[bytes]) -> list[int]:
    """Return positions in a reply: within its head, its first event, its last two parts, and at their edges."""
    edges = [*accumulate(map(len, parts))]
    length = edges[-1]
    return sorted(
        {0, 7, *(at + by for at in (edges[0], edges[-3], length) for by in (-3, -2, 0, 1, 8) if at + by <= length)}
    )


def failures(framing: str, at: int, orderly: bool) -> tuple[Failure | None, ...]:
    """Return the possible failures of a reply of which `at` bytes arrive."""
    reply, head = b"".join(REPLIES[framing]), REPLIES[framing][0]
    if b"data: [DONE]" in reply[:at]:  # some servers close the connection right behind it
        return (None,)
    if framing != "close" or not orderly or at < len(head):
        return (Failure.CUT,)
    # The body is complete; what follows the last blank line may be a half event.
    finished, half = b'"length"}]}' in reply[:at], reply[:at].rpartition(b"\n\n")[2]
    return (None if finished else Failure.CUT, *([Failure.BAD_EVENT] if half else []))


@pytest.mark.parametrize("framing", REPLIES)
@pytest.mark.parametrize("ending", [*NOTIFIED, *BROKEN])
def test_each_end_of_a_tls_stream_ends_the_turn_at_each_place(
    tls: TlsPairClient, request: pytest.FixtureRequest, framing: str, ending: str
) -> None:
    """Each client is at a third of the places of a reply with this end, the next client at the next third."""
    at = (request.node.callspec.indices["tls"], [*NOTIFIED, *BROKEN].index(ending), [*REPLIES].index(framing))
    check_each_place(tls, framing, ending, orderly=ending in NOTIFIED, some=slice(sum(at) % 3, None, 3))


@pytest.mark.parametrize("framing", REPLIES)
@pytest.mark.parametrize("ending", ["close", "reset"])
def test_each_end_of_a_plain_stream_ends_the_turn_at_each_place(plain: PairClient, framing: str, ending: str) -> None:
    check_each_place(plain, framing, ending, orderly=ending == "close")


def check_each_place(
    client: PairClient, framing: str, ending: str, *, orderly: bool, some: slice = slice(None)
) -> None:
    """Each turn is the next one of that before it: on a new connection, at once. The last one is answered."""
    reply = b"".join(REPLIES[framing])
    client.forget_idle()
    for at in places(REPLIES[framing])[some]:
        pieces = tuple(piece for piece in (reply[: at // 2], reply[at // 2 : at]) if piece)
        result, late = answered(client, ReplyCase(pieces, ending))
        assert result.record.failure in failures(framing, at, orderly), f"{at} bytes: {result.detail}"
        assert (late, result.record.attempts) == (False, 1)
        assert result.record.connect_ns is not None, at
        wait_for_close(client)
    again, _ = answered(client, GOOD)
    assert (again.record.failure, again.text, again.record.attempts) == (None, TEXT, 1)
    assert again.record.connect_ns is not None


def wait_for_close(client: PairClient) -> None:
    assert client.newest is not None
    with gevent.Timeout(5):
        while not client.newest.closed:
            gevent.idle()


@pytest.mark.parametrize("ending", [*NOTIFIED, *BROKEN])
def test_a_stream_that_ends_between_two_turns_is_not_reused(tls: TlsPairClient, ending: str) -> None:
    tls.forget_idle()
    first, _ = answered(tls, GOOD)
    assert tls.far is not None
    case = tls.on_wire(ReplyCase((), ending))
    for piece in case.pieces:
        tls.far.sendall(piece)
    if case.ending != "stay":
        tls.far.close()
    wait_for_close(tls)
    again, _ = answered(tls, GOOD)
    assert (first.record.failure, again.record.failure, again.record.attempts) == (None, None, 1)
    assert again.record.connect_ns is not None


@pytest.mark.parametrize("ending", [*NOTIFIED, "fatal_alert", "close", "reset"])
def test_a_stream_that_ends_when_the_next_request_is_sent_is_replaced(
    tls: TlsPairClient, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "SLACK_NS", 3600 * NS_PER_S)
    tls.forget_idle()
    answered(tls, GOOD)
    turn = tls.start(TurnRequest(b"{}", "s0.1", "s0", 1, "chat", "measure", now_ns()))
    assert tls.far is not None
    first = tls.far
    case = tls.on_wire(ReplyCase((), ending))
    first.sendall(b"".join(case.pieces))
    if case.ending != "stay":
        first.close()
    with gevent.Timeout(5):
        while tls.far is first or turn._sent_ns is None:
            gevent.sleep(0)
        tls.far.sendall(tls.on_wire(GOOD).pieces[0])
        result = turn.wait()
    first.close()
    assert (result.record.failure, result.text, result.record.attempts) == (None, TEXT, 2)


@pytest.mark.parametrize("rounds", [pytest.param(1, id="short"), FORMS[1]])
def test_a_reply_over_tls_has_the_result_of_the_plain_one(
    tls: TlsPairClient,
    plain: PairClient,
    plain_outcomes: dict[tuple[PairClient, ReplyCase], TurnOutcome],
    rounds: int | None,
) -> None:
    """An orderly end is a close of a plain connection, every other one a reset."""
    budget = Budget("ends", rounds)
    for rng in budget.rounds():
        for _ in range(CASES):
            pieces = random_case(rng).pieces
            ending = rng.choice([*NOTIFIED, *BROKEN])
            case = ReplyCase(pieces, "close" if ending in NOTIFIED else "reset")
            over_plain = plain_outcomes.get((plain, case)) or outcome(plain, case)
            if rounds is not None:  # the same cases for each client
                plain_outcomes[plain, case] = over_plain
            over_tls = outcome(tls, ReplyCase(pieces, ending))
            assert over_tls == over_plain, f"{budget}: {ending} after {pieces}"
            budget.inputs += 1


def test_a_body_that_is_complete_but_not_parsed_stays_complete_after_a_reset() -> None:
    reply = GatheredReply(nothing, on_parse_due=nothing)
    reply.take(b"".join(REPLIES["chunked"]), 1, 1, [])
    reply.end(ConnectionLost("the connection broke"))
    assert (reply.complete, reply.error) == (True, None)


@contextlib.contextmanager
def asyncio_server(reply: bytes) -> Iterator[str]:
    """Run an asyncio server with TLS that closes after each reply: it sends close_notify and waits for the client's."""
    loop, started, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    urls: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"Content-Length" in head:
            await reader.readexactly(2)
        writer.write(reply)
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=server_context("TLSv1.3"))
        urls.append(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        started.set()
        await stop.wait()
        server.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    started.wait()
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.mark.parametrize("reader", ["native", "python"])
def test_answers_of_an_asyncio_server_that_closes_succeed_one_after_another(
    reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reader == "native" and not reader_choice.built():
        pytest.skip("the compiled reader was not built")
    monkeypatch.setenv(reader_choice.VARIABLE, reader)
    with asyncio_server(b"".join(REPLIES["close"])) as url:
        client = Client(ClientSettings(Target.parse(url), "m", tls=TlsSettings(insecure=True)), lambda _result: None)
        for number in range(3):
            with gevent.Timeout(20):
                request = TurnRequest(b"{}", f"s0.{number}", "s0", number, "chat", "measure", now_ns())
                result = client.start(request).wait()
            assert (result.record.failure, result.text, result.record.attempts) == (None, TEXT, 1), result.detail
        client.close()


def test_a_document_of_an_asyncio_server_that_closes_is_complete() -> None:
    with asyncio_server(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[1]") as url:
        settings = ClientSettings(Target.parse(url), "m", tls=TlsSettings(insecure=True))
        assert Fetcher(settings, timeout_s=20).get("/").json() == [1]
