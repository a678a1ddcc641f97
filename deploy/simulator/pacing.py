"""Paced timing: known truth. Event i of a stream is due at `base + i * itl`, counted from its admission.

Due times are absolute, so lateness never adds up. The scheduler decides who holds a slot and blocks; when tokens come was
asked for on the command line.
"""

import heapq
from dataclasses import dataclass
from random import Random

from inferload.measure import clock

from .engine import Engine
from .metrics import Metrics
from .paced import PacedScheduler
from .stream import Stream

_JITTER_SIZE = 4096


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
        self._jitter = [round((dice.random() - 0.5) * pace.jitter * pace.itl_ns) for _ in range(_JITTER_SIZE)]
        self._readmit = False

    def next_due_ns(self) -> int | None:
        """When there is something to do; None: nothing is planned."""
        if self._readmit:
            return 0
        ahead = [heap[0][0] for heap in (self._heap, self._later) if heap]
        return min(ahead, default=None)

    def pump(self, now_ns: int, until_ns: int) -> int:
        """Write what is due, but look at the network again at `until_ns`; the time when it ended."""
        while self._later and self._later[0][0] <= now_ns:
            heapq.heappop(self._later)[2]()
        if self._readmit:
            self._readmit = False
            self._admit(now_ns)
        heap, tokens, single = self._heap, 0, self.pace.tokens_per_event == 1
        while heap and heap[0][0] <= now_ns < until_ns:
            due_ns, number, stream = heap[0]
            if due_ns != stream.due_ns:  # given up, or preempted since
                heapq.heappop(heap)
                continue
            if stream.quick and single and 0 < stream.request.emitted < stream.last_place:
                self._emit_quick(stream, due_ns, now_ns)
                tokens += 1
            else:
                tokens += self._emit(stream, due_ns, now_ns)
            if heap[0][2] is stream and heap[0][0] == due_ns:
                if stream.due_ns is None:
                    heapq.heappop(heap)
                else:
                    heapq.heapreplace(heap, (stream.due_ns, number, stream))
            elif stream.due_ns is not None:  # something was pushed before it meanwhile; the old entry is stale
                heapq.heappush(heap, (stream.due_ns, number, stream))
            now_ns = clock.now_ns()
        if tokens:
            self.metrics.step_tokens.observe(tokens)
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

    def _emit(self, stream: Stream, due_ns: int, now_ns: int) -> int:
        """Write one event and set when the next is due; how many tokens it had."""
        request = stream.request
        first = request.emitted
        left = request.output_tokens - first
        count = min(self.pace.tokens_per_event, left)
        last = count == left
        self._book(stream, now_ns, count)
        data = self._data(stream, first, count, last)
        if data is None:
            return 0
        if data:
            if stream.peer.write(data):
                self.lateness.add(clock.now_ns() - due_ns)
            else:
                self.lateness.blocked += 1
        stream.event += 1
        if last:
            self._finish(stream, count)
        else:
            self._plan_next(stream, count)
        return count

    def _emit_quick(self, stream: Stream, due_ns: int, now_ns: int) -> None:
        """What `_emit` does, of one token in the middle of a stream without faults: nearly all events are such.

        A thousand streams leave 20 microseconds for each event, half of which are the kernel's; so calls are few here.
        """
        request = stream.request
        metrics = self.metrics
        metrics.generation_tokens += 1
        metrics.itl.observe((now_ns - stream.last_ns) / 1e9)
        stream.last_ns = now_ns
        if stream.peer.write(stream.events.quick_token(request.emitted)):
            self.lateness.add(clock.now_ns() - due_ns)
        else:
            self.lateness.blocked += 1
        stream.event += 1
        if request.room < 1:
            self._plan_next(stream, 1)
            return
        request.emitted += 1
        request.room -= 1
        place = stream.event - stream.base_event
        stream.due_ns = stream.base_ns + place * self.pace.itl_ns + self._jitter[(stream.jitter_at + place) & 4095]

    def _book(self, stream: Stream, now_ns: int, count: int) -> None:
        self.metrics.generation_tokens += count
        if stream.event:
            self.metrics.itl.observe((now_ns - stream.last_ns) / 1e9)
        else:
            self._first_output(stream, now_ns)
        stream.last_ns = now_ns

    def _plan_next(self, stream: Stream, count: int) -> None:
        """The next event's due time; a stream that lost its blocks, or was cut, has none."""
        if stream.over:
            return
        place = stream.event - stream.base_event
        stream.due_ns = stream.base_ns + place * self.pace.itl_ns + self._jitter[(stream.jitter_at + place) & 4095]
        for victim in self._paced.advance(stream.request, count):
            self._streams[victim].due_ns = None
            self._readmit = True

    def _finish(self, stream: Stream, count: int) -> None:
        if not self._forget(stream):
            return
        self._paced.finish(stream.request, count)
        self._end(stream)
        self._admit(stream.last_ns)
