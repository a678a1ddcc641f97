"""Sources of made-up words, whose token counts are exact wherever the run's vocabulary is."""

import math
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Any

from inferload.content.messages import SHARED, Piece
from inferload.scenario.schema.sources import PrefixRepetition, RandomLengths
from inferload.workload.sources.api import Given, GivenTurn


class Made:
    """Words by session and turn; nothing of them is ever read or measured."""

    digest: str | None = None
    draws = False

    def given(self, index: int, rng: Random) -> Given | None:
        """Nothing whole: the scenario says how many turns, and how long."""
        return None

    def text(self, key: str, tokens: int) -> Piece:
        """Words drawn by the key."""
        return Piece(key, tokens)

    def sample(self) -> Sequence[str]:
        """Nothing: the vocabulary knows what its words cost."""
        return ()

    def warnings(self) -> list[str]:
        """Nothing is left out."""
        return []

    def facts(self) -> dict[str, Any]:
        """Which kind it is; what its counts are worth stands under `prompt_tokens`."""
        return {"kind": "synthetic"}

    def in_words(self) -> list[str]:
        """Nothing more than the rest of the plan says."""
        return []


class Lengths(Made):
    """Single requests of random lengths, as the data set `random` of vLLM's benchmark draws them.

    Each length is uniform over the whole numbers from floor(mean (1 - ratio)) to ceil(mean (1 + ratio)).
    """

    draws = True

    def __init__(self, source: RandomLengths) -> None:
        self._source = source

    def given(self, index: int, rng: Random) -> Given | None:
        """One turn, behind the prefix that all have."""
        source = self._source
        prompt, output = (around(mean, source.range_ratio, rng) for mean in (source.input_tokens, source.output_tokens))
        prefix = (Piece(f"{SHARED}prefix", source.prefix_tokens),) if source.prefix_tokens else ()
        return Given((GivenTurn((*prefix, self.text(f"text/{index}/0", prompt)), output),))

    def facts(self) -> dict[str, Any]:
        """As the scenario says it."""
        return self._source.model_dump()

    def in_words(self) -> list[str]:
        """Where the lengths come from."""
        return ["single requests of random words and lengths, a new text each"]


def around(mean: int, ratio: float, rng: Random) -> int:
    """A whole number, uniform around the mean; at least 1. Takes one random number."""
    low, high = math.floor(mean * (1 - ratio)), math.ceil(mean * (1 + ratio))
    return max(1, low + int(rng.random() * (high - low + 1)))


class Prefixes(Made):
    """Single requests that begin with one of a few prefixes, each used once in every so many sessions."""

    def __init__(self, source: PrefixRepetition, seed: int) -> None:
        self._source = source
        self._seed = seed
        self._order = lru_cache(maxsize=4)(self._drawn)

    def given(self, index: int, rng: Random) -> Given | None:
        """One turn."""
        source = self._source
        round_number, place = divmod(index, source.prefixes)
        prefix = self._order(round_number)[place]
        shared = Piece(f"{SHARED}prefix/{prefix}", source.prefix_tokens)
        question = (shared, self.text(f"text/{index}/0", source.suffix_tokens))
        return Given((GivenTurn(question, source.output_tokens),))

    def _drawn(self, round_number: int) -> list[int]:
        order = list(range(self._source.prefixes))
        Random(f"{self._seed}/prefixes/{round_number}").shuffle(order)
        return order

    def facts(self) -> dict[str, Any]:
        """As the scenario says it."""
        return self._source.model_dump()

    def in_words(self) -> list[str]:
        """How the prefixes are shared out."""
        return [f"single requests, each behind one of {self._source.prefixes:,} prefixes, all used equally often"]
