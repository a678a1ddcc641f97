"""Who runs, who waits, who holds which blocks: a scheduler model without I/O and without a clock.

First come, first served: the head of the queue waits until a slot and the blocks for its whole prompt, less what is
cached, are there, and all others wait behind it. When a running request finds no block for its next token, the newest
running one loses its blocks and goes back to the head of the queue. Blocks are published when they are allocated, so
sharing works at once; blocks that the answer filled are cached too, so the next turn of a conversation hits them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .blocks import BlockPool, chain_hashes


@dataclass(slots=True, eq=False)
class Request:
    """One request as the scheduler sees it. `answer(i)` is output token i."""

    tokens: Sequence[str]
    output_tokens: int  # how many it will have, at least 1
    answer: Callable[[int], str]
    salt: str = ""
    emitted: int = 0
    preemptions: int = 0
    cached_tokens: int | None = None  # at the first admission; None: not admitted yet
    uncached_tokens: int = 0  # to be computed before the next output, set at each admission
    blocks: list[int] = field(default_factory=list)
    hashes: list[int] | None = None  # of every full block so far; None: not computed yet
    room: int = 0  # tokens that the blocks at hand can still take

    @property
    def length(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return len(self.tokens) + self.emitted


class Scheduler:
    """`submit` and `advance` change the state; `admit` says who starts now; `finish` and `abort` free."""

    def __init__(self, max_num_seqs: int, blocks: int, block_size: int, caching: bool) -> None:
        self.max_num_seqs = max_num_seqs
        self.block_size = block_size
        self.pool = BlockPool(blocks, caching)
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}  # in order of admission
        self.prefix_queries = 0  # tokens
        self.prefix_hits = 0  # tokens
        self.preemptions = 0

    def submit(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        self.waiting.append(request)

    def admit(self) -> list[Request]:
        """Those that start now, in order: until a slot, or blocks for the head of the queue, are lacking."""
        admitted = []
        while self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            if not self._place(request):
                break
            self.waiting.popleft()
            self.running[request] = None
            admitted.append(request)
        return admitted

    def advance(self, request: Request, tokens: int) -> list[Request]:
        """Book output tokens of a running request that goes on, and find room for its next; who lost theirs for it.

        The request itself may be among them: then it has to be admitted again.
        """
        request.emitted += tokens
        request.room -= tokens
        if request.room >= 0:
            return []
        self._publish_full(request)
        preempted: list[Request] = []
        while request.room < 0:
            more = self.pool.allocate(1)
            if more is not None:
                request.blocks += more
                request.room += self.block_size
                continue
            victim = next(reversed(self.running))
            self._preempt(victim)
            preempted.append(victim)
            if victim is request:
                break
        return preempted

    def finish(self, request: Request, tokens: int = 0) -> None:
        """End a running request after its last output tokens. The very last one was never computed, so no block has it."""
        request.emitted += tokens - 1
        self._publish_full(request)
        request.emitted += 1
        del self.running[request]
        self._free(request)

    def abort(self, request: Request) -> None:
        """End a request wherever it is; one that is already gone is no error."""
        if request in self.running:
            del self.running[request]
            self._free(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def _place(self, request: Request) -> bool:
        size = self.block_size
        hashes = self._hashes_of(request)
        cacheable = hashes[: (request.length - 1) // size]  # the last token is always computed
        hits = self.pool.longest_prefix(cacheable) if self.pool.caching else []
        needed = -(-request.length // size) - len(hits)
        if needed > self.pool.free - self.pool.unreferenced(hits):
            return False
        self.pool.share(hits)
        request.blocks = hits + (self.pool.allocate(needed) or [])
        request.room = len(request.blocks) * size - request.length
        request.uncached_tokens = request.length - len(hits) * size
        for block, value in zip(request.blocks, hashes, strict=False):
            self.pool.publish(block, value)
        if request.cached_tokens is None:  # coming back after a preemption is not counted
            request.cached_tokens = len(hits) * size
            if self.pool.caching:
                self.prefix_queries += request.length
                self.prefix_hits += request.cached_tokens
        return True

    def _hashes_of(self, request: Request) -> list[int]:
        if request.hashes is None:
            request.hashes = chain_hashes(request.tokens, self.block_size, request.salt) if self.pool.caching else []
        self._extend_hashes(request)
        return request.hashes

    def _extend_hashes(self, request: Request) -> None:
        hashes, size, prompt = request.hashes, self.block_size, len(request.tokens)
        while self.pool.caching and hashes is not None and (len(hashes) + 1) * size <= request.length:
            start = len(hashes) * size
            block = [
                request.tokens[index] if index < prompt else request.answer(index - prompt)
                for index in range(start, start + size)
            ]
            if hashes:
                hashes += chain_hashes(block, size, parent=hashes[-1])
            else:
                hashes += chain_hashes(block, size, request.salt)

    def _publish_full(self, request: Request) -> None:
        if not self.pool.caching or request.hashes is None:
            return
        known = len(request.hashes)
        self._extend_hashes(request)
        for block, value in zip(request.blocks[known:], request.hashes[known:], strict=False):
            self.pool.publish(block, value)

    def _preempt(self, victim: Request) -> None:
        del self.running[victim]
        self._free(victim)
        victim.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(victim)

    def _free(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks = []
        request.room = 0
