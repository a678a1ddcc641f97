"""Expected hits of turns with known token ids, from block hashes of the ids."""

from collections.abc import Hashable, Sequence

from inferload.measure.block_hashes import HASHED_TOKENS
from inferload.workload.prefix_cache.sent import SentSums


class IdHits:
    """Expected hits of turns, added in the order of sending. `sums`: since `begin`."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.sums = SentSums()
        self._known: set[tuple[Hashable, int]] = set()

    @property
    def even(self) -> bool:
        """Whether the server's blocks are multiples of the hashed blocks."""
        return self.block % HASHED_TOKENS == 0

    def begin(self) -> None:
        """Start another run on the same cache."""
        self.sums = SentSums()

    def turn(
        self, partition: Hashable, hashes: Sequence[int] | None, input_tokens: int | None, reported: int | None
    ) -> None:
        """Add one turn. `partition`: different ones share nothing. `hashes`: block hashes of prompt and answer."""
        if hashes is None or input_tokens is None:
            self.sums.unknown += 1
            return
        shared = 0
        for block_hash in hashes[: input_tokens // HASHED_TOKENS]:
            if (partition, block_hash) not in self._known:
                break
            shared += HASHED_TOKENS
        self._known.update((partition, block_hash) for block_hash in hashes)
        self.sums.add(reported, input_tokens, shared, shared, self.block)
