"""KV-cache blocks: reference counts, prefix cache by chained hashes, and eviction order. No I/O, no clock.

A freed block with a hash stays in the prefix cache until it is evicted (least recently freed first); a block without a hash
goes to the front of the free list. Usage counts referenced blocks only. Two blocks may hold the same tokens, since the last
block of a fully cached prompt is computed again: both stay cached, and look-ups return the older one.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


def chain_hashes(
    tokens: Sequence[Hashable], block_size: int, salt: Hashable = "", parent: int | None = None
) -> list[int]:
    """Hash each full block, chained to the block before it; the salt enters the first block only."""
    hashes = []
    chained = hash(("root", salt)) if parent is None else parent
    for start in range(0, len(tokens) - block_size + 1, block_size):
        chained = hash((chained, *tokens[start : start + block_size]))
        hashes.append(chained)
    return hashes


class BlockPool:
    """Fixed number of numbered blocks. `blocks` excludes vLLM's null block."""

    def __init__(self, blocks: int, caching: bool) -> None:
        self.size = blocks
        self.caching = caching
        self._queue = OrderedDict.fromkeys(range(blocks))  # unreferenced blocks in order of reuse
        self._references = [0] * blocks
        self._hashes: list[int | None] = [None] * blocks
        self._by_hash: dict[int, dict[int, None]] = {}  # blocks with the same tokens, in order of age

    @property
    def free(self) -> int:
        """Number of unreferenced blocks, including cached ones."""
        return len(self._queue)

    @property
    def usage(self) -> float:
        """Share of referenced blocks, 0 to 1."""
        return 1.0 - self.free / self.size

    def longest_prefix(self, hashes: Iterable[int]) -> list[int]:
        """Return the cached blocks of a prompt, up to the first miss."""
        cached: list[int] = []
        for value in hashes:
            if (holders := self._by_hash.get(value)) is None:
                break
            cached.append(next(iter(holders)))
        return cached

    def unreferenced(self, blocks: Iterable[int]) -> int:
        """Number of these blocks that are free; sharing them reduces the free blocks."""
        return sum(1 for block in blocks if self._references[block] == 0)

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to cached blocks."""
        for block in blocks:
            if self._references[block] == 0:
                del self._queue[block]
            self._references[block] += 1

    def allocate(self, count: int) -> list[int] | None:
        """Allocate free blocks and evict their content; none for a count below 1. Return None if there are too few."""
        references, hashes, by_hash = self._references, self._hashes, self._by_hash
        if count > len(self._queue):
            return None
        taken = [self._queue.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            references[block] = 1
            if (value := hashes[block]) is not None:
                hashes[block] = None
                del by_hash[value][block]
                if not by_hash[value]:
                    del by_hash[value]
        return taken

    def publish(self, blocks: Sequence[int], values: Sequence[int]) -> None:
        """Add full blocks to the prefix cache by their hashes."""
        if not self.caching:
            return
        for block, value in zip(blocks, values, strict=True):
            if self._hashes[block] is None:
                self._hashes[block] = value
                self._by_hash.setdefault(value, {})[block] = None

    def release(self, blocks: Sequence[int], published: int) -> None:
        """Release references, last block first, so that the start of a prompt is evicted last.

        The first `published` blocks may be shared; the others are reused first.
        """
        for block in blocks[published - 1 :: -1] if published else ():
            self._references[block] -= 1
            if not self._references[block]:
                self._queue[block] = None
        for block in blocks[published:]:
            self._queue[block] = None
            self._queue.move_to_end(block, last=False)

    def reset_cache(self) -> bool:
        """Clear the prefix cache. Return False and clear nothing while blocks are referenced."""
        if self.free != self.size:
            return False
        self._by_hash.clear()
        self._hashes = [None] * self.size
        return True
