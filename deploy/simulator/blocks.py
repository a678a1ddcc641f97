"""KV-cache blocks: reference counts, a prefix cache by chained hashes, and the order of eviction. No I/O, no clock.

A freed block that has a hash stays findable until its turn to be evicted comes (least recently freed first); one without
goes to the front of the free list. Usage counts referenced blocks only. Two blocks may hold the same tokens (the last
block of a prompt that is cached in full is computed again): both are kept, the older is found first.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


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
        self._free: OrderedDict[int, None] = OrderedDict((number, None) for number in range(blocks))
        self._references = [0] * blocks
        self._hashes: list[int | None] = [None] * blocks
        self._by_hash: dict[int, int | dict[int, None]] = {}  # a dict, in order of age, only where there are several

    @property
    def free(self) -> int:
        """Blocks that nobody references, cached ones among them."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks that is referenced."""
        return 1.0 - len(self._free) / self.size

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
                del self._free[block]
            self._references[block] += 1

    def allocate(self, count: int) -> list[int] | None:
        """New blocks, evicting what they held; None, and nothing is taken, where there are not enough."""
        if count > len(self._free):
            return None
        taken = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def publish(self, block: int, value: int) -> None:
        """Let a full block be found by its hash."""
        if not self.caching or self._hashes[block] is not None:
            return
        self._hashes[block] = value
        known = self._by_hash.setdefault(value, block)
        if isinstance(known, dict):
            known[block] = None
        elif known != block:
            self._by_hash[value] = {known: None, block: None}

    def release(self, blocks: Sequence[int]) -> None:
        """Give references back, last block first, so that the front of a prompt is evicted last."""
        first: list[int] = []
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if self._hashes[block] is None:
                    first.append(block)
        for block in reversed(first):
            self._free.move_to_end(block, last=False)

    def reset_cache(self) -> bool:
        """Forget every hash; False, and nothing is forgotten, while blocks are referenced."""
        if len(self._free) != self.size:
            return False
        self._by_hash.clear()
        self._hashes = [None] * self.size
        return True

    def _forget(self, block: int) -> None:
        value = self._hashes[block]
        if value is None:
            return
        self._hashes[block] = None
        known = self._by_hash[value]
        if isinstance(known, int):
            del self._by_hash[value]
            return
        del known[block]
        if len(known) == 1:
            self._by_hash[value] = next(iter(known))
