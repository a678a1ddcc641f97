"""Model of vLLM V1's scheduler: tokens computed per request in the next step. No I/O, no clock.

A step has a token budget. Running requests are scheduled first, in order of admission; if blocks run out, the newest running
request is preempted: it releases its blocks and is computed again later. In a step without preemption, waiting requests are
admitted in order of arrival, until one does not fit the limits: running requests, token budget, or blocks for the uncached
part of its prompt. Blocks are published when allocated, so requests of one step share them; blocks filled by an answer are
cached too.

`schedule` plans a step, `update` processes its end. With async scheduling a step is planned while the previous one runs: its
output tokens count as present, the end of a text is known one step late, and a requested length is known late only if it
depends on accepted drafts.
"""

from dataclasses import dataclass, field

from .queues import Queues, SchedulerLimits
from .request import Request
from .speculation import Acceptance


@dataclass(slots=True, eq=False)
class Step:
    """Work of one step, and the requests with an output at its end. Indexes refer to `sampled`."""

    sampled: list[Request] = field(default_factory=list)
    counts: list[int] | None = None  # tokens per output; None: one each
    admitted: list[Request] = field(default_factory=list)
    # Index and request, for outputs that end a prompt: the first output, or the next one after a preemption.
    firsts: list[tuple[int, Request]] = field(default_factory=list)
    finishing: list[tuple[int, Request]] = field(default_factory=list)
    tokens: int = 0
    prefill_tokens: int = 0
    decode_context: int = 0  # KV-cache tokens of decoding requests
    chunk_context: float = 0.0  # sum over chunks of tokens times mean context before each token
    preempted: int = 0


