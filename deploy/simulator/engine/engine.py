"""Engine on a clock: outputs of a core's steps are written at the end of the step, through a modelled front end.

Output i of a step is due (i + 1) * e2 after the end of the step, or after the end of the front end's earlier work if that is
later. Due times do not depend on the server's own lateness, which is measured against them. If the front end is late,
further tokens of a request join the pending event, as vLLM merges deltas.
"""

import heapq
import itertools
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from inferload.base.clock import now_ns as clock_ns

from ..core.pipeline import Core
from ..core.request import Request
from ..core.scheduler import Step
from ..core.step_time import NS_PER_S, FrontEnd
from ..metrics.engine_metrics import REJECTION_REASONS, Gauges, Metrics
from ..metrics.lateness import Lateness
from ..protocol.errors import error_document
from ..protocol.http import LAST_CHUNK, chunk, json_reply, reply_bytes
from .stream import Stream

NEVER_NS = 1 << 62
_BATCH = 4096  # events whose lateness is sorted into buckets together
_GARBAGE_BYTES = 64


@dataclass(slots=True)
class _OutputBatch:
    """Outputs of one step in the queue of the front end. `due_ns` is the due time of the last one written."""

    streams: list[Stream]
    due_ns: int
    index: int = 0  # of the next one


class Engine:
    """Engine of one model: ends steps, writes their outputs, and updates metrics. Runs in the server's single thread."""

    def __init__(
        self,
        core: Core,
        front_end: FrontEnd,
        metrics: Metrics,
        stream_interval: int = 1,
        max_queued: tuple[int | None, int | None] = (None, None),
    ) -> None:
        self.core = core
        self.metrics = metrics
        self.lateness = Lateness()
        self.started = 0
        self.finished = 0
        self.aborted = 0
        self._max_queued = max_queued  # requests; prompt tokens without a first output
        self._streams: dict[Request, Stream] = {}
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._unanswered_tokens = 0  # of prompts without a first output
        self._front_end = front_end
        self._event_ns = round(front_end.event_s * NS_PER_S)
        self._interval = stream_interval
        self._batches: deque[_OutputBatch] = deque()
        self._front_free_ns = 0
        self._step_end_ns = -1  # of the last step; -1: none
        self.paused = False
        self._held: list[Request] = []  # that arrived while paused

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    def gauges(self) -> Gauges:
        """State of the scheduler after planning the overdue step."""
        self.core.catch_up()
        scheduler = self.core.scheduler
        return Gauges(
            len(scheduler.running),
            len(scheduler.waiting),
            scheduler.pool.usage,
            scheduler.prefix_queries,
            scheduler.prefix_hits,
            scheduler.preemptions,
        )

    def reset_cache(self) -> bool:
        """Clear the prefix cache. Return False and clear nothing while requests hold blocks."""
        self.core.catch_up()
        return self.core.scheduler.pool.reset_cache()

    def refusal(self) -> str | None:
        """Check the queue limits. Return and count the exceeded limit, for which vLLM answers 503; None if accepted."""
        queued = (len(self._streams), self._unanswered_tokens)
        for reason, count, most in zip(REJECTION_REASONS, queued, self._max_queued, strict=True):
            if most is not None and count >= most:
                self.metrics.rejections[reason] += 1
                return reason
        return None

    def submit(self, stream: Stream, now_ns: int) -> None:
        """Add a completion that arrived now."""
        request = stream.request
        stream.arrived_ns = now_ns
        stream.interval = max(self._interval, stream.completion.params.interval)
        self.started += 1
        self._streams[request] = stream
        self._unanswered_tokens += request.prompt
        ready_ns = now_ns + self._front_end.before_ns(request.prompt)

        def enter() -> None:
            if self.paused:
                request.queued_ns = ready_ns
                self._held.append(request)
            elif not stream.over:
                self.core.submit(request, ready_ns)

        self.call_at(ready_ns, enter)

    def pause(self, paused: bool) -> None:
        """Hold new requests, in no gauge as in vLLM, or let them in. Requests in progress continue."""
        self.paused, held, self._held = paused, self._held, []
        for request in held:
            if request in self._streams:
                self.core.submit(request, clock_ns())

    def abort(self, stream: Stream) -> None:
        """Drop a completion whose client disconnected. As in vLLM 0.32 it is in no metric of finished requests."""
        for each in (stream, *stream.others):
            if self._forget(each):
                self.aborted += 1
                self._leave(each)

    def call_at(self, due_ns: int, action: Callable[[], None]) -> None:
        """Schedule a call."""
        heapq.heappush(self._later, (due_ns, next(self._number), action))

    def next_due_ns(self) -> int | None:
        """Due time of the next work; None if nothing is planned."""
        if self.core.behind and not self._batches:
            return 0
        due_ns = min(self._next_event_ns(), self._next_other_ns())
        return None if due_ns == NEVER_NS else due_ns

    def pump(self, now_ns: int, until_ns: int) -> int:
        """Handle events, ends of steps and scheduled calls in order of due time. Return the current time at the end."""
        while now_ns < until_ns:
            event_ns, other_ns = self._next_event_ns(), self._next_other_ns()
            if event_ns > now_ns and other_ns > now_ns:
                # A plan takes milliseconds with thousands of requests, so events of the previous step are written first.
                if self._batches or not self.core.behind:
                    break
                self.core.catch_up()
                now_ns = clock_ns()
            elif event_ns <= other_ns:
                now_ns = self._write(min(now_ns, other_ns), until_ns)
            elif self._later and self._later[0][0] == other_ns:
                heapq.heappop(self._later)[2]()
                now_ns = clock_ns()
            else:
                self._record(*self.core.end())
        return now_ns

    def _next_event_ns(self) -> int:
        return self._batches[0].due_ns + self._event_ns if self._batches else NEVER_NS

    def _next_other_ns(self) -> int:
        step_ns = self.core.next_ns
        later_ns = self._later[0][0] if self._later else NEVER_NS
        return later_ns if step_ns is None else min(later_ns, step_ns)

    def _forget(self, stream: Stream) -> bool:
        """Mark a stream as over. Return False if it was over already."""
        stream.plain_left = 0
        stream.over = True
        if self._streams.pop(stream.request, None) is None:
            return False
        if not stream.first_ns:
            self._unanswered_tokens -= stream.request.prompt
        return True

    def _leave(self, stream: Stream) -> None:
        """Remove an aborted request from the core."""
        self.core.catch_up()
        self.core.scheduler.abort(stream.request)
        self.core.wake(clock_ns())

    def _record(self, step: Step, end_ns: int) -> None:
        """Count a step in the metrics and queue its outputs for the front end."""
        computed = 0
        for _index, request in step.firsts:
            if (stream := self._streams.get(request)) is not None and not stream.first_ns:
                stream.first_ns = end_ns
                self._unanswered_tokens -= request.prompt
                cached = request.cached_tokens or 0
                self.metrics.ttft.observe((end_ns - stream.arrived_ns) / 1e9)
                self.metrics.prompt_tokens += request.prompt  # at the first output token, as in vLLM
                self.metrics.prompt_tokens_cached += cached
                computed += request.prompt - cached
        outputs = self._queue_outputs(step, end_ns)
        self.metrics.generation_tokens += outputs
        if computed or outputs:
            self.metrics.iteration_tokens.observe(computed + outputs)
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
            outputs += 0 if stream.pooled else count
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
                now_ns = clock_ns()
                lateness.book(now_ns - batch.due_ns, taken)
            else:
                self._deliver(stream, count, batch.due_ns)
                now_ns = clock_ns()
        if batch.index == end:
            self._batches.popleft()
        lateness.settle(_BATCH)
        return now_ns

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
        if stream.index > 0 and stream.held < stream.interval and not last:
            return
        data = self._data(stream, stream.index, stream.held, last)
        if data is None:
            return
        stream.index += stream.held
        stream.held = 0
        if data:
            taken = stream.peer.write(data)
            self.lateness.book(clock_ns() - due_ns, taken)
        stream.written += 1
        if last and self._forget(stream):
            stream.count(self.metrics)
            self.finished += 1
            stream.peer.answered(close=not stream.keep_alive)
        elif stream.interval == 1:
            stream.allow_plain()

    def _release(self, stream: Stream) -> None:
        """Write the held tokens of a stream, due at the release."""
        if stream.held and not stream.over:
            self._deliver(stream, 0, stream.hold_ns)

    def _data(self, stream: Stream, first: int, count: int, last: bool) -> bytes | None:
        """Bytes of one event with its faults; None if the answer has ended."""
        faults, written, streamed = stream.faults or {}, stream.written, stream.completion.params.stream
        if (cut := faults.get("cut")) and written >= cut["after_events"]:
            self.abort(stream)
            stream.peer.cut()
            return None
        if (error := faults.get("error_event")) and written >= error["after_events"]:
            self._fail(stream, error["message"], error["status"])
            return None
        if (stall := faults.get("stall")) and written + 1 == stall["after_events"]:
            stream.hold_ns = clock_ns() + stall["ms"] * 1_000_000
        if streamed and (garbage := faults.get("garbage")) and written == garbage["after_events"]:
            return Random(written).randbytes(_GARBAGE_BYTES)
        return stream.piece(first, count, last)

    def _fail(self, stream: Stream, message: str, status: int) -> None:
        """End a stream with an error event, as vLLM does when generation fails."""
        self._forget(stream)
        self.metrics.finished["error"] += 1
        document = error_document(message, status, "InternalServerError")
        if stream.completion.params.stream:
            stream.peer.write(chunk(f"data: {json.dumps(document)}\n\ndata: [DONE]\n\n".encode()) + LAST_CHUNK)
        else:
            stream.peer.write(reply_bytes(json_reply(document, status), stream.keep_alive))
        stream.peer.answered(close=not stream.keep_alive)
        self._leave(stream)
