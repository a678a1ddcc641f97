"""Expected hits from token ids, against a token-by-token search."""

import struct
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import block_hashes

from inferload.measure.block_hashes import HASHED_TOKENS
from inferload.workload.prefix_cache.expected import cached
from inferload.workload.prefix_cache.token_ids import IdHits

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(
    lambda few: [token for token in few for _ in range(11)]
)


@given(st.lists(st.tuples(st.sampled_from("ab"), tokens, tokens), max_size=8), st.sampled_from([16, 32, 48]))
def test_hits_equal_those_of_an_unlimited_cache(turns: list[tuple[str, list[int], list[int]]], block: int) -> None:
    hits, rows, expected = IdHits(block), [], 0
    for apart, prompt, answer in turns:
        shared = max((alike(prompt, row) for other, row in rows if other == apart), default=0)
        expected += cached(shared, len(prompt), block)
        row = prompt + answer[:-1]
        hits.turn(apart, block_hashes(row), len(prompt), None)
        rows.append((apart, row))
    assert hits.sums.hits.cached == hits.sums.at_most == expected
    assert hits.sums.hits.turns == len(turns)


@pytest.mark.parametrize(("sent_ns", "unexplained"), [(1, 0), (9, 32)])
def test_an_excess_is_explained_by_a_deficit_before_the_first_token(sent_ns: int, unexplained: int) -> None:
    hits = IdHits(16)
    hits.turn("a", [1, 2, 3], 49, 32, sent_ns=0, first_ns=9)
    hits.turn("a", [1, 2, 4], 49, 0, sent_ns=sent_ns, first_ns=20)
    assert hits.sums.excess.tokens == unexplained


def alike(first: list[int], second: list[int]) -> int:
    return next(
        (index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def test_a_turn_without_token_ids_is_counted_separately() -> None:
    hits = IdHits(16)
    hits.turn("a", None, 100, None)
    assert (hits.sums.unknown, hits.sums.hits.turns) == (1, 0)
    hits.begin()
    assert hits.sums.unknown == 0
    assert [IdHits(block).even for block in (16, 128, 24, 1)] == [True, True, False, False]


def test_hashes_do_not_change_between_processes() -> None:
    first = blake2b(struct.pack("<16i", *range(16)), digest_size=8).digest()
    second = blake2b(first + struct.pack("<16i", *range(16, 32)), digest_size=8).digest()
    assert HASHED_TOKENS == 16
    assert list(block_hashes(range(37))) == [*struct.unpack("<q", first), *struct.unpack("<q", second)]
