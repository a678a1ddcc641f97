"""Step model on the wall clock: outputs are written at the end of a modelled step, through a modelled front end.

Output i of a step is due (i + 1) * e2 after the end of the step, or after the end of the front end's earlier work if that is
later. Due times do not depend on the server's own lateness, which is measured against them. If the front end is late,
further tokens of a request join the pending event, as vLLM merges deltas.
"""

import heapq
from collections import deque
from dataclasses import dataclass

from inferload.measure import clock

from ..core.pipeline import Pipeline
from ..core.scheduler import Step
from ..core.step_time import NS_PER_S, FrontEnd
from ..metrics.engine_metrics import Gauges, Metrics
from .engine import NEVER_NS, Engine
from .stream import Stream

_BATCH = 4096  # events whose lateness is sorted into buckets together


@dataclass(slots=True)
class _OutputBatch:
    """Outputs of one step in the queue of the front end. `due_ns` is the due time of the last one written."""

    streams: list[Stream]
    due_ns: int
    index: int = 0  # of the next one


class SteppedEngine(Engine):
    """Ends steps, writes their outputs, and updates metrics."""

    def __init__(self, pipeline: Pipeline, front_end: FrontEnd, metrics: Metrics, stream_interval: int = 1) -> None:
        super().__init__(pipeline.scheduler, metrics)
        self._pipeline = pipeline
        self._front_end = front_end
        self._event_ns = round(front_end.event_s * NS_PER_S)
        self._interval = stream_interval
        self._batches: deque[_OutputBatch] = deque()
        self._front_free_ns = 0
        self._step_end_ns = -1  # of the last step; -1: none

    def next_due_ns(self) -> int | None:
        """Due time of the next work; None if nothing is planned."""
        if self._pipeline.behind and not self._batches:
            return 0
        due_ns = min(self._next_event_ns(), self._next_other_ns())
        return None if due_ns == NEVER_NS else due_ns

    def pump(self, now_ns: int, until_ns: int) -> int:
        """Handle events, ends of steps and scheduled calls in order of due time. Return the current time at the end."""
        while now_ns < until_ns:
            event_ns, other_ns = self._next_event_ns(), self._next_other_ns()
            if min(event_ns, other_ns) > now_ns:
                # A plan takes milliseconds with thousands of requests, so events of the previous step are written first.
                if self._batches or not self._pipeline.behind:
                    break
                self._pipeline.catch_up()
                now_ns = clock.now_ns()
                continue
            if event_ns <= other_ns:
                now_ns = self._write(min(now_ns, other_ns), until_ns)
                continue
            if self._later and self._later[0][0] == other_ns:
                heapq.heappop(self._later)[2]()
            else:
                self._record(*self._pipeline.end())
            now_ns = clock.now_ns()
        return now_ns

    def _next_event_ns(self) -> int:
        return self._batches[0].due_ns + self._event_ns if self._batches else NEVER_NS

    def _next_other_ns(self) -> int:
        step_ns = self._pipeline.next_ns
        later_ns = self._later[0][0] if self._later else NEVER_NS
        return later_ns if step_ns is None else min(later_ns, step_ns)

    def _enter(self, stream: Stream, now_ns: int) -> None:
        if stream.faults is not None:
            stream.hold_ns = max(now_ns + stream.faults.ns("latency"), stream.header_due_ns)
        ready_ns = now_ns + self._front_end.before_ns(stream.request.prompt)

        def submit() -> None:
            if not stream.over:
                self._pipeline.submit(stream.request, ready_ns)

        self.call_at(ready_ns, submit)

    def gauges(self) -> Gauges:
        """State of the scheduler after planning the overdue step."""
        self._pipeline.catch_up()
        return super().gauges()

    def reset_cache(self) -> bool:
        """Clear the prefix cache after planning the overdue step."""
        self._pipeline.catch_up()
        return super().reset_cache()

    def _leave(self, stream: Stream) -> None:
        self._pipeline.catch_up()
        self.scheduler.abort(stream.request)
        self._pipeline.wake(clock.now_ns())

    def _stall(self, stream: Stream, wait_ns: int) -> None:
        stream.hold_ns = clock.now_ns() + wait_ns

    def _record(self, step: Step, end_ns: int) -> None:
        """Count a step in the metrics and queue its outputs for the front end."""
        metrics, find = self.metrics, self._streams.get
        for request in step.admitted:
            if (stream := find(request)) is not None and not stream.admitted_ns:
                stream.admitted_ns = step.planned_ns
        computed = 0
        for _index, request in step.firsts:
            if (stream := find(request)) is not None and not stream.first_ns:
                self._first_output(stream, end_ns)
                computed += request.prompt - (request.cached_tokens or 0)
        if outputs := self._queue_outputs(step, end_ns):
            metrics.generation_tokens += outputs
            metrics.step_tokens.observe(outputs + computed)
        self._step_end_ns = end_ns

    def _queue_outputs(self, step: Step, end_ns: int) -> int:
        """Queue the outputs of a step for the front end. Return the number of tokens for connected clients."""
        before_ns, regular, outputs = self._step_end_ns, 0, 0
        batch: list[Stream] = []
        for index, stream in enumerate(map(self._streams.get, step.sampled)):
            if stream is None:  # the client disconnected during the step
                continue
            if stream.last_ns == before_ns:
                regular += 1
            elif stream.last_ns:
                self.metrics.itl.observe((end_ns - stream.last_ns) / 1e9)
            stream.last_ns = end_ns
            count = 1 if step.counts is None else step.counts[index]
            outputs += count
            if stream.pending:
                stream.pending += count
                continue
            stream.pending = count
            batch.append(stream)
        if regular:
            self.metrics.itl.observe((end_ns - before_ns) / 1e9, regular)
        if batch:
            start_ns = max(end_ns, self._front_free_ns)
            self._front_free_ns = start_ns + len(batch) * self._event_ns
            self._batches.append(_OutputBatch(batch, start_ns))
        return outputs

    def _write(self, horizon_ns: int, until_ns: int) -> int:
        """Write the events due by the horizon. Return the current time at the end."""
        batch, now_ns, event_ns, lateness = self._batches[0], horizon_ns, self._event_ns, self.lateness
        streams, end = batch.streams, len(batch.streams)
        # Due times are compared with the horizon, the current time with `until_ns`.
        while batch.index < end and batch.due_ns + event_ns <= horizon_ns and now_ns < until_ns:
            stream = streams[batch.index]
            batch.index += 1
            batch.due_ns += event_ns
            count, stream.pending = stream.pending, 0
            if count == 1 and stream.plain_left:
                taken = stream.write_plain()
                now_ns = clock.now_ns()
                lateness.book(now_ns - batch.due_ns, taken)
            else:
                self._deliver(stream, count, batch.due_ns)
                now_ns = clock.now_ns()
        if batch.index == end:
            self._batches.popleft()
        lateness.settle(_BATCH)
        return max(now_ns, clock.now_ns())

    def _deliver(self, stream: Stream, count: int, due_ns: int) -> None:
        """Write an event that is not plain, or hold it while the stream is stalled."""
        if stream.over:
            return
        stream.held += count
        last = stream.index + stream.held == stream.request.output_tokens
        if stream.hold_ns > due_ns:
            if stream.held == count:  # the first held tokens
                self.call_at(stream.hold_ns, lambda: self._release(stream))
            return
        if stream.index > 0 and stream.held < self._interval and not last:
            return
        first, count = stream.index, stream.held
        data = self._data(stream, first, count, last)
        if data is None:
            return
        stream.index += count
        stream.held = 0
        if data:
            taken = stream.peer.write(data)
            self.lateness.book(clock.now_ns() - due_ns, taken)
        stream.written += 1
        if last and self._forget(stream):
            self._end(stream)
        elif self._interval == 1:
            stream.allow_plain(stream.last_index)

    def _release(self, stream: Stream) -> None:
        """Write the held tokens of a stream, due at the release."""
        if stream.held and not stream.over:
            self._deliver(stream, 0, stream.hold_ns)
