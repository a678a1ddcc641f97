"""Random bytes for the compiled parsers and for their Python equivalents: equal results."""

import random
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from fuzz_replies import (
    FORMS,
    TOKENS,
    Budget,
    ReplyCase,
    below,
    chunked_body,
    content_event,
    cut,
    event_data,
    head,
    mutated,
    one_of,
    random_case,
    random_text,
    sse,
)
from native_parsers import CHUNKED_HEAD, MOST_MEASURED, answered, framing_of

from inferload.client.answers.answer import Frames
from inferload.client.connection.http1 import Framing, Http1Error, parse_head

native = pytest.importorskip("inferload.client.connection._parser", reason="the compiled parser was not built")

VARIANTS = 8  # mutations of each input, which take less time than another input
MARKS = (b"[DONE]", b'usage"')
REPLIES = [ReplyCase((b"HTTP/1.1 100 Continue\r\n\r\n", piece), "open") for piece in (b"HTT", b"nonsense")]
RANDOM_REPLIES = 600  # per round
HEADS, STREAMS, WILD, CUT_SCANS = 600, 10, 60, 10  # inputs per round


@pytest.mark.parametrize("rounds", FORMS)
def test_parsers_agree_on_random_bytes(rounds: int | None) -> None:
    budget = Budget("parsers", rounds)
    for rng in budget.rounds():
        for check, count in (
            (check_head, HEADS),
            (check_events, STREAMS),
            (check_scan_alone, WILD),
            (check_scan_cut_anywhere, CUT_SCANS),
        ):
            for _ in range(count):
                budget.inputs += check(rng, budget)


@pytest.mark.parametrize("rounds", FORMS)
def test_a_reply_is_the_same_from_the_thread_and_from_each_parser(rounds: int | None) -> None:
    transport = pytest.importorskip(
        "inferload.client.connection._transport", reason="the compiled reader was not built"
    )
    from fed_replies import Pushed, Threaded, play

    reader, budget = transport.Reader(MARKS), Budget("fed", rounds)
    for rng in budget.rounds():
        for case in (*REPLIES, *(one_of(rng, [random_case, chunks_case])(rng) for _ in range(RANDOM_REPLIES))):
            seed = rng.random()
            threaded, compiled, uncompiled = (
                play(fed, case, random.Random(seed))
                for fed in (Threaded(reader), Pushed(native, MARKS), Pushed(None, MARKS))
            )
            assert compiled == uncompiled, f"{budget}: {case}"
            assert threaded[:2] == compiled[:2], f"{budget}: {case}"
            budget.inputs += 1
    reader.close()


def chunks_case(rng: random.Random) -> ReplyCase:
    """Return a reply with few bytes beside its chunk framing."""
    chunks = b"".join(rng.choices(TOKENS, k=below(rng, 6)))
    if rng.random() < 0.7:
        chunks = chunked_body(rng, [b"x" * one_of(rng, [1, 3, 16, 200]) for _ in range(below(rng, 4))])
    return ReplyCase((CHUNKED_HEAD, *cut(rng, mutated(rng, chunks, below(rng, 4)))), "open")


# Each check returns its number of inputs: bytes with their split positions.
def variants(rng: random.Random, data: bytes) -> Iterator[bytes]:
    """Yield the bytes and mutations of them."""
    yield data
    for _ in range(VARIANTS - 1):
        yield mutated(rng, data, 1 + below(rng, 3))


def check_head(rng: random.Random, budget: Budget) -> int:
    """The framing by a head against `parse_head`."""
    original = head(rng, one_of(rng, [b"", b"Transfer-Encoding: chunked", b"Content-Length: 12"]))
    for data in variants(rng, original):
        check_one_head(data, budget)
    return VARIANTS


