"""A stream that stops within its last event costs nothing while the server is silent, and is read to its end."""

from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise

import gevent
import pytest
from chat_events import CHUNKED
from endpoint_answers import OF_ENDPOINTS, STREAMED
from fuzz_replies import ReplyCase
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from reader_pairs import PairClient, send_pieces, unchecked_clients
from scripted_server import HEAD, chunk

from inferload.base.clock import now_ns
from inferload.client.endpoints.dialect import DIALECTS
from inferload.client.turn import Turn
from inferload.client.turn_record import TurnRequest
from inferload.scenario.schema.endpoints import EndpointName

PERIOD_S = 0.021  # of the timer for the end of a body
PERIODS = 5
FRAMINGS = ("chunked", "length", "close")


@pytest.fixture(scope="module", params=["python", "native", "tls", "python tls"])
def client_of(request: pytest.FixtureRequest) -> Iterator[Callable[[EndpointName], PairClient]]:
    """client_of(endpoint): a client whose turns no periodic check ends."""
    with unchecked_clients(request.param) as of:
        yield of


def reply_of(endpoint: EndpointName, framing: str) -> tuple[bytes, int]:
    """Return a whole reply, and the position behind the end marker in its last event."""
    events = OF_ENDPOINTS[endpoint]
    parts = list(map(chunk, events)) if framing == "chunked" else list(events)
    length = b"Content-Length: %d\r\n" % sum(map(len, events))
    head = HEAD + {"chunked": CHUNKED, "length": length, "close": b""}[framing] + b"\r\n"
    start = list(accumulate(map(len, [head, *parts])))[-2]
    reply = head + b"".join(parts) + (b"0\r\n\r\n" if framing == "chunked" else b"")
    marks = (mark for mark in DIALECTS[endpoint].answer.marks if mark in reply[start:])
    return reply, min(reply.index(mark, start) + len(mark) for mark in marks)


def cost(turn: Turn) -> tuple[int, int]:
    """Return the iterations of the event loop, and the parse slices of the turn, in some periods of the timer."""
    iterations, slices, step = 0, 0, turn.step

    def looped() -> None:
        nonlocal iterations
        iterations += 1

    def counted() -> bool:
        nonlocal slices
        slices += 1
        return step()

    turn.step = counted  # type: ignore[method-assign]
    watcher = gevent.get_hub().loop.prepare()
    watcher.start(looped)
    for _ in range(PERIODS):
        gevent.sleep(PERIOD_S)
    watcher.stop()
    watcher.close()
    return iterations, slices


def test_every_endpoint_is_tested() -> None:
    assert set(STREAMED) < set(OF_ENDPOINTS)


# Cuts: right behind the end marker; the last brace is missing; both line ends are missing.
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(STREAMED)), st.sampled_from(FRAMINGS), st.integers(0, 4000), st.booleans())
@example("messages", "chunked", 0, True)
@example("responses", "close", 0, False)
@example("responses", "length", 200, True)
@example("chat", "chunked", 5, False)
def test_a_silent_stream_is_not_parsed_again(  # type: ignore[no-untyped-def]
    client_of, endpoint: EndpointName, framing: str, beyond: int, in_parts: bool
) -> None:
    reply, marked = reply_of(endpoint, framing)
    at = marked + beyond % (len(reply) - marked)
    client = client_of(endpoint)
    turn = client.start(TurnRequest(b"{}", "s0.0", "s0", 0, "chat", "measure", now_ns()))
    while turn._sent_ns is None:
        gevent.sleep(0)
    client.far.recv(65_536)
    cuts = (0, marked - 2, marked, at) if in_parts else (0, at)
    pieces = tuple(reply[a:b] for a, b in pairwise(cuts) if b > a)
    with gevent.Timeout(10, RuntimeError("the event loop never becomes idle")):
        send_pieces(client, client.on_wire(ReplyCase(pieces, "open")))
        iterations, slices = cost(turn)
    assert slices <= 3, f"{slices} parse slices in {PERIODS} periods"
    assert iterations <= 20 * PERIODS, f"{iterations} iterations of the event loop in {PERIODS} periods"
    if turn.result is None:
        rest = (reply[at : at + 1], reply[at + 1 :])
        send_pieces(client, client.on_wire(ReplyCase(tuple(filter(None, rest)), "open")))
    with gevent.Timeout(5, RuntimeError("the turn does not end")):
        result = turn.wait()
    assert (result.record.failure, result.record.input_tokens, result.record.output_tokens) == (None, 7, 2)
