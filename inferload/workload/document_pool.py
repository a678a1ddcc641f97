"""Documents shared by sessions, drawn by Zipf's law."""

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from random import Random

from inferload.base.numbers import percent
from inferload.scenario.schema.chat import Documents
from inferload.scenario.schema.distributions import draw_count
from inferload.workload.content.messages import SHARED, Piece

_TRIES = 64
_CACHED = 4096  # documents


class DocumentPool:
    """All documents of a class; document 0 is drawn most often."""

    def __init__(self, documents: Documents, text: Callable[[str, int], Piece], seed: int) -> None:
        self._documents = documents
        self._text = text
        self._seed = seed
        self._sums = [*accumulate(1 / (rank + 1) ** documents.zipf for rank in range(documents.count))]
        self._document = lru_cache(maxsize=_CACHED)(self._drawn)

    def beside(self, question: tuple[Piece, ...], rng: Random) -> tuple[Piece, ...]:
        """Return a question with the drawn documents of its turn."""
        documents = tuple(self._document(number) for number in self.draw(rng))
        return (*documents, *question) if self._documents.position == "before" else (*question, *documents)

    def draw(self, rng: Random) -> list[int]:
        """Draw the numbers of different documents for one turn."""
        numbers: list[int] = []
        for _ in range(_TRIES * self._documents.per_turn):
            number = min(bisect_right(self._sums, rng.random() * self._sums[-1]), self._documents.count - 1)
            if number not in numbers:
                numbers.append(number)
            if len(numbers) == self._documents.per_turn:
                return numbers
        others = (number for number in range(self._documents.count) if number not in numbers)
        return [*numbers, *(next(others) for _ in range(self._documents.per_turn - len(numbers)))]

    def _drawn(self, number: int) -> Piece:
        tokens = draw_count(self._documents.tokens, Random(f"{self._seed}/document/{number}"))
        return self._text(f"{SHARED}document/{number}", tokens)

    def in_words(self) -> str:
        """Return the line of the plan."""
        documents = self._documents
        share = 1 / self._sums[-1]
        return (
            f"{documents.per_turn} of {documents.count:,} documents {documents.position} each question; "
            f"the most frequent one is {percent(share)} of all draws"
        )