class Scheduler(Queues):
    """Step scheduler: call `submit`, then `schedule` and `update` in turn; `abort` at any time."""

    def __init__(self, limits: SchedulerLimits, acceptance: Acceptance | None = None) -> None:
        super().__init__(limits)
        self.speculation = acceptance if limits.speculative_tokens else None
        self._context = 0  # tokens of decoding requests
        self._lost: list[Request] = []  # preempted with an output in progress
        self._ahead = limits.async_scheduling

    def schedule(self) -> Step | None:
        """Plan the next step. Return None if there is nothing to compute."""
        step = Step(counts=[] if self.speculation else None)
        step.decode_context = self._context
        threshold = self._long_prefill_threshold()
        budget = self._continue_running(step, threshold)
        if not step.preempted:
            self._admit(step, threshold, budget)
        if step.tokens:
            return step
        return self.schedule() if step.preempted else None

    def update(self, step: Step) -> None:
        """Process the end of a step and end the requests with their last output in it."""
        for request in self._lost:
            if not request.over:
                self._count_preemptions(request)
        self._lost.clear()
        for _index, request in step.firsts:
            if request.uncounted_preemptions:
                self._count_preemptions(request)
        for _index, request in step.finishing:
            self._finish(request)

    def _finish(self, request: Request) -> None:
        if request.over:
            return
        request.over = True
        if request.running:
            self.cache.publish(request, request.length - 1)  # the last token is never computed
            self.running.remove(request)
            self._leave(request)
        else:  # preempted while its last output was in progress
            self.waiting.remove(request)

    def _long_prefill_threshold(self) -> int:
        limits, eligible = self.limits, len(self.running) + len(self.waiting)
        if eligible <= 1 or not limits.long_prefill_token_threshold:
            return 0
        if limits.long_prefill_adaptive:
            return max(limits.long_prefill_token_threshold, limits.max_num_batched_tokens // eligible)
        return limits.long_prefill_token_threshold

    def _continue_running(self, step: Step, threshold: int) -> int:
        """Plan the tokens of running requests. Return the remaining budget."""
        budget = self.limits.max_num_batched_tokens
        for request in self.running:  # a preemption removes requests from the end of the list
            if not budget:
                step.decode_context = sum(each.length for each in step.sampled)
                break
            taken = self._continue(request, step, budget, threshold)
            if taken is None:
                break
            budget -= taken
        return budget

    def _continue(self, request: Request, step: Step, budget: int, threshold: int) -> int | None:
        """Plan the tokens of one running request. Return their number, or None if the request itself was preempted."""
        if request.target:
            remaining = request.target - request.computed
            tokens = min(remaining, threshold or remaining, budget)
            if not self._grow(request, request.computed + tokens, step):
                return None
            self._compute(request, step, tokens)
            return tokens
        if request.emitted >= request.output_tokens:
            return self._trail(request, step, budget)
        if self.speculation is None:
            return self._decode(request, step)
        drafts = self._drafts(request, budget)
        if not self._grow_drafted(request, drafts, step):
            return None
        self.cache.publish(request, request.length - (request.latest if self._ahead else 0))
        accepted = self.speculation.draw(drafts)
        self._emit(request, step, min(1 + accepted, request.output_tokens - request.emitted))
        request.unsure = 1 + drafts - request.latest if self._ahead else 0
        step.tokens += 1 + drafts
        return 1 + drafts

    def _decode(self, request: Request, step: Step) -> int | None:
        """Plan one output token. Return None if the request itself was preempted."""
        length = request.length
        if length > len(request.blocks) * self.limits.block_size and not self._grow(request, length, step):
            return None
        # With async scheduling the tokens of the previous step are not known yet, so its block cannot be published.
        self.cache.publish(request, length - int(self._ahead))
        self._emit(request, step, 1)
        step.tokens += 1
        return 1

    def _compute(self, request: Request, step: Step, tokens: int) -> None:
        before = request.computed
        request.computed += tokens
        self.cache.publish(request, request.computed)
        step.tokens += tokens
        step.prefill_tokens += tokens
        step.chunk_context += tokens * (before + tokens / 2)
        if request.computed == request.target:
            request.target = request.unsure = 0
            step.firsts.append((len(step.sampled), request))
            self._context += request.length
            self._emit(request, step, 1)

    def _emit(self, request: Request, step: Step, tokens: int) -> None:
        """Count output tokens of a request."""
        step.sampled.append(request)
        if step.counts is not None:
            step.counts.append(tokens)
        request.emitted += tokens
        request.latest = tokens
        self._context += tokens
        if request.emitted == request.output_tokens:
            step.finishing.append((len(step.sampled) - 1, request))
            self._context -= request.length

    def _trail(self, request: Request, step: Step, budget: int) -> int | None:
        """Plan a step for a request that has ended, unknown to the scheduler so far."""
        late = int(self._ahead and (request.ends_itself or request.latest > 1))
        if request.trailing >= late:
            return 0
        request.trailing += 1
        drafts = self._drafts(request, budget)
        if not self._grow_drafted(request, drafts, step):
            return None
        step.tokens += 1 + drafts
        return 1 + drafts

    def _drafts(self, request: Request, budget: int) -> int:
        limits = self.limits
        remaining = limits.max_model_len - request.length - request.unsure - 1
        return max(0, min(limits.speculative_tokens, budget - 1, remaining))

    def _grow_drafted(self, request: Request, drafts: int, step: Step) -> bool:
        """Allocate blocks for one token and its drafts, after drafts whose acceptance is unknown."""
        return self._grow(request, request.length + request.unsure + drafts, step)

    def _grow(self, request: Request, tokens: int, step: Step) -> bool:
        """Allocate blocks for `tokens` tokens, preempting the newest requests. Return False if the request itself was."""
        while not self.cache.grow(request, min(tokens, self.limits.max_model_len)):
            victim = self.running[-1]
            if not victim.target:  # decoding
                self._context -= victim.length if victim.emitted < victim.output_tokens else 0
                if self._ahead:
                    self._lost.append(victim)
                    if self.speculation is not None:
                        self.cache.publish(victim, victim.length - victim.latest - 1)
            self._preempt_newest()
            victim.target = 0
            step.preempted += 1
            if victim is request:
                return False
        return True

    def _admit(self, step: Step, threshold: int, budget: int) -> None:
        limits = self.limits
        while self.waiting and budget and len(self.running) < limits.max_num_seqs:
            request = self.waiting[0]
            hit = self._find_hit(request)
            if hit is None:
                return
            cached = len(hit.blocks) * limits.block_size
            uncached = request.length - cached
            tokens = min(uncached, threshold or uncached)
            if tokens > budget and not limits.chunked_prefill:
                return
            tokens = min(tokens, budget)
            slots = cached + tokens
            if not self.cache.fits(slots, hit, self._reserved):
                return
            self._enter(request, hit, slots)
            request.computed, request.target = cached, request.length
            step.admitted.append(request)
            self._compute(request, step, tokens)
            budget -= tokens

    def abort(self, request: Request) -> None:
        """End a request in any state. Idempotent."""
        if request.running and not request.over and not request.target and request.emitted < request.output_tokens:
            self._context -= request.length
        super().abort(request)
