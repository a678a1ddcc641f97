"""Prompts of an exact number of tokens, for different kinds of tokenizers."""

import hashlib
import json
import re
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from inferload.base.errors import UsageError
from inferload.client.requests.bodies import Texts
from inferload.scenario.schema.agent import Prefix
from inferload.workload.agent import stamped
from inferload.workload.content.messages import Piece
from inferload.workload.content.prompts import KeyedRandom, Vocabulary, approximate, calibrate
from inferload.workload.content.words import WORDS
from inferload.workload.sources.recorded import local_tokenizer

Tokenize = Callable[[str], list[int]]


def word_id(text: str) -> int:
    return int.from_bytes(text.encode()[:24], "big")


def one_token_a_word(text: str) -> list[int]:
    return [word_id(word) for word in text.split()]


def with_begin_and_end(text: str) -> list[int]:
    return [1, *one_token_a_word(text), 2]


def one_token_a_letter(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def pieces(text: str) -> list[int]:
    """Like byte-pair encoding: a space belongs to the next word, long words have several tokens."""
    words = re.findall(r" ?\S+", text)
    return [word_id(word[at : at + 4]) for word in words for at in range(0, len(word), 4)]


def rare_single(text: str) -> list[int]:
    """Words of several tokens, so word costs differ."""
    words = re.findall(r" ?\S+", text)
    return [word_id(word[at : at + 3]) for word in words for at in range(0, len(word), 3)]


def counts_only(text: str) -> list[int]:
    return list(range(len(text.split())))


def third_of_the_letters(text: str) -> list[int]:
    """Not additive: words have no fixed cost."""
    return list(range(len(text) // 3))


EXACT = [one_token_a_word, with_begin_and_end, one_token_a_letter, pieces, rare_single, counts_only]


def calibrated(tokenize: Tokenize) -> tuple[Vocabulary, int]:
    calls = 0

    def counted(text: str) -> list[int]:
        nonlocal calls
        calls += 1
        return tokenize(text)

    return calibrate(counted), calls


VOCABULARIES = {tokenize.__name__: calibrated(tokenize) for tokenize in [*EXACT, third_of_the_letters]}
SPECIALS = {"with_begin_and_end": 2}


@pytest.mark.parametrize("tokenize", EXACT, ids=lambda tokenize: tokenize.__name__)
@given(n=st.integers(1, 3000), seed=st.integers(0, 10**6))
def test_a_text_has_the_requested_number_of_tokens(tokenize: Tokenize, n: int, seed: int) -> None:
    vocabulary, _ = VOCABULARIES[tokenize.__name__]
    assert vocabulary.exactness == "exact"
    assert vocabulary.exact_from is not None
    assert vocabulary.exact_from <= 3
    tokens = len(tokenize(vocabulary.text(n, Random(seed)))) - SPECIALS.get(tokenize.__name__, 0)
    assert tokens == n if n >= vocabulary.exact_from else n <= tokens <= vocabulary.exact_from


@pytest.mark.parametrize("name", sorted(VOCABULARIES))
def test_calibration_takes_fewer_than_60_calls(name: str) -> None:
    assert VOCABULARIES[name][1] < 60


@pytest.mark.parametrize("n", [1024, 1100, 5000, 40_000])
@pytest.mark.parametrize("tokenize", EXACT, ids=lambda tokenize: tokenize.__name__)
def test_long_texts_are_exact_and_distinct(tokenize: Tokenize, n: int) -> None:
    vocabulary, _ = VOCABULARIES[tokenize.__name__]
    texts = [vocabulary.text(n, Random(seed)) for seed in range(4)]
    extra = SPECIALS.get(tokenize.__name__, 0)
    assert [len(tokenize(text)) - extra for text in texts] == [n] * 4
    assert len({text[:200] for text in texts}) == 4


def test_a_tokenizer_without_word_costs_is_approximate_with_an_error() -> None:
    vocabulary, _ = VOCABULARIES["third_of_the_letters"]
    assert vocabulary.exactness == "approximate"
    assert vocabulary.error is not None
    assert 0 < vocabulary.error < 0.3
    assert vocabulary.exact_from is None
    tokens = len(third_of_the_letters(vocabulary.text(1000, Random(1))))
    assert tokens == pytest.approx(1000, rel=vocabulary.error)


def test_a_tokenizer_that_merges_words_is_approximate() -> None:
    def merging(text: str) -> list[int]:
        """A word that begins with the last letter of the word before costs nothing."""
        words = text.split()
        return [word_id(word) for before, word in zip(["", *words], words, strict=False) if word[0] != before[-1:]]

    assert calibrate(merging).exactness == "approximate"


def test_texts_are_exact_after_a_line_end() -> None:
    def glued(text: str) -> list[int]:
        """A line end before a or b is part of that token, otherwise a token."""
        return [word_id(piece) for piece in re.findall(r"\n[ab]\S*|\n| ?\S+", text)]

    vocabulary = calibrate(glued)
    assert vocabulary.exactness == "exact"
    for size in range(1, 40):
        text = vocabulary.text(size, Random(size))
        assert len(glued(text)) == size
        assert len(glued("user\n" + text)) == 2 + size


@settings(max_examples=30)
@given(st.integers(1, 5000), st.integers(0, 1000))
def test_without_a_tokenizer_words_have_the_assumed_size(n: int, seed: int) -> None:
    vocabulary = approximate()
    assert (vocabulary.exactness, vocabulary.error, vocabulary.tokens_per_word) == ("approximate", None, 1.3)
    assert len(vocabulary.text(n, Random(seed)).split()) == max(1, round(n / 1.3))


@given(st.integers(1, 1023), st.integers(0, 1000))
def test_each_word_is_drawn_by_one_random_number(n: int, seed: int) -> None:
    drawn = struct.unpack(f"<{n}H", Random(seed).randbytes(2 * n))
    text = approximate(tokens_per_word=1.0).text(n, Random(seed))
    assert text.split(" ") == [WORDS[number % len(WORDS)] for number in drawn]


def test_texts_of_a_seed_do_not_change(golden: Callable[[str, str], None]) -> None:
    """Texts of a seed must not change between versions, machines and Pythons; the golden file has short ones in full."""
    lines = []
    for name, (vocabulary, _) in VOCABULARIES.items():
        for n in (1, 2, 7, 20, 63, 64, 65, 100, 300, 1023, 1024, 1025, 1400, 5000, 70_000):
            rng = Random(f"{name}/{n}")
            text = vocabulary.text(n, rng)
            shown = text if n < 20 else hashlib.sha256(text.encode()).hexdigest()[:16]
            lines.append(f"{name} {n}: {shown}; then {rng.random():.6f}\n")
        begins = vocabulary.beginning(vocabulary.text(700, Random(name)), 333)
        lines.append(f"{name} 333 of 700: {hashlib.sha256(begins.encode()).hexdigest()[:16]}\n")
    golden("texts.txt", "".join(lines))


@pytest.mark.parametrize("tokenize", EXACT, ids=lambda tokenize: tokenize.__name__)
def test_a_beginning_of_any_length_can_be_made(tokenize: Tokenize) -> None:
    vocabulary = VOCABULARIES[tokenize.__name__][0]
    text = vocabulary.text(300, Random(1))
    for size in range(1, 60):
        begins = vocabulary.beginning(text, size)
        assert begins.split()[0] == text.split()[0]
        tokens = len(tokenize(begins)) - len(tokenize(""))
        assert tokens >= size
        if size > vocabulary.first_costs[vocabulary.firsts.index(begins.split()[0])] + (vocabulary.exact_from or 0):
            assert tokens == size


@pytest.mark.parametrize("name", sorted(VOCABULARIES))
def test_a_vocabulary_is_equal_after_transfer(name: str) -> None:
    vocabulary = VOCABULARIES[name][0]
    received = Vocabulary.from_wire(json.loads(json.dumps(vocabulary.to_wire())))
    assert received == vocabulary
    assert received.text(300, Random(7)) == vocabulary.text(300, Random(7))
    assert len(json.dumps(vocabulary.to_wire())) < 20_000


@pytest.mark.parametrize("name", sorted(VOCABULARIES))
def test_texts_share_at_most_four_first_words(name: str) -> None:
    vocabulary = VOCABULARIES[name][0]
    texts = sorted(vocabulary.text(200, Random(f"text {number}")).split() for number in range(500))
    for first, second in pairwise(texts):
        shared = next(index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
        assert shared <= 4


def test_the_word_list_has_unique_plain_words() -> None:
    assert len(set(WORDS)) == len(WORDS) > 1000
    assert all(re.fullmatch("[a-z]{2,9}", word) for word in WORDS)


def test_a_missing_tokenizer_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no tokenizer\.json found"):
        local_tokenizer(tmp_path)


def test_a_missing_tokenizers_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(UsageError, match="pip install tokenizers"):
        local_tokenizer(tmp_path)


def trained(*lines: str) -> Tokenize:
    """A byte-pair encoder trained on `lines`."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=2500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    return lambda text: list(tokenizer.encode(text).ids)


HALF = len(WORDS) // 2
JOINED: dict[str, Tokenize] = {
    **{tokenize.__name__: tokenize for tokenize in EXACT},
    "after a space only": trained(*(f" {word}" * 9 for word in WORDS[:HALF])),
    "some dates in fewer tokens": trained(
        *(f" {word}" * 9 for word in WORDS[:HALF]), *(Prefix().text(day) for day in range(90))
    ),
    "after a space or not": trained(*(f" {word}" * 9 + "\n" + word for word in WORDS[:HALF]), *WORDS[HALF:]),
}


@pytest.mark.parametrize("name", sorted(JOINED))
def test_the_tokens_of_joined_texts_add_up(name: str) -> None:
    tokenize = JOINED[name]
    texts = Texts(calibrate(tokenize), seed=7)
    assert texts.vocabulary.exactness == "exact"
    for count in (1, 2, 3, 17):
        pieces = tuple(Piece(f"trace/{number}", 20 + number % 3) for number in range(count))
        text = json.loads(texts.encoded(pieces))
        assert len(tokenize(text)) - SPECIALS.get(name, 0) == sum(piece.tokens or 0 for piece in pieces)
        assert text.startswith(texts.of(pieces[0]))
        assert text.endswith(texts.of(pieces[-1]))


@pytest.mark.parametrize("name", sorted(JOINED))
@pytest.mark.parametrize("where", ["start", "end"])
def test_a_message_with_a_timestamp_is_as_long_as_one_without(name: str, where: Literal["start", "end"]) -> None:
    tokenize = JOINED[name]
    prefix = Prefix(timestamp="dynamic", where=where, variants=150)
    texts = Texts(Vocabulary.from_wire(calibrate(tokenize, prefix.texts(1000)).to_wire()), seed=7)
    for index in range(150):
        tokens = 53 + index % 3
        message = stamped(Piece("key", tokens), prefix, index)
        assert sum(piece.tokens or 0 for piece in message) == tokens
        assert len(tokenize(json.loads(texts.encoded(message)))) - SPECIALS.get(name, 0) == tokens


@given(st.text(max_size=20), st.lists(st.integers(0, 400), max_size=8))
def test_keyed_bytes_do_not_depend_on_the_sizes_of_the_draws(key: str, sizes: list[int]) -> None:
    rng, expected = KeyedRandom(key), hashlib.shake_128(key.encode()).digest(sum(sizes))
    assert b"".join(rng.randbytes(size) for size in sizes) == expected


@given(st.text(max_size=20), st.integers(1, 200))
def test_keyed_numbers_are_within_their_bounds(key: str, bits: int) -> None:
    rng = KeyedRandom(key)
    assert 0 <= rng.getrandbits(bits) < 1 << bits
    assert 0 <= rng.random() < 1
    assert rng.choice(range(bits)) in range(bits)
    assert KeyedRandom(key).random() == KeyedRandom(key).random()


def test_keyed_numbers_are_uniform() -> None:
    values = sorted(KeyedRandom(f"{n}").random() for n in range(5_000))
    distance = max(abs(value - (n + 0.5) / len(values)) for n, value in enumerate(values))
    assert (
        distance < 1.63 / len(values) ** 0.5
    )  # exceeded by 1 % of such samples (Kolmogorov-Smirnov); these are always the same
