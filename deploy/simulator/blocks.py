"""KV-cache blocks: reference counts, a prefix cache by chained hashes, and the order of eviction. No I/O, no clock.

A freed block that has a hash stays findable until its turn to be evicted comes (least recently freed first); one without
goes to the front of the free list. Usage counts referenced blocks only. Two blocks may hold the same tokens (the last
block of a prompt that is cached in full is computed again): both are kept, the older is found first.
"""

from collections import OrderedDict
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
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._references = [0] * blocks
        self._hashes: list[int | None] = [None] * blocks
        self._by_hash: dict[int, _Holders] = {}  # a dict, in order of age, only where there are several

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
        free, references, hashes, by_hash = self._free, self._references, self._hashes, self._by_hash
        if count > len(free):
            return None
        taken = []
        for _ in range(count):
            block, _none = free.popitem(False)
            if (value := hashes[block]) is not None:
                hashes[block] = None
                if (known := by_hash.pop(value)) != block:
                    by_hash[value] = _without(known, block)
            references[block] = 1
            taken.append(block)
        return taken

    def publish(self, blocks: Sequence[int], values: Sequence[int]) -> None:
        """Let full blocks be found by their hashes."""
        if not self.caching:
            return
        hashes, by_hash = self._hashes, self._by_hash
        for block, value in zip(blocks, values, strict=True):
            if hashes[block] is not None:
                continue
            hashes[block] = value
            if (known := by_hash.setdefault(value, block)) != block:
                by_hash[value] = _with(known, block)

    def release(self, blocks: Sequence[int]) -> None:
        """Give references back, last block first, so that the front of a prompt is evicted last."""
        free, references, hashes = self._free, self._references, self._hashes
        first: list[int] = []
        for block in reversed(blocks):
            left = references[block] = references[block] - 1
            if not left:
                free[block] = None
                if hashes[block] is None:
                    first.append(block)
        for block in reversed(first):
            free.move_to_end(block, last=False)

    def reset_cache(self) -> bool:
        """Forget every hash; False, and nothing is forgotten, while blocks are referenced."""
        if len(self._free) != self.size:
            return False
        self._by_hash.clear()
        self._hashes = [None] * self.size
        return True


def _with(known: _Holders, block: int) -> _Holders:
    """Who has the same tokens, with one more."""
    if not isinstance(known, dict):
        return {known: None, block: None}
    known[block] = None
    return known


def _without(known: _Holders, block: int) -> _Holders:
    """The others, of several."""
    assert isinstance(known, dict)
    del known[block]
    return known if len(known) > 1 else next(iter(known))
