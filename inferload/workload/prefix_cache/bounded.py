"""Hits of a prefix cache of limited size, as a part of those of an unlimited one: an estimate.

Prompts are replayed in the order of sending. Whole spans are kept and evicted, the least recently used first and the end of a
prompt before its beginning. What running requests hold, and the time that a prompt takes, are left out.
"""

from array import array
from collections.abc import Sequence

from inferload.workload.prefix_cache.expected import Span

MOST_SPANS = 2_000_000  # of all prompts, 12 bytes each


class SentPrompts:
    """Prompts with their answers, as sequences of spans. A span with other spans before it is another one."""

    def __init__(self) -> None:
        self._prompts: list[tuple[int, array[int], array[int]]] = []
        self._spans = 0

    def add(self, place: int, row: Sequence[Span], answer: Span) -> None:
        """Add a prompt. `place`: in the order of sending."""
        self._spans += len(row) + 1
        if self._spans > MOST_SPANS:
            self._prompts.clear()
            return
        before, keys, tokens = 0, array("q"), array("i")
        for span in (*row, answer):
            before = hash((before, span.identity))
            keys.append(before)
            tokens.append(span.tokens)
        self._prompts.append((place, keys, tokens))

    def kept_share(self, capacity: int) -> float | None:
        """Return the hits of a cache of so many tokens over those of an unlimited one; None without any, or too many prompts."""
        prompts = sorted(self._prompts, key=lambda prompt: prompt[0])
        unlimited = _hits(prompts, sum(sum(tokens) for _, _, tokens in prompts))
        return _hits(prompts, capacity) / unlimited if unlimited else None


def _hits(prompts: Sequence[tuple[int, Sequence[int], Sequence[int]]], capacity: int) -> int:
    held: dict[int, int] = {}  # tokens by span, the least recently used first
    hits = total = 0
    for _, keys, tokens in prompts:
        for key, length in zip(keys[:-1], tokens[:-1], strict=True):
            hits += min(length, held.get(key, 0))
            if held.get(key, -1) < length:
                break
        for key, length in zip(reversed(keys), reversed(tokens), strict=True):
            before = held.pop(key, 0)
            held[key] = max(length, before)
            total += held[key] - before
        while total > capacity:
            total -= held.pop(next(iter(held)))
    return hits
