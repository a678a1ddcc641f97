"""Expected hits of turns with known token ids, from block hashes of the ids."""

from collections.abc import Hashable, Sequence
from itertools import takewhile

from inferload.measure.block_hashes import HASHED_TOKENS
from inferload.workload.prefix_cache.excess import Prompt
from inferload.workload.prefix_cache.expected import Span
from inferload.workload.prefix_cache.sent import SentSums


class IdHits:
    """Expected hits of turns, added in the order of sending. `sums`: since `begin`."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.sums = SentSums()
        self._known: set[Span] = set()

    @property
    def even(self) -> bool:
        """True if the server's blocks are multiples of the hashed blocks."""
        return self.block % HASHED_TOKENS == 0

    @property
    def blocks(self) -> int:
        """Number of known blocks, by which memory grows."""
        return len(self._known)

    def begin(self) -> None:
        """Start another run on the same cache."""
        self.sums = SentSums()

    def turn(
        self,
        partition: Hashable,
        hashes: Sequence[int] | None,
        input_tokens: int | None,
        reported: int | None,
        *,
        sent_ns: int = 0,
        first_ns: int = 0,
    ) -> None:
        """Add one turn.

        `partition`: partition of its prompts. `hashes`: of its prompt and its answer. `reported`: cached tokens by its answer.
        `first_ns`: of the first token, or of the end without one.
        """
        if hashes is None or input_tokens is None:
            self.sums.unknown += 1
            return
        row = [Span((partition, block_hash), HASHED_TOKENS) for block_hash in hashes]
        of_prompt = row[: input_tokens // HASHED_TOKENS]
        shared = HASHED_TOKENS * sum(1 for _ in takewhile(self._known.__contains__, of_prompt))
        self._known.update(row)
        self.sums.excess.settle(sent_ns)
        self.sums.add(Prompt(of_prompt, input_tokens, reported, sent_ns, first_ns), shared, shared, self.block)
