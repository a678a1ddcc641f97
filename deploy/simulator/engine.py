"""The clockwork: admits requests, writes each event when it is due, and books what happened.

Event i of a stream is due at `base + i * itl`, counted from its admission: absolute, so lateness never adds up. The
scheduler decides who holds a slot; this decides when its tokens come.
"""

import heapq
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from inferload.measure import clock

from .ask import error_document
from .http import json_reply, reply_bytes
from .lateness import Lateness
from .metrics import Gauges, Metrics
from .scheduler import Request, Scheduler
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


class Engine:
    """One engine of one model. All of it runs in the server's one thread."""

    def __init__(self, pace: Pace, scheduler: Scheduler, metrics: Metrics) -> None:
        self.pace = pace
        self.scheduler = scheduler
        self.metrics = metrics
        self.lateness = Lateness()
        self.started = 0
        self.finished = 0
        self.aborted = 0
        self._streams: dict[Request, Stream] = {}
        self._heap: list[tuple[int, int, Stream]] = []
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._number = itertools.count()
        dice = Random(f"{pace.seed}/jitter")
        self._jitter = [round((dice.random() - 0.5) * pace.jitter * pace.itl_ns) for _ in range(_JITTER_SIZE)]
        self._readmit = False

    @property
    def load(self) -> int:
        """Requests that are not over."""
        return len(self._streams)

    def gauges(self) -> Gauges:
        """The scheduler's state now."""
        scheduler = self.scheduler
        return Gauges(
            len(scheduler.running),
            len(scheduler.waiting),
            scheduler.pool.usage,
            scheduler.prefix_queries,
            scheduler.prefix_hits,
            scheduler.preemptions,
        )

    def submit(self, stream: Stream, now_ns: int) -> None:
        """Take a completion that arrived now."""
        number = next(self._number)
        stream.arrived_ns = now_ns
        stream.jitter_at = number * 97
        self.started += 1
        self._streams[stream.request] = stream
        self.scheduler.submit(stream.request)
        self._admit(now_ns)

    def abort(self, stream: Stream) -> None:
        """Drop a completion whose client went away."""
        if self._streams.pop(stream.request, None) is None:
            return
        stream.due_ns = None
        self.aborted += 1
        self.metrics.aborted()
        self.scheduler.abort(stream.request)
        self._admit(clock.now_ns())

    def call_at(self, due_ns: int, action: Callable[[], None]) -> None:
        """Have something done at an instant."""
        heapq.heappush(self._later, (due_ns, next(self._number), action))

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

    def _admit(self, now_ns: int) -> None:
        pace = self.pace
        for request in self.scheduler.admit():
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
        if stream.faults is not None:
            data = self._faulty(stream, first, count, last)
            if data is None:
                return 0
        else:
            data = stream.piece(first, count, last)
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
        metrics = self.metrics
        metrics.generation_tokens += count
        if stream.event:
            metrics.itl.observe((now_ns - stream.last_ns) / 1e9)
        else:
            stream.first_ns = now_ns
            prompt, cached = len(stream.ask.tokens), stream.request.cached_tokens or 0
            metrics.first_token((now_ns - stream.arrived_ns) / 1e9, prompt, cached)
        stream.last_ns = now_ns

    def _plan_next(self, stream: Stream, count: int) -> None:
        """The next event's due time; a stream that lost its blocks, or was cut, has none."""
        if stream.request not in self._streams:
            return
        place = stream.event - stream.base_event
        stream.due_ns = stream.base_ns + place * self.pace.itl_ns + self._jitter[(stream.jitter_at + place) & 4095]
        for victim in self.scheduler.advance(stream.request, count):
            self._streams[victim].due_ns = None
            self._readmit = True

    def _finish(self, stream: Stream, count: int) -> None:
        stream.due_ns = None
        if self._streams.pop(stream.request, None) is None:
            return
        self.scheduler.finish(stream.request, count)
        self.metrics.request_done(stream.finished())
        self.finished += 1
        stream.peer.answered(close=not stream.keep_alive)
        self._admit(stream.last_ns)

    def _faulty(self, stream: Stream, first: int, count: int, last: bool) -> bytes | None:
        """One event as the faults have it; None: the answer is over."""
        faults = stream.faults
        assert faults is not None
        place = stream.event + 1  # this is the place-th event
        if (cut := faults.of("cut")) and stream.event >= cut["after_events"]:
            self.abort(stream)
            stream.peer.cut(bool(cut["reset"]))
            return None
        if (error := faults.of("error_event")) and stream.event >= error["after_events"]:
            self._fail(stream, error["message"], int(error["status"]))
            return None
        if (stall := faults.of("stall")) and place == stall["after_events"]:
            stream.base_ns += faults.ns("stall")
        data = stream.piece(first, count, last)
        if not stream.ask.stream:
            return data
        if (garbage := faults.of("garbage")) and place == garbage["after_events"] + 1:
            return Random(place).randbytes(int(garbage["bytes"]))
        if (comment := faults.of("comment")) and place % max(1, int(comment["every"])) == 0:
            data = stream.events.plain(b": keep-alive\n\n") + data
        return data

    def _fail(self, stream: Stream, message: str, status: int) -> None:
        """End a stream with an error event, as vLLM does when generation fails."""
        self._streams.pop(stream.request, None)
        stream.due_ns = None
        self.scheduler.abort(stream.request)
        self.metrics.finished["error"] += 1
        document = error_document(message, status, "InternalServerError")
        if stream.ask.stream:
            said = f"data: {json.dumps(document)}\n\ndata: [DONE]\n\n".encode()
            stream.peer.write(stream.events.plain(said) + stream.end())
        else:
            stream.peer.write(reply_bytes(json_reply(document, status), stream.keep_alive))
        stream.peer.answered(close=not stream.keep_alive)
        self._readmit = True
