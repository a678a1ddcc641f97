"""Scheduler of paced timing: queue and cache of the step scheduler, without steps and token budget.

A prompt allocates all its blocks at admission.
"""

from .queues import Queues
from .request import Request


class PacedScheduler(Queues):
    """Admits, extends and ends requests when the engine calls it."""

    def admit(self) -> list[Request]:
        """Admit requests in order while a slot is free and the head of the queue fits. Return them."""
        admitted = []
        while self.waiting and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            hit = self._find_hit(request)
            if hit is None or not self.cache.fits(request.length, hit, self._reserved_blocks if self.running else 0):
                break
            self._enter(request, hit, request.length)
            self.cache.publish(request, request.length)
            request.room = len(request.blocks) * self.limits.block_size - request.length
            admitted.append(request)
        return admitted

    def advance(self, request: Request, tokens: int) -> list[Request]:
        """Count output tokens of a running request and allocate blocks for the next. Return the preempted requests.

        The request itself may be among them; then it has to be admitted again.
        """
        self._count_preemptions(request)
        request.emitted += tokens
        request.room -= tokens
        if request.room >= 0:
            return []
        held = len(request.blocks) * self.limits.block_size
        self.cache.fill(request, held)
        preempted: list[Request] = []
        while not self.cache.grow(request, request.length):
            victim = self._preempt_newest()
            preempted.append(victim)
            if victim is request:
                return preempted
        if request.length > held + self.limits.block_size:  # more than one block at once
            self.cache.fill(request, request.length - 1)
        request.room = len(request.blocks) * self.limits.block_size - request.length
        return preempted

    def finish(self, request: Request, tokens: int = 0) -> None:
        """End a running request after its last output tokens. The last token is never stored in a block."""
        self._count_preemptions(request)
        request.emitted += tokens
        request.over = True
        # Several last tokens at once may exceed its blocks.
        held = len(request.blocks) * self.limits.block_size
        self.cache.publish(request, min(request.length - 1, held))
        self.running.remove(request)
        self._leave(request)
