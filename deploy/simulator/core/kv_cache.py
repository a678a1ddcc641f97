"""KV cache of requests: look-up, allocation, growth and release of blocks. No I/O, no clock."""

from dataclasses import dataclass

from .blocks import BlockPool
from .request import Request


@dataclass(frozen=True, slots=True)
class Hit:
    """Prefix-cache hit of a request: its blocks, and how many of them are unreferenced."""

    blocks: list[int]
    unreferenced: int


_MISS = Hit([], 0)


class KvCache:
    """Block pool with a prefix cache."""

    def __init__(self, blocks: int, block_size: int, caching: bool) -> None:
        self.block_size = block_size
        self.pool = BlockPool(blocks, caching)

    def find(self, request: Request) -> Hit:
        """Find the longest cached prefix. The last token is always computed: at most floor((n-1)/B) blocks of n tokens."""
        if not (self.pool.caching and request.reads_cache):
            return _MISS
        limit = (request.length - 1) // self.block_size
        hashes = request.hashes_to(limit * self.block_size, self.block_size)[:limit]
        cached = self.pool.longest_prefix(hashes)
        return Hit(cached, self.pool.unreferenced(cached))

    def fits(self, tokens: int, hit: Hit, keep: int = 0) -> bool:
        """Return True if the first `tokens` tokens of a request with this hit fit, with `keep` blocks left free."""
        return self._blocks(tokens) - len(hit.blocks) + hit.unreferenced + keep <= self.pool.free

    def allocate(self, request: Request, hit: Hit, tokens: int) -> None:
        """Allocate the blocks of a request that fits: its hit, and new blocks up to `tokens` tokens."""
        self.pool.share(hit.blocks)
        request.blocks = hit.blocks + (self.pool.allocate(self._blocks(tokens) - len(hit.blocks)) or [])
        request.published = len(hit.blocks)

    def grow(self, request: Request, tokens: int) -> bool:
        """Allocate blocks for a request's first `tokens` tokens. Return False and allocate nothing if there are too few."""
        blocks = self.pool.allocate(self._blocks(tokens) - len(request.blocks))
        request.blocks += blocks or ()
        return blocks is not None

    def publish(self, request: Request, tokens: int) -> None:
        """Add the full blocks of a request's first `tokens` tokens to the prefix cache."""
        full, published = tokens // self.block_size, request.published
        if full <= published or not self.pool.caching:
            return
        hashes = request.hashes_to(full * self.block_size, self.block_size)
        self.pool.publish(request.blocks[published:full], hashes[published:full])
        request.published = full

    def release(self, request: Request) -> None:
        """Release all blocks of a request."""
        self.pool.release(request.blocks, request.published)
        request.blocks = []
        request.published = 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
