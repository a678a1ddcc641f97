"""The same random replies, cut in the same way, to both readers: the same becomes of each turn and of its connection."""

from collections.abc import Iterator

import pytest
from fuzz_replies import Budget, ReplyCase, random_case
from reader_pairs import GOOD, PairClient, TurnOutcome, outcome
from test_native_fuzz import FORMS

from inferload.client.connection import reader_choice

CASES = 100  # of one round


@pytest.fixture
def clients() -> Iterator[tuple[PairClient, PairClient]]:
    if not reader_choice.built():
        pytest.skip("the compiled reader was not built")
    made = PairClient("native"), PairClient("python")
    yield made
    for client in made:
        client.close()


def both(clients: tuple[PairClient, PairClient], one: ReplyCase) -> tuple[TurnOutcome, TurnOutcome]:
    native, python = (outcome(client, one) for client in clients)
    return native, python


def test_a_good_reply_is_taken_and_its_connection_kept(clients: tuple[PairClient, PairClient]) -> None:
    native, python = both(clients, GOOD)
    assert native == python
    assert (native.failure, native.text, native.reused) == (None, "Grüße \u2028x", "Grüße \u2028x")


@pytest.mark.parametrize("from_end", range(10))
@pytest.mark.parametrize("surplus", [b"", b"T: x\r\n", b"0"])
def test_an_end_is_found_wherever_reads_are_cut(
    clients: tuple[PairClient, PairClient], from_end: int, surplus: bytes
) -> None:
    reply = GOOD.pieces[0]
    at = len(reply) - from_end
    pieces = tuple(piece for piece in (reply[:at], reply[at:] + surplus) if piece)
    native, python = both(clients, ReplyCase(pieces, "open"))
    assert native == python
    assert (native.failure, native.late) == (None, False)


@pytest.mark.parametrize("rounds", [pytest.param(3, id="short"), FORMS[1]])
def test_both_readers_make_the_same_of_random_replies(
    clients: tuple[PairClient, PairClient], rounds: int | None
) -> None:
    budget = Budget("replies", rounds)
    for rng in budget.rounds():
        for _ in range(CASES):
            one = random_case(rng)
            native, python = both(clients, one)
            assert native == python, f"{budget}: {one}"
            budget.inputs += 1
