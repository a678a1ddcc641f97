"""Waiting and running requests, and their counters: base of both schedulers."""

from collections import deque
from dataclasses import dataclass

from .kv_cache import Hit, KvCache
from .request import Request


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Limits of the scheduler. `blocks` excludes the null block that vLLM reserves."""

    max_num_seqs: int
    blocks: int
    block_size: int = 16
    caching: bool = True
    max_model_len: int = 32_768
    max_num_batched_tokens: int = 2048
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_adaptive: bool = False
    reserve_full_prompt: bool = True
    watermark: float = 0.0
    async_scheduling: bool = True
    speculative_tokens: int = 0  # 0: no speculative decoding


class Queues:
    """FIFO queue of waiting requests, and running requests in order of admission."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.cache = KvCache(limits.blocks, limits.block_size, limits.caching)
        self.pool = self.cache.pool
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.prefix_queries = 0  # tokens
        self.prefix_hits = 0  # tokens
        self.preemptions = 0  # as in vLLM: a victim is counted at its next output
        self._reserved_blocks = int(limits.watermark * (limits.blocks + 1))

    def submit(self, request: Request) -> None:
        """Append a request to the queue."""
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """End a request in any state. Idempotent."""
        if request.over:
            return
        request.over = True
        if request.running:
            self.running.remove(request)
            self._leave(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    @property
    def _reserved(self) -> int:
        """Blocks kept free at an admission."""
        return self._reserved_blocks if self.running else 0

    def _find_hit(self, request: Request) -> Hit | None:
        """Prefix-cache hit of the head of the queue; None if the request does not fit."""
        hit = self.cache.find(request)
        if self.limits.reserve_full_prompt and not self.cache.fits(request.length, hit, self._reserved):
            return None
        return hit

    def _enter(self, request: Request, hit: Hit, tokens: int) -> None:
        """Move the head of the queue to the running requests, with blocks for its first `tokens` tokens."""
        cached = len(hit.blocks) * self.limits.block_size
        self.cache.allocate(request, hit, tokens)
        request.uncached_tokens = request.length - cached
        if not request.preemptions:  # a readmission is not counted
            request.cached_tokens = cached
            if self.pool.caching and request.reads_cache:
                self.prefix_queries += request.length
                self.prefix_hits += cached
        self.waiting.popleft()
        self.running.append(request)
        request.running = True

    def _leave(self, request: Request) -> None:
        """Release the blocks of a request that stopped running."""
        request.running = False
        self.cache.release(request)
        if request.over:
            request.hashes = []  # a long simulation keeps many requests in memory

    def _preempt_newest(self) -> Request:
        """Preempt the newest running request: release its blocks and put it at the head of the queue."""
        victim = self.running.pop()
        self._leave(victim)
        victim.preemptions += 1
        victim.uncounted_preemptions += 1
        victim.computed = 0
        self.waiting.appendleft(victim)
        return victim

    def _count_preemptions(self, request: Request) -> None:
        self.preemptions += request.uncounted_preemptions
        request.uncounted_preemptions = 0
