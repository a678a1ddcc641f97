"""Random replies with equal splits to both readers: equal turns and equal connection states."""

from collections.abc import Iterator

import pytest
from fuzz_replies import FORMS, Budget, ReplyCase, random_case
from reader_pairs import GOOD, PairClient, TurnOutcome, outcome

from inferload.client import turn
from inferload.client.connection import reader_choice

CASES = 100  # per round


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PairClient, PairClient]]:
    if not reader_choice.built():
        pytest.skip("the compiled reader was not built")
    monkeypatch.setattr(turn, "_BODY_END_NS", 1 << 60)  # else a busy machine ends turns between two pieces
    both_readers = PairClient("native"), PairClient("python")
    yield both_readers
    for client in both_readers:
        client.close()


def both(clients: tuple[PairClient, PairClient], case: ReplyCase) -> tuple[TurnOutcome, TurnOutcome]:
    native, python = (outcome(client, case) for client in clients)
    return native, python


def test_a_good_reply_keeps_its_connection(clients: tuple[PairClient, PairClient]) -> None:
    native, python = both(clients, GOOD)
    assert native == python
    assert (native.failure, native.text, native.reused) == (None, "Grüße \u2028x", "Grüße \u2028x")


@pytest.mark.parametrize("from_end", range(10))
@pytest.mark.parametrize("surplus", [b"", b"T: x\r\n", b"0"])
def test_the_end_is_found_at_any_split_of_reads(
    clients: tuple[PairClient, PairClient], from_end: int, surplus: bytes
) -> None:
    reply = GOOD.pieces[0]
    at = len(reply) - from_end
    pieces = tuple(piece for piece in (reply[:at], reply[at:] + surplus) if piece)
    native, python = both(clients, ReplyCase(pieces, "open"))
    assert native == python
    assert (native.failure, native.late) == (None, False)


@pytest.mark.parametrize("rounds", [pytest.param(3, id="short"), FORMS[1]])
def test_both_readers_give_equal_results_for_random_replies(
    clients: tuple[PairClient, PairClient], rounds: int | None
) -> None:
    budget = Budget("replies", rounds)
    for rng in budget.rounds():
        for _ in range(CASES):
            case = random_case(rng)
            native, python = both(clients, case)
            assert native == python, f"{budget}: {case}"
            budget.inputs += 1
