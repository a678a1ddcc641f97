"""Paced timing: event i of a stream is due at `base + i * itl`, counted from its admission.

Due times are absolute, so lateness does not accumulate. The scheduler assigns slots and blocks only.
"""

import heapq
from dataclasses import dataclass
from random import Random

from inferload.measure import clock

from ..core.paced_scheduler import PacedScheduler
from ..metrics.engine_metrics import Metrics
from .engine import NEVER_NS, Engine
from .event_writer import Ring
from .stream import Stream

_JITTER_SIZE = 4096  # a power of 2
_BATCH = 4096  # events sorted into histogram buckets together


@dataclass(frozen=True, slots=True)
class Pace:
    """Timing of events. With `prefill_tok_per_s` 0 the TTFT does not depend on the prompt."""

    ttft_ns: int
    itl_ns: int
    prefill_tok_per_s: float
    tokens_per_event: int
    jitter: float  # each event is moved by up to half this share of the ITL, in both directions
    seed: int


class PacedEngine(Engine):
    """Admits requests, writes events when due, and updates metrics."""

    def __init__(self, pace: Pace, scheduler: PacedScheduler, metrics: Metrics) -> None:
        super().__init__(scheduler, metrics)
        self.pace = pace
        self._paced = scheduler
        self._heap: list[tuple[int, int, Stream]] = []
        random = Random(f"{pace.seed}/jitter")
        offsets = [round((random.random() - 0.5) * pace.jitter * pace.itl_ns) for _ in range(_JITTER_SIZE)]
        self._jitter = offsets if pace.jitter else []
        self._itl_ns = pace.itl_ns
        self._regular = pace.tokens_per_event == 1 and not pace.jitter
        self._ring = Ring(pace.itl_ns, self.lateness, metrics.gaps_ns)
        self._readmit = False

    def next_due_ns(self) -> int | None:
        """Due time of the next work; None if nothing is planned."""
        if self._readmit:
            return 0
        due = [queue[0][0] for queue in (self._heap, self._later) if queue]
        if (ring_ns := self._ring.head_ns()) is not None:
            due.append(ring_ns)
        return min(due, default=None)

    def pump(self, now_ns: int, until_ns: int) -> int:
        """Write due events, until `until_ns` at most. Return the current time at the end."""
        while self._later and self._later[0][0] <= now_ns:
            heapq.heappop(self._later)[2]()
        if self._readmit:
            self._readmit = False
            self._admit(now_ns)
        before, heap = self.metrics.generation_tokens, self._heap
        while now_ns < until_ns:
            other_ns = heap[0][0] if heap else NEVER_NS
            now_ns, exhausted, events, written = self._ring.write(now_ns, until_ns, other_ns)
            self.metrics.generation_tokens += events
            if exhausted is not None:
                now_ns = self._continue(exhausted, written, now_ns)
            elif other_ns <= now_ns < until_ns:
                _due_ns, _number, stream = heapq.heappop(heap)
                if other_ns == stream.due_ns:  # else it was aborted or preempted meanwhile
                    now_ns = self._emit(stream, other_ns, now_ns)
            else:
                break
        if tokens := self.metrics.generation_tokens - before:
            self.metrics.step_tokens.observe(tokens)
            self.metrics.settle(_BATCH)
            self.lateness.settle(_BATCH)
        return now_ns

    def _continue(self, stream: Stream, written: bool, now_ns: int) -> int:
        """Continue a stream without plain events left: write its next event, or plan it if one was just written."""
        _sync(stream)
        if not written:
            return self._emit(stream, stream.due_ns, now_ns)
        self._queue_next(stream, 0)
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
            stream.base_event = stream.written
            stream.due_ns = stream.base_ns
            heapq.heappush(self._heap, (stream.base_ns, next(self._number), stream))

    def _emit(self, stream: Stream, due_ns: int, now_ns: int) -> int:
        """Write one event and plan the next. Return the time at the end."""
        request = stream.request
        first = request.emitted
        remaining = request.output_tokens - first
        count = min(self.pace.tokens_per_event, remaining)
        last = count == remaining
        self._record(stream, now_ns, count)
        data = self._data(stream, first, count, last)
        if data is None:
            return clock.now_ns()
        if data:
            taken = stream.peer.write(data)
            self.lateness.book(clock.now_ns() - due_ns, taken)
        stream.written += 1
        stream.index = first + count
        if last:
            self._finish(stream, count)
        elif not stream.over:
            self._plan_next(stream, count, due_ns)
        return clock.now_ns()

    def _record(self, stream: Stream, now_ns: int, count: int) -> None:
        self.metrics.generation_tokens += count
        if stream.written:
            self.metrics.gaps_ns.append(now_ns - stream.last_ns)
        else:
            self._first_output(stream, now_ns)
        stream.last_ns = now_ns

    def _plan_next(self, stream: Stream, count: int, due_ns: int) -> None:
        """Set the due time of the next event, unless the stream is preempted here."""
        index = stream.written - stream.base_event
        planned_ns = stream.base_ns + index * self._itl_ns
        if self._jitter:
            planned_ns += self._jitter[(stream.jitter_at + index) & (_JITTER_SIZE - 1)]
        stream.due_ns = planned_ns
        self._queue_next(stream, count, regular=planned_ns == due_ns + self._itl_ns)

    def _queue_next(self, stream: Stream, count: int, regular: bool = True) -> None:
        """Count output tokens of a running stream and queue its next event."""
        for victim in self._paced.advance(stream.request, count):
            preempted = self._streams[victim]
            _sync(preempted)
            preempted.due_ns, preempted.plain_left = NEVER_NS, 0
            self._readmit = True
        if stream.due_ns == NEVER_NS:
            return
        # Without jitter events keep the order of the previous events, so the ring needs no heap.
        ring_ns = self._ring.last_ns()
        if self._regular and regular and (ring_ns is None or ring_ns <= stream.due_ns):
            stream.allow_plain(stream.request.room + 1)
            self._ring.append(stream)
        else:
            heapq.heappush(self._heap, (stream.due_ns, next(self._number), stream))

    def _finish(self, stream: Stream, count: int) -> None:
        if not self._forget(stream):
            return
        self._paced.finish(stream.request, count)
        self._end(stream)
        self._admit(stream.last_ns)


def _sync(stream: Stream) -> None:
    """Update the scheduler's state of a stream by its plain events since the last update."""
    request = stream.request
    written = stream.index - request.emitted
    request.emitted += written
    request.room -= written
