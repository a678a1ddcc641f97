"""Random words of known token costs, drawn fast and identically on any machine."""

import math
import struct
from collections.abc import Sequence
from functools import cached_property
from random import Random

import numpy as np

MAX_COST = 16  # tokens; more expensive words are left out
TAIL = 256  # tokens at the end of a text that are chosen word by word: more than any gap of costs up to MAX_COST
PASSAGE = 64  # words of a prebuilt passage
_TABLE = 1 << 16  # one 16-bit random number selects one word
_PASSAGES = _TABLE // PASSAGE
_LONG = 1024  # from so many words on passages are used: single words for half a megabyte would delay all streams
_LOOKED_UP = 64  # from so many words on an array lookup is faster than single lookups
_STRIDE = 40_503  # odd, so that its multiples visit every index of a table whose size is a power of two


class WordTable:
    """Words that follow a blank, with their costs in tokens. `costs` None: unknown, drawn words count as 0 tokens."""

    def __init__(self, words: Sequence[str], costs: Sequence[int] | None) -> None:
        costs = costs or ()
        self.step = math.gcd(*costs)  # every sum of costs is a multiple of it
        self.max_cost = max(costs, default=0)
        self._each = 0 if not costs else 1 if set(costs) == {1} else None  # cost of each word; None: they differ
        self.single_token = self._each == 1
        self._reachable = _sums_of(set(costs), TAIL + MAX_COST)
        self._by_cost: dict[int, list[str]] = {}
        for word, cost in zip(words, costs, strict=False):
            self._by_cost.setdefault(cost, []).append(word)
        self._texts, self._size = tuple(words), len(words)
        self._words = np.array(words, dtype=object)
        self._costs = np.array(costs, dtype=np.int64)

    def reachable(self, tokens: int) -> bool:
        """Return whether some words cost so many tokens together."""
        if tokens < len(self._reachable):
            return tokens >= 0 and self._reachable[tokens]
        return tokens % self.step == 0

    def draw(self, count: int, rng: Random) -> tuple[list[str], int]:
        """Draw words; return their texts, of which some are passages of several words, and their cost in tokens."""
        if count >= _LONG:
            words, cost = self.draw(PASSAGE + count % PASSAGE, rng)  # single words first: no two texts begin alike
            numbers = (np.frombuffer(rng.randbytes(2 * (count // PASSAGE - 1)), "<u2") % _PASSAGES).tolist()
            texts, costs = self._passages
            words += map(texts.__getitem__, numbers)
            return words, cost + sum(map(costs.__getitem__, numbers))
        drawn = rng.randbytes(2 * count)  # little-endian: the same words on any machine
        if count < _LOOKED_UP and self._each is not None:
            each, size = self._texts, self._size
            return [each[pick % size] for pick in struct.unpack(f"<{count}H", drawn)], count * self._each
        picks = np.frombuffer(drawn, "<u2") % self._size
        cost = int(self._costs[picks].sum()) if self._each is None else count * self._each
        return self._words[picks].tolist(), cost

    def fill(self, tokens: int, rng: Random) -> list[str]:
        """Draw words one by one that cost exactly `tokens` together, which must be reachable."""
        words = []
        while tokens > 0:
            fitting = [cost for cost in self._by_cost if self.reachable(tokens - cost)]
            cost = rng.choices(fitting, [len(self._by_cost[cost]) for cost in fitting])[0]
            words.append(rng.choice(self._by_cost[cost]))
            tokens -= cost
        return words

    @cached_property
    def _passages(self) -> tuple[list[str], list[int]]:
        """Passages and their costs."""
        picks = (np.arange(_TABLE) * _STRIDE % _TABLE % self._size).reshape(_PASSAGES, PASSAGE)  # the words of each
        costs = self._costs[picks].sum(axis=1) if len(self._costs) else np.zeros(_PASSAGES, int)
        return [" ".join(line) for line in self._words[picks].tolist()], costs.tolist()


def _sums_of(costs: set[int], up_to: int) -> tuple[bool, ...]:
    """For 0 .. up_to: whether it is a sum of the costs, each taken any number of times."""
    reachable = [True]
    for total in range(1, up_to + 1):
        reachable.append(any(cost <= total and reachable[total - cost] for cost in costs))
    return tuple(reachable)
