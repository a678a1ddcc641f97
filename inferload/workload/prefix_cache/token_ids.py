"""Expected hits of turns whose tokens the server said: from hashes of the tokens themselves, whatever was planned."""

from collections.abc import Hashable, Sequence
from itertools import takewhile

from inferload.measure.block_hashes import HASHED_TOKENS
from inferload.workload.prefix_cache.excess import Prompt
from inferload.workload.prefix_cache.expected import Span
from inferload.workload.prefix_cache.sent import SentSums


class IdHits:
    """Takes turns in the order in which they were sent; `sums` are those since `begin`."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.sums = SentSums()
        self._known: set[Span] = set()

    @property
    def even(self) -> bool:
        """Whether the server's blocks can be told from the hashed ones."""
        return self.block % HASHED_TOKENS == 0

    def begin(self) -> None:
        """Another run on the same cache."""
        self.sums = SentSums()

    def turn(
        self,
        apart: Hashable,
        hashes: Sequence[int] | None,
        input_tokens: int | None,
        told: int | None,
        *,
        sent_ns: int = 0,
        first_ns: int = 0,
    ) -> None:
        """Book one turn.

        `apart`: partition of its prompts. `hashes`: of its prompt and its answer. `told`: cached tokens by its answer.
        `first_ns`: of the first token, or of the end without one.
        """
        if hashes is None or input_tokens is None:
            self.sums.unknown += 1
            return
        row = [Span((apart, block_hash), HASHED_TOKENS) for block_hash in hashes]
        of_prompt = row[: input_tokens // HASHED_TOKENS]
        shared = HASHED_TOKENS * sum(1 for _ in takewhile(self._known.__contains__, of_prompt))
        self._known.update(row)
        self.sums.excess.settle(sent_ns)
        self.sums.add(Prompt(of_prompt, input_tokens, told, sent_ns, first_ns), shared, shared, self.block)