def check_one_head(data: bytes, budget: Budget) -> None:
    data = data.partition(b"\r\n\r\n")[0].removesuffix(b"\r\n") + b"\r\n\r\n"
    framing, length = framing_of(native.Reply(), data)
    if not framing:
        return
    try:
        parsed = parse_head(data)
    except Http1Error:
        return  # the turn ends as bad_http, whatever its framing
    assert parsed is not None, f"{budget}: {data!r}"
    expected = {1: Framing.CHUNKED, 2: Framing.LENGTH}[framing]
    known = min(parsed[0].length or 0, MOST_MEASURED)
    assert (parsed[0].framing, known) == (expected, length), f"{budget}: {data!r}"


def check_events(rng: random.Random, budget: Budget) -> int:
    """`scan` with fallback to Python against Python alone."""
    blocks, chunked, frames = sse(rng, event_data(rng)), rng.random() < 0.6, Frames(native.scan)
    for body in variants(rng, chunked_body(rng, blocks) if chunked else b"".join(blocks)):
        at = [below(rng, 5_000) for _ in range(one_of(rng, [0, 0, 3, 12]))]
        slice_ = 1 + below(rng, 8)
        quick, again, slow = (answered(body, at, chunked, slice_, scan) for scan in (frames, frames, None))
        assert quick == again == slow, f"{budget}: {(body, at, chunked, slice_)}"
    return VARIANTS


def check_scan_alone(rng: random.Random, budget: Budget) -> int:
    """`scan` with valid and invalid positions: events are within the data, or a ValueError."""
    chunked = rng.random() < 0.5
    blocks = sse(rng, event_data(rng))
    for data in variants(rng, chunked_body(rng, blocks) if chunked else b"".join(blocks)):
        scan_anywhere(rng, budget, data, chunked)
    return VARIANTS


def scan_anywhere(rng: random.Random, budget: Budget, data: bytes, chunked: bool) -> None:
    ends = array("q", [below(rng, len(data) + 5) - 2 for _ in range(below(rng, 5))])
    at_ns = array("q", range(len(ends) + (rng.random() < 0.05)))
    at, read = below(rng, len(data) + 3) - 1, below(rng, len(ends) + 3) - 1
    start = below(rng, len(data) + 1)
    before, after = data[start : start + one_of(rng, [0, 4, 60])], one_of(rng, [b"", b'"', data[-6:], b"\n"])
    try:
        frames = tuple(
            ((piece,) * (1 + below(rng, 4)), (after, after), True) for piece in (before, data[:5])[: below(rng, 3)]
        )
        most, first = one_of(rng, [-1, 0, 1, 1 << 30]), one_of(rng, [False, True])
        events, stop, _ = native.scan(data, ends, at_ns, at, read, chunked, frames, most, first)
    except ValueError:
        return
    assert at <= stop <= len(data), f"{budget}: {(data, ends, at, read, chunked, before, after)}"
    assert all(isinstance(each[0], bytes) for each in events)


def check_scan_cut_anywhere(rng: random.Random, budget: Budget) -> int:
    """`scan` finds the same events for any split into two reads; only timestamps may differ."""
    chunked = rng.random() < 0.5
    blocks = sse(rng, [content_event(rng, random_text(rng)) for _ in range(3)])
    inputs = 0
    for data in variants(rng, chunked_body(rng, blocks) if chunked else b"".join(blocks)):
        text = data.find(b"word")
        frames = () if text < 1 else (((data[max(0, text - 8) : text],), (data[text + 5 : text + 9] or b"x",), True),)
        results = [scanned(data, at, chunked, frames) for at in range(1, len(data))]
        assert all(each == results[0] for each in results), f"{budget}: {(data, chunked, frames)}"
        inputs += len(results)
    return inputs


def scanned(data: bytes, at: int, chunked: bool, frames: tuple[Any, ...]) -> tuple[list[bytes], int]:
    events, stop, _ = native.scan(
        data, array("q", [at, len(data)]), array("q", [1, 2]), 0, 0, chunked, frames, 1 << 30, False
    )
    return [each[0] for each in events], stop
