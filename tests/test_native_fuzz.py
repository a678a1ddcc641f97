"""Random bytes for the compiled parsers and for what they are written after in Python: both give the same."""

import random
from array import array

import pytest
from fuzz_budget import Budget
from fuzz_replies import TOKENS, chunked_body, cut, event_data, head, mutated, sse
from test_native_scan import answered, decoded

from inferload.wire.http1 import Framing, Http1Error, parse_head

native = pytest.importorskip("inferload.wire._native", reason="the compiled reader was not built")

FORMS = [
    pytest.param(2, id="short"),
    pytest.param(None, id="long", marks=[pytest.mark.soak, pytest.mark.fuzz, pytest.mark.timeout(1800)]),
]
WALKS, HEADS, STREAMS, WILD = 1500, 500, 60, 60  # inputs of one round


@pytest.mark.parametrize("rounds", FORMS)
def test_parsers_agree_on_random_bytes(rounds: int | None) -> None:
    budget = Budget("parsers", rounds)
    for rng in budget.rounds():
        for check, count in (
            (check_walk, WALKS),
            (check_head, HEADS),
            (check_events, STREAMS),
            (check_scan_alone, WILD),
        ):
            for _ in range(count):
                check(rng, budget)
            budget.inputs += count


def check_walk(rng: random.Random, budget: Budget) -> None:
    """`walk_chunks` against ChunkedDecoder."""
    blocks = [b"x" * rng.choice([1, 3, 16, 200]) for _ in range(rng.randrange(4))]
    data = chunked_body(rng, blocks) if rng.random() < 0.7 else b"".join(rng.choices(TOKENS, k=rng.randrange(6)))
    pieces = cut(rng, mutated(rng, data, rng.randrange(3)))
    assert native.walk_chunks(pieces) == decoded(pieces), f"{budget}: {pieces}"


def check_head(rng: random.Random, budget: Budget) -> None:
    """`framing_of` against `parse_head`."""
    data = head(rng, rng.choice([b"", b"Transfer-Encoding: chunked", b"Content-Length: 12"]))
    data = mutated(rng, data, rng.randrange(3))
    end = data.find(b"\r\n\r\n")
    data = data[: end + 4] if end >= 0 else data + b"\r\n\r\n"
    framing, length = native.framing_of(data)
    if not framing:
        return
    try:
        found = parse_head(data)
    except Http1Error:
        return  # the turn ends as bad_http, whatever its framing
    assert found is not None, f"{budget}: {data!r}"
    wanted = {1: Framing.CHUNKED, 2: Framing.LENGTH}[framing]
    assert (found[0].framing, found[0].length or 0) == (wanted, length), f"{budget}: {data!r}"


def check_events(rng: random.Random, budget: Budget) -> None:
    """`scan` with the Python code behind it against the Python code alone."""
    blocks, chunked = sse(rng, event_data(rng)), rng.random() < 0.6
    body = chunked_body(rng, blocks) if chunked else b"".join(blocks)
    body = mutated(rng, body, rng.choice([0, 0, 1, 3]))
    at = [rng.randrange(5_000) for _ in range(rng.choice([0, 0, 3, 12]))]
    slice_ = rng.randrange(1, 9)
    quick, slow = (answered(body, at, chunked, slice_, quick=quick) for quick in (True, False))
    assert quick == slow, f"{budget}: {(body, at, chunked, slice_)}"


def check_scan_alone(rng: random.Random, budget: Budget) -> None:
    """`scan` with positions that fit the data and others: found events lie in the data, or it refuses."""
    chunked = rng.random() < 0.5
    blocks = sse(rng, event_data(rng))
    data = mutated(rng, chunked_body(rng, blocks) if chunked else b"".join(blocks), rng.randrange(4))
    ends = array("q", [rng.randrange(-2, len(data) + 3) for _ in range(rng.randrange(5))])
    at_ns = array("q", range(len(ends) + (rng.random() < 0.05)))
    at, read = rng.randrange(-1, len(data) + 2), rng.randrange(-1, len(ends) + 2)
    place = rng.randrange(len(data) + 1)
    before, after = data[place : place + rng.choice([0, 4, 60])], rng.choice([b"", b'"', data[-6:], b"\n"])
    try:
        found, stop, _ = native.scan(
            data, ends, at_ns, at, read, chunked, before, after, rng.choice([-1, 0, 1, 1 << 30])
        )
    except ValueError:
        return
    assert at <= stop <= len(data), f"{budget}: {(data, ends, at, read, chunked, before, after)}"
    assert all(isinstance(each, bytes) for each, _ in found)
