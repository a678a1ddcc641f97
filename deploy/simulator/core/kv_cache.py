"""What requests hold of the KV cache: look-up, admission's arithmetic, growth and release. No I/O, no clock."""

from dataclasses import dataclass

from .blocks import BlockPool
from .request import Request


@dataclass(frozen=True, slots=True)
class Hit:
    """What the prefix cache has of a request: blocks, and how many of them nobody references now."""

    blocks: list[int]
    unreferenced: int


_MISS = Hit([], 0)


class KvCache:
    """The pool of blocks, as requests see it."""

    def __init__(self, blocks: int, block_size: int, caching: bool, drop_last_hit: bool = False) -> None:
        self.block_size = block_size
        self._drop_last_hit = drop_last_hit
        self.pool = BlockPool(blocks, caching)
        # Who runs and has told nobody of its newest full blocks, by the hash of the last one that can be found.
        self._behind: dict[int, dict[Request, None]] = {}

    def find(self, request: Request) -> Hit:
        """The longest cached front. The last token is always computed, so floor((n-1)/B) blocks of n tokens at most.

        Where a draft head reads the model's hidden states, the last of these blocks is left out too.
        """
        if not self.pool.caching:
            return _MISS
        most = (request.length - 1) // self.block_size
        hashes = request.hashes_to(most * self.block_size, self.block_size)[:most]
        found = self.pool.longest_prefix(hashes)
        while self._behind and len(found) < most and (met := self._behind.keys() & hashes[: len(found)]):
            for last_hash in met:
                for each in list(self._behind[last_hash]):
                    self._catch_up(each)
            found = self.pool.longest_prefix(hashes)
        if self._drop_last_hit:
            del found[-1:]
        return Hit(found, self.pool.unreferenced(found))

    def fits(self, tokens: int, hit: Hit, keep: int = 0) -> bool:
        """Whether a request with this hit finds blocks for its first `tokens` tokens, and `keep` blocks stay free."""
        return self._blocks(tokens) - len(hit.blocks) + hit.unreferenced + keep <= self.pool.free

    def place(self, request: Request, hit: Hit, tokens: int) -> None:
        """Give a request that fits its hit, and new blocks up to `tokens` tokens."""
        self.pool.share(hit.blocks)
        more = self._blocks(tokens) - len(hit.blocks)
        request.blocks = hit.blocks + (self.pool.allocate(more) or [] if more > 0 else [])
        request.published = len(hit.blocks)

    def grow(self, request: Request, tokens: int) -> bool:
        """Blocks for a request's first `tokens` tokens; False, and nothing is taken, where there are not enough."""
        more = self._blocks(tokens) - len(request.blocks)
        if more <= 0:
            return True
        taken = self.pool.allocate(more)
        if taken is None:
            return False
        request.blocks += taken
        return True

    def publish(self, request: Request, tokens: int) -> None:
        """Let the full blocks among a request's first `tokens` tokens be found."""
        full, begun = tokens // self.block_size, request.published
        if full <= begun or not self.pool.caching:
            return
        self._forget(request)
        hashes = request.hashes_to(full * self.block_size, self.block_size)
        self.pool.publish(request.blocks[begun:full], hashes[begun:full])
        request.published = full

    def fill(self, request: Request, tokens: int) -> None:
        """The same, put off until somebody may look for these blocks: a prompt that goes on where this answer begins.

        Hashes of many blocks at once, when the request ends, are far cheaper than of one now and then. The block in which the
        answer begins is told of at once: few others have the same, so few are asked. Of two requests with the same tokens that
        run at once, the one that ends first counts as the older.
        """
        if request.published * self.block_size <= request.prompt:
            self.publish(request, tokens)
            return
        request.full = tokens // self.block_size
        if request.last_hash is None and request.full > request.published:
            request.last_hash = request.hashes[request.published - 1]
            self._behind.setdefault(request.last_hash, {})[request] = None

    def release(self, request: Request) -> None:
        """Take all blocks back."""
        self._catch_up(request)
        self.pool.release(request.blocks, request.published)
        request.blocks = []
        request.published = 0

    def _catch_up(self, request: Request) -> None:
        if request.last_hash is not None:
            self._forget(request)
            self.publish(request, request.full * self.block_size)

    def _forget(self, request: Request) -> None:
        if request.last_hash is None:
            return
        those = self._behind[request.last_hash]
        del those[request]
        if not those:
            del self._behind[request.last_hash]
        request.last_hash = None

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
