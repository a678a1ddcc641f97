"""Random bytes for the compiled parsers and for their Python equivalents: equal results."""

import random
from array import array
from collections.abc import Iterator

import pytest
from fuzz_replies import (
    FORMS,
    TOKENS,
    Budget,
    below,
    chunked_body,
    content_event,
    cut,
    event_data,
    head,
    mutated,
    one_of,
    random_text,
    sse,
)
from native_parsers import answered, decoded

from inferload.client.connection.http1 import Framing, Http1Error, parse_head

native = pytest.importorskip("inferload.client.connection._native", reason="the compiled reader was not built")

VARIANTS = 8  # mutations of each input, which take less time than another input
WALKS, CUT_WALKS, HEADS, STREAMS, WILD, CUT_SCANS = 300, 40, 600, 10, 60, 10  # inputs per round


@pytest.mark.parametrize("rounds", FORMS)
def test_parsers_agree_on_random_bytes(rounds: int | None) -> None:
    budget = Budget("parsers", rounds)
    for rng in budget.rounds():
        for check, count in (
            (check_walk, WALKS),
            (check_walk_cut_anywhere, CUT_WALKS),
            (check_head, HEADS),
            (check_events, STREAMS),
            (check_scan_alone, WILD),
            (check_scan_cut_anywhere, CUT_SCANS),
        ):
            for _ in range(count):
                budget.inputs += check(rng, budget)


# Each check returns its number of inputs: bytes with their split positions.
def variants(rng: random.Random, data: bytes) -> Iterator[bytes]:
    """Yield the bytes and mutations of them."""
    yield data
    for _ in range(VARIANTS - 1):
        yield mutated(rng, data, 1 + below(rng, 3))


def random_chunks(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return b"".join(rng.choices(TOKENS, k=below(rng, 6)))
    return chunked_body(rng, [b"x" * one_of(rng, [1, 3, 16, 200]) for _ in range(below(rng, 4))])


def check_walk(rng: random.Random, budget: Budget) -> int:
    """`walk_chunks` against ChunkedDecoder."""
    for data in variants(rng, random_chunks(rng)):
        pieces = cut(rng, data)
        assert native.walk_chunks(pieces) == decoded(pieces), f"{budget}: {pieces}"
    return VARIANTS


def check_walk_cut_anywhere(rng: random.Random, budget: Budget) -> int:
    """`walk_chunks` gives the same result for any split into three parts."""
    inputs = 0
    for data in variants(rng, random_chunks(rng)):
        expected, size, length = decoded([data]), 1 + below(rng, 4), len(data)
        far = below(rng, length + 1)
        for at in range(length):
            pieces = [data[:at], data[at : at + size], data[at + size :]]
            assert native.walk_chunks(pieces) == expected, f"{budget}: {pieces}"
            pieces = [data[: min(at, far)], data[min(at, far) : max(at, far)], data[max(at, far) :]]
            assert native.walk_chunks(pieces) == expected, f"{budget}: {pieces}"
        inputs += 2 * length
    return inputs


def check_head(rng: random.Random, budget: Budget) -> int:
    """`framing_of` against `parse_head`."""
    original = head(rng, one_of(rng, [b"", b"Transfer-Encoding: chunked", b"Content-Length: 12"]))
    for data in variants(rng, original):
        check_one_head(data, budget)
    return VARIANTS


def check_one_head(data: bytes, budget: Budget) -> None:
    end = data.find(b"\r\n\r\n")
    data = data[: end + 4] if end >= 0 else data + b"\r\n\r\n"
    framing, length = native.framing_of(data)
    if not framing:
        return
    try:
        parsed = parse_head(data)
    except Http1Error:
        return  # the turn ends as bad_http, whatever its framing
    assert parsed is not None, f"{budget}: {data!r}"
    expected = {1: Framing.CHUNKED, 2: Framing.LENGTH}[framing]
    assert (parsed[0].framing, parsed[0].length or 0) == (expected, length), f"{budget}: {data!r}"


def check_events(rng: random.Random, budget: Budget) -> int:
    """`scan` with fallback to Python against Python alone."""
    blocks, chunked = sse(rng, event_data(rng)), rng.random() < 0.6
    for body in variants(rng, chunked_body(rng, blocks) if chunked else b"".join(blocks)):
        at = [below(rng, 5_000) for _ in range(one_of(rng, [0, 0, 3, 12]))]
        slice_ = 1 + below(rng, 8)
        quick, slow = (answered(body, at, chunked, slice_, scan) for scan in (native.scan, None))
        assert quick == slow, f"{budget}: {(body, at, chunked, slice_)}"
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
        events, stop, _ = native.scan(
            data, ends, at_ns, at, read, chunked, before, after, one_of(rng, [-1, 0, 1, 1 << 30])
        )
    except ValueError:
        return
    assert at <= stop <= len(data), f"{budget}: {(data, ends, at, read, chunked, before, after)}"
    assert all(isinstance(each, bytes) for each, _ in events)


def check_scan_cut_anywhere(rng: random.Random, budget: Budget) -> int:
    """`scan` finds the same events for any split into two reads; only timestamps may differ."""
    chunked = rng.random() < 0.5
    blocks = sse(rng, [content_event(rng, random_text(rng)) for _ in range(3)])
    inputs = 0
    for data in variants(rng, chunked_body(rng, blocks) if chunked else b"".join(blocks)):
        text = data.find(b"word")
        before, after = (b"", b"") if text < 0 else (data[max(0, text - 8) : text], data[text + 5 : text + 9])
        results = [scanned(data, at, chunked, before, after) for at in range(1, len(data))]
        assert all(each == results[0] for each in results), f"{budget}: {(data, chunked, before, after)}"
        inputs += len(results)
    return inputs


def scanned(data: bytes, at: int, chunked: bool, before: bytes, after: bytes) -> tuple[list[bytes], int]:
    events, stop, _ = native.scan(
        data, array("q", [at, len(data)]), array("q", [1, 2]), 0, 0, chunked, before, after, 1 << 30
    )
    return [each for each, _ in events], stop
