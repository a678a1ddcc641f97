"""Paced timing: known truth. Event i of a stream is due at `base + i * itl`, counted from its admission.

Due times are absolute, so lateness never adds up. The scheduler decides who holds a slot and blocks; when tokens come was
asked for on the command line.
"""

import heapq
from collections import deque
from dataclasses import dataclass
from random import Random

from inferload.measure import clock

from .engine import Engine
from .metrics import Metrics
from .paced import PacedScheduler
from .stream import Stream

_JITTER_SIZE = 4096  # a power of 2
_MANY = 4096  # events whose times are sorted into histograms together


@dataclass(frozen=True, slots=True)
class Pace:
    """When tokens come. `prefill_tok_per_s` 0: the time to the first token does not depend on the prompt."""

    ttft_ns: int
    itl_ns: int
    prefill_tok_per_s: float
    tokens_per_event: int
    jitter: float  # each event is moved by up to half of this share of the itl, either way
    seed: int


class PacedEngine(Engine):
    """Admits requests, writes each event when it is due, and books what happened."""

    def __init__(self, pace: Pace, scheduler: PacedScheduler, metrics: Metrics) -> None:
        super().__init__(scheduler, metrics)
        self.pace = pace
        self._paced = scheduler
        self._heap: list[tuple[int, int, Stream]] = []
        dice = Random(f"{pace.seed}/jitter")
        moved = [round((dice.random() - 0.5) * pace.jitter * pace.itl_ns) for _ in range(_JITTER_SIZE)]
        self._jitter = moved if pace.jitter else []
        self._itl_ns = pace.itl_ns
        self._ring: deque[tuple[int, Stream]] = deque()  # in order of due times, as the heap is
        self._readmit = False

    def next_due_ns(self) -> int | None:
        """When there is something to do; None: nothing is planned."""
        if self._readmit:
            return 0
        ahead = [queue[0][0] for queue in (self._ring, self._heap, self._later) if queue]
        return min(ahead, default=None)

    def pump(self, now_ns: int, until_ns: int) -> int:
        """Write what is due, but look at the network again at `until_ns`; the time when it ended."""
        while self._later and self._later[0][0] <= now_ns:
            heapq.heappop(self._later)[2]()
        if self._readmit:
            self._readmit = False
            self._admit(now_ns)
        before = self.metrics.generation_tokens
        while now_ns < until_ns:
            heap = self._heap
            if self._ring and (not heap or self._ring[0][0] <= heap[0][0]):
                if self._ring[0][0] > now_ns:
                    break
                now_ns = self._write_ring(now_ns, until_ns)
                continue
            if not heap or heap[0][0] > now_ns:
                break
            due_ns, _number, stream = heapq.heappop(heap)
            if due_ns == stream.due_ns:  # else it was given up, or preempted since
                self._emit(stream, due_ns, now_ns)
                now_ns = clock.now_ns()
        if tokens := self.metrics.generation_tokens - before:
            self.metrics.step_tokens.observe(tokens)
            self.metrics.settle(_MANY)
            self.lateness.settle(_MANY)
        return now_ns

    def _write_ring(self, now_ns: int, until_ns: int) -> int:
        """Write what is due of the ring, as long as nothing of the heap comes before it; the time when it ended.

        Two thousand streams leave 10 microseconds for each event, half of which are the kernel's; so calls are few here.
        Nearly all events are one token in the middle of a stream without faults.
        """
        ring, itl_ns, bare = self._ring, self._itl_ns, self.pace.tokens_per_event == 1
        late, gaps, clock_ns = self.lateness.add, self.metrics.gaps_ns.append, clock.now_ns
        other_ns = self._heap[0][0] if self._heap else until_ns
        tokens = 0
        while ring and now_ns < until_ns:
            due_ns, stream = ring[0]
            if due_ns > now_ns or due_ns > other_ns:
                break
            ring.popleft()
            if due_ns != stream.due_ns:
                continue
            request = stream.request
            emitted = request.emitted
            if not (bare and stream.quick and emitted < stream.last_place and request.room):
                self.metrics.generation_tokens += tokens
                tokens = 0
                self._emit(stream, due_ns, now_ns)
                other_ns = self._heap[0][0] if self._heap else until_ns
                now_ns = clock_ns()
                continue
            gaps(now_ns - stream.last_ns)
            stream.last_ns = now_ns
            if stream.peer.write(stream.events.quick_token(emitted)):
                now_ns = clock_ns()
                late(now_ns - due_ns)
            else:
                now_ns = clock_ns()
                self.lateness.blocked += 1
            stream.event += 1
            request.emitted = emitted + 1
            request.room -= 1
            stream.due_ns = due_ns = due_ns + itl_ns
            ring.append((due_ns, stream))
            tokens += 1
        self.metrics.generation_tokens += tokens
        return now_ns

    def _enter(self, stream: Stream, now_ns: int) -> None:
        stream.jitter_at = next(self._number) * 97
        stream.request.queued_ns = now_ns
        self.scheduler.submit(stream.request)
        self._admit(now_ns)

    def _leave(self, stream: Stream) -> None:
        self.scheduler.abort(stream.request)
        self._readmit = True

    def _stall(self, stream: Stream, wait_ns: int) -> None:
        stream.base_ns += wait_ns

    def _admit(self, now_ns: int) -> None:
        pace = self.pace
        for request in self._paced.admit():
            stream = self._streams[request]
            wait_ns = pace.ttft_ns
            if pace.prefill_tok_per_s:
                wait_ns += round(request.uncached_tokens / pace.prefill_tok_per_s * 1e9)
            if stream.faults is not None and not stream.admitted_ns:
                wait_ns += stream.faults.ns("latency")
            stream.admitted_ns = stream.admitted_ns or now_ns
            stream.base_ns = max(now_ns + wait_ns, stream.header_due_ns)
            stream.base_event = stream.event
            stream.due_ns = stream.base_ns
            heapq.heappush(self._heap, (stream.due_ns, next(self._number), stream))

    def _emit(self, stream: Stream, due_ns: int, now_ns: int) -> None:
        """Write one event and set when the next is due."""
        request = stream.request
        first = request.emitted
        left = request.output_tokens - first
        count = min(self.pace.tokens_per_event, left)
        last = count == left
        self._book(stream, now_ns, count)
        data = self._data(stream, first, count, last)
        if data is None:
            return
        if data:
            if stream.peer.write(data):
                self.lateness.add(clock.now_ns() - due_ns)
            else:
                self.lateness.blocked += 1
        stream.event += 1
        if last:
            self._finish(stream, count)
        elif not stream.over:
            self._plan_next(stream, count, due_ns)

    def _book(self, stream: Stream, now_ns: int, count: int) -> None:
        self.metrics.generation_tokens += count
        if stream.event:
            self.metrics.gaps_ns.append(now_ns - stream.last_ns)
        else:
            self._first_output(stream, now_ns)
        stream.last_ns = now_ns

    def _plan_next(self, stream: Stream, count: int, due_ns: int) -> None:
        """The next event's due time; a stream that loses its blocks here has none."""
        place = stream.event - stream.base_event
        planned_ns = stream.base_ns + place * self._itl_ns
        if self._jitter:
            planned_ns += self._jitter[(stream.jitter_at + place) & (_JITTER_SIZE - 1)]
        stream.due_ns = planned_ns
        # Without jitter events follow each other as those before them did: no heap is needed for their order.
        if planned_ns == due_ns + self._itl_ns and not self._jitter and (not self._ring or self._ring[-1][0] <= planned_ns):
            self._ring.append((planned_ns, stream))
        else:
            heapq.heappush(self._heap, (planned_ns, next(self._number), stream))
        for victim in self._paced.advance(stream.request, count):
            self._streams[victim].due_ns = None
            self._readmit = True

    def _finish(self, stream: Stream, count: int) -> None:
        if not self._forget(stream):
            return
        self._paced.finish(stream.request, count)
        self._end(stream)
        self._admit(stream.last_ns)
