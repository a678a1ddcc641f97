"""Core with outputs at fixed times: queue and cache of the step scheduler, without steps and token budget.

Output i of a request is due at its admission + TTFT + i x ITL. Due times are absolute, so lateness does not accumulate.
Requests are admitted at multiples of 0.25 ms, so that outputs of many requests are due together and cost less. A prompt
allocates all its blocks at admission.
"""

import heapq
import itertools
from dataclasses import dataclass
from random import Random

from .pipeline import Core
from .queues import Queues
from .request import Request
from .scheduler import Step
from .step_time import NS_PER_S

ADMISSION_NS = 250_000


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of outputs. With `prefill_tok_per_s` 0 the TTFT does not depend on the prompt."""

    ttft_ns: int
    itl_ns: int
    prefill_tok_per_s: float
    jitter: float  # each output is moved by up to half this share of the ITL, in both directions
    seed: int


class PacedScheduler(Queues):
    """Admits, extends and ends requests when the core calls it."""

    def admit(self) -> list[Request]:
        """Admit requests in order while a slot is free and the head of the queue fits. Return them."""
        admitted = []
        while self.waiting and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            hit = self._find_hit(request)
            if hit is None or not self.cache.fits(request.length, hit, self._reserved):
                break
            self._enter(request, hit, request.length)
            self.cache.publish(request, request.length)
            request.room = len(request.blocks) * self.limits.block_size - request.length
            admitted.append(request)
        return admitted

    def advance(self, request: Request) -> list[Request]:
        """Count an output token of a running request and allocate blocks for the next. Return the preempted requests.

        The request itself may be among them; then it has to be admitted again.
        """
        self._count_preemptions(request)
        request.emitted += 1
        request.room -= 1
        if request.room >= 0:
            return []
        self.cache.publish(request, len(request.blocks) * self.limits.block_size)
        preempted: list[Request] = []
        while not self.cache.grow(request, request.length):
            victim = self._preempt_newest()
            preempted.append(victim)
            if victim is request:
                return preempted
        request.room = len(request.blocks) * self.limits.block_size - request.length
        return preempted

    def finish(self, request: Request) -> None:
        """End a running request after its last output token, which is never stored in a block."""
        self._count_preemptions(request)
        request.emitted += 1
        request.over = True
        self.cache.publish(request, request.length - 1)
        self.running.remove(request)
        self._leave(request)


class PacedCore(Core):
    """Core in which a step has all outputs that are due at one time."""

    def __init__(self, scheduler: PacedScheduler, pace: Pace) -> None:
        self.scheduler: PacedScheduler = scheduler
        self._pace = pace
        self._due: list[tuple[int, int, int, Request]] = []  # time with jitter, number, time without, request
        self._number = itertools.count()
        self._random = Random(f"{pace.seed}/jitter")

    @property
    def next_ns(self) -> int | None:
        """Time of the next output; None if idle. Outputs of aborted and preempted requests are dropped."""
        due = self._due
        while due and not (due[0][3].running and due[0][3].due_ns == due[0][2]):
            heapq.heappop(due)
        return due[0][0] if due else None

    def submit(self, request: Request, now_ns: int) -> None:
        request.queue(now_ns)
        self.scheduler.submit(request)
        self.wake(now_ns)

    def wake(self, now_ns: int) -> None:
        """Admit waiting requests, at the next multiple of the interval of admissions."""
        pace = self._pace
        now_ns = -(-now_ns // ADMISSION_NS) * ADMISSION_NS
        for request in self.scheduler.admit():
            if request.admitted_ns < 0:
                request.admitted_ns = now_ns
            request.target = request.uncached_tokens
            prefill_s = request.uncached_tokens / pace.prefill_tok_per_s if pace.prefill_tok_per_s else 0.0
            self._plan(request, now_ns + pace.ttft_ns + round(prefill_s * NS_PER_S))

    def _plan(self, request: Request, due_ns: int) -> None:
        pace, jitter_ns = self._pace, 0
        if pace.jitter:
            jitter_ns = round((self._random.random() - 0.5) * pace.jitter * pace.itl_ns)
        request.due_ns = due_ns
        heapq.heappush(self._due, (due_ns + jitter_ns, next(self._number), due_ns, request))

    def end(self) -> tuple[Step, int]:
        due, end_ns, step, freed = self._due, self._due[0][0], Step(), False
        together = []
        while due and due[0][0] == end_ns:
            together.append(heapq.heappop(due))
        # With an ITL of 0 the next outputs are due now too, one step later.
        for _end_ns, _number, due_ns, request in together:
            if request.running and request.due_ns == due_ns:
                freed = self._output(request, step) or freed
        if freed:
            self.wake(end_ns)
        return step, end_ns

    def _output(self, request: Request, step: Step) -> bool:
        """Add an output to a step and plan the next. Return True if it freed a slot or blocks."""
        index = len(step.sampled)
        step.sampled.append(request)
        if request.target:
            request.target = 0
            step.firsts.append((index, request))
        if request.emitted + 1 == request.output_tokens:
            step.finishing.append((index, request))
            self.scheduler.finish(request)
            return True
        preempted = self.scheduler.advance(request)
        if request.running:
            self._plan(request, request.due_ns + self._pace.itl_ns)
        return bool(preempted)
