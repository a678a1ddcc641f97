"""Expected hits of turns whose tokens the server said: from hashes of the tokens themselves, whatever was planned."""

from collections.abc import Hashable, Sequence

from inferload.measure.block_hashes import HASHED_TOKENS
from inferload.workload.prefix_cache.sent import SentSums


class IdHits:
    """Takes turns in the order in which they were sent; `sums` are those since `begin`."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.sums = SentSums()
        self._known: set[tuple[Hashable, int]] = set()

    @property
    def even(self) -> bool:
        """Whether the server's blocks can be told from the hashed ones."""
        return self.block % HASHED_TOKENS == 0

    def begin(self) -> None:
        """Another run on the same cache."""
        self.sums = SentSums()

    def turn(self, apart: Hashable, hashes: Sequence[int] | None, input_tokens: int | None, told: int | None) -> None:
        """Book one turn. `apart`: what keeps its prompts from others'. `hashes`: of its prompt and its answer."""
        if hashes is None or input_tokens is None:
            self.sums.unknown += 1
            return
        shared = 0
        for one in hashes[: input_tokens // HASHED_TOKENS]:
            if (apart, one) not in self._known:
                break
            shared += HASHED_TOKENS
        self._known.update((apart, one) for one in hashes)
        self.sums.add(told, input_tokens, shared, shared, self.block)
