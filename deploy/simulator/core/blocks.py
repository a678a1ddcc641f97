"""KV-cache blocks: reference counts, a prefix cache by chained hashes, and the order of eviction. No I/O, no clock.

A freed block that has a hash stays findable until its turn to be evicted comes (least recently freed first); one without
goes to the front of the free list. Usage counts referenced blocks only. Two blocks may hold the same tokens (the last
block of a prompt that is cached in full is computed again): both are kept, the older is found first.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Sequence

_Holders = int | dict[int, None]  # blocks with the same tokens; a dict, in order of age, only where there are several


def chain_hashes(
    tokens: Sequence[Hashable], block_size: int, salt: Hashable = "", parent: int | None = None
) -> list[int]:
    """One hash for each full block, chained to the block before it; the salt enters the first block only."""
    hashes = []
    chained = hash(("root", salt)) if parent is None else parent
    for start in range(0, len(tokens) - block_size + 1, block_size):
        chained = hash((chained, *tokens[start : start + block_size]))
        hashes.append(chained)
    return hashes


class BlockPool:
    """A fixed number of blocks, known by number. `blocks` are those that requests can have."""

    def __init__(self, blocks: int, caching: bool) -> None:
        self.size = blocks
        self.caching = caching
        self.free = blocks  # unreferenced blocks, including cached ones
        self._queue = deque(
            range(blocks)
        )  # those, next to be taken first; one that was shared since leaves its entry behind
        self._left: dict[int, int] = {}  # how many such entries a block has; they stand before its true one
        self._references = [0] * blocks
        self._hashes: list[int | None] = [None] * blocks
        self._by_hash: dict[int, _Holders] = {}  # a dict, in order of age, only where there are several

    @property
    def usage(self) -> float:
        """Share of the blocks that is referenced, 0 to 1."""
        return 1.0 - self.free / self.size

    def longest_prefix(self, hashes: Iterable[int]) -> list[int]:
        """The cached blocks that hold a prompt's leading blocks, up to the first that is not there."""
        found: list[int] = []
        for value in hashes:
            block = self._by_hash.get(value)
            if block is None:
                break
            found.append(block if isinstance(block, int) else next(iter(block)))
        return found

    def unreferenced(self, blocks: Iterable[int]) -> int:
        """How many of these stand in the free list: sharing them uses them up."""
        return sum(1 for block in blocks if self._references[block] == 0)

    def share(self, blocks: Iterable[int]) -> None:
        """Take one more reference to blocks that were found in the cache."""
        for block in blocks:
            if self._references[block] == 0:
                self.free -= 1
                self._left[block] = self._left.get(block, 0) + 1
            self._references[block] += 1

    def allocate(self, count: int) -> list[int] | None:
        """Take free blocks and evict their content. Return None and take nothing if there are too few."""
        references, hashes, by_hash = self._references, self._hashes, self._by_hash
        if count > self.free:
            return None
        self.free -= count
        take = self._next if self._left else self._queue.popleft
        taken = [take() for _ in range(count)]
        for block in taken:
            references[block] = 1
            if (value := hashes[block]) is not None:
                hashes[block] = None
                if (known := by_hash.pop(value)) != block:
                    by_hash[value] = _without(known, block)
        return taken

    def publish(self, blocks: Sequence[int], values: Sequence[int]) -> None:
        """Make full blocks findable by their hashes."""
        if not self.caching:
            return
        hashes, by_hash = self._hashes, self._by_hash
        for block, value in zip(blocks, values, strict=True):
            if hashes[block] is not None:
                continue
            hashes[block] = value
            if (known := by_hash.setdefault(value, block)) != block:
                by_hash[value] = _with(known, block)

    def _next(self) -> int:
        """Next free block, skipping stale entries of the queue."""
        left = self._left
        while (count := left.get(block := self._queue.popleft(), 0)) > 0:
            if count > 1:
                left[block] = count - 1
            else:
                del left[block]
        return block

    def release(self, blocks: Sequence[int], published: int) -> None:
        """Give references back, last block first, so that the front of a prompt is evicted last.

        The first `published` may be shared; the others are used next.
        """
        references, queue = self._references, self._queue
        last: list[int] = []
        for block in blocks[published - 1 :: -1] if published else ():
            left = references[block] = references[block] - 1
            if not left:
                last.append(block)
        queue.extend(last)
        queue.extendleft(blocks[published:])
        self.free += len(last) + len(blocks) - published
        if len(queue) > 2 * self.size:
            self._queue = deque([self._next() for _ in range(self.free)])
            self._left.clear()

    def reset_cache(self) -> bool:
        """Drop every hash. Return False and drop nothing while blocks are referenced."""
        if self.free != self.size:
            return False
        self._by_hash.clear()
        self._hashes = [None] * self.size
        return True


def _with(known: _Holders, block: int) -> _Holders:
    """Holders of the same tokens, with one block more."""
    if not isinstance(known, dict):
        return {known: None, block: None}
    known[block] = None
    return known


def _without(known: _Holders, block: int) -> _Holders:
    """Holders of the same tokens, without one block."""
    assert isinstance(known, dict)
    del known[block]
    return known if len(known) > 1 else next(iter(known))
