"""KV-cache blocks: reference counts, prefix cache by chained hashes, and eviction order. No I/O, no clock.

A freed block with a hash stays in the prefix cache until it is evicted (least recently freed first); a block without a hash
goes to the front of the free list. Usage counts referenced blocks only. Two blocks may hold the same tokens, since the last
block of a fully cached prompt is computed again: both stay cached, and look-ups return the older one.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Sequence

_Holders = int | dict[int, None]  # blocks with the same tokens; a dict in order of age if there are several


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
        self.free = blocks  # unreferenced blocks, including cached ones
        # Free blocks in order of reuse. A cached block that is shared again leaves a stale entry behind.
        self._queue = deque(range(blocks))
        self._stale: dict[int, int] = {}  # stale entries per block; they precede its valid entry
        self._references = [0] * blocks
        self._hashes: list[int | None] = [None] * blocks
        self._by_hash: dict[int, _Holders] = {}

    @property
    def usage(self) -> float:
        """Share of referenced blocks, 0 to 1."""
        return 1.0 - self.free / self.size

    def longest_prefix(self, hashes: Iterable[int]) -> list[int]:
        """Return the cached blocks of a prompt, up to the first miss."""
        cached: list[int] = []
        for value in hashes:
            block = self._by_hash.get(value)
            if block is None:
                break
            cached.append(block if isinstance(block, int) else next(iter(block)))
        return cached

    def unreferenced(self, blocks: Iterable[int]) -> int:
        """Number of these blocks that are free; sharing them reduces the free blocks."""
        return sum(1 for block in blocks if self._references[block] == 0)

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to cached blocks."""
        for block in blocks:
            if self._references[block] == 0:
                self.free -= 1
                self._stale[block] = self._stale.get(block, 0) + 1
            self._references[block] += 1

    def allocate(self, count: int) -> list[int] | None:
        """Allocate free blocks and evict their content. Return None and allocate nothing if there are too few."""
        references, hashes, by_hash = self._references, self._hashes, self._by_hash
        if count > self.free:
            return None
        self.free -= count
        take = self._next if self._stale else self._queue.popleft
        taken = [take() for _ in range(count)]
        for block in taken:
            references[block] = 1
            if (value := hashes[block]) is not None:
                hashes[block] = None
                if (holders := by_hash.pop(value)) != block:
                    by_hash[value] = _without(holders, block)
        return taken

    def publish(self, blocks: Sequence[int], values: Sequence[int]) -> None:
        """Add full blocks to the prefix cache by their hashes."""
        if not self.caching:
            return
        hashes, by_hash = self._hashes, self._by_hash
        for block, value in zip(blocks, values, strict=True):
            if hashes[block] is not None:
                continue
            hashes[block] = value
            if (holders := by_hash.setdefault(value, block)) != block:
                by_hash[value] = _with(holders, block)

    def _next(self) -> int:
        """Next free block, skipping stale entries of the queue."""
        stale = self._stale
        while (count := stale.get(block := self._queue.popleft(), 0)) > 0:
            if count > 1:
                stale[block] = count - 1
            else:
                del stale[block]
        return block

    def release(self, blocks: Sequence[int], published: int) -> None:
        """Release references, last block first, so that the start of a prompt is evicted last.

        The first `published` blocks may be shared; the others are reused first.
        """
        references, queue = self._references, self._queue
        freed: list[int] = []
        for block in blocks[published - 1 :: -1] if published else ():
            remaining = references[block] = references[block] - 1
            if not remaining:
                freed.append(block)
        queue.extend(freed)
        queue.extendleft(blocks[published:])
        self.free += len(freed) + len(blocks) - published
        if len(queue) > 2 * self.size:
            self._queue = deque([self._next() for _ in range(self.free)])
            self._stale.clear()

    def reset_cache(self) -> bool:
        """Clear the prefix cache. Return False and clear nothing while blocks are referenced."""
        if self.free != self.size:
            return False
        self._by_hash.clear()
        self._hashes = [None] * self.size
        return True


def _with(holders: _Holders, block: int) -> _Holders:
    """Add a block to the holders of the same tokens."""
    if not isinstance(holders, dict):
        return {holders: None, block: None}
    holders[block] = None
    return holders


def _without(holders: _Holders, block: int) -> _Holders:
    """Remove a block from the holders of the same tokens."""
    assert isinstance(holders, dict)
    del holders[block]
    return holders if len(holders) > 1 else next(iter(holders))
