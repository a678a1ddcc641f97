"""Base of both engines: submission, faults, metrics and the end of completions.

`paced_engine` gives every event an absolute due time. `stepped_engine` emits outputs at the end of modelled steps.
"""

import heapq
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random

from ..core.queues import Queues
from ..core.request import Request
from ..metrics.engine_metrics import Gauges, Metrics
from ..metrics.lateness import Lateness
from ..protocol.errors import error_document
from ..protocol.http import json_reply, reply_bytes
from .stream import Stream

NEVER_NS = 1 << 62


class Engine(ABC):
    """Engine of one model. Runs in the server's single thread."""

    def __init__(self, scheduler: Queues, metrics: Metrics) -> None:
        self.scheduler = scheduler
        self.metrics = metrics
        self.lateness = Lateness()
        self.started = 0
        self.finished = 0
        self.aborted = 0
        self.max_queued: tuple[int | None, int | None] = (None, None)  # requests; prompt tokens without a first output
        self._streams: dict[Request, Stream] = {}
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._unanswered_tokens = 0  # of prompts without a first output

    @property
    def load(self) -> int:
        """Requests in progress."""
        return len(self._streams)

    def gauges(self) -> Gauges:
        """Current state of the scheduler."""
        scheduler = self.scheduler
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
        return self.scheduler.pool.reset_cache()

    def refusal(self) -> str | None:
        """Check the queue limits. Return and count the exceeded limit, for which vLLM answers 503; None if accepted."""
        max_requests, max_tokens = self.max_queued
        reason = None
        if max_requests is not None and len(self._streams) >= max_requests:
            reason = "max_num_queued_reqs"
        elif max_tokens is not None and self._unanswered_tokens >= max_tokens:
            reason = "max_num_queued_tokens"
        if reason is not None:
            self.metrics.rejections[reason] += 1
        return reason

    def submit(self, stream: Stream, now_ns: int) -> None:
        """Add a completion that arrived now."""
        completion, request = stream.completion, stream.request
        # A requested length is known in advance, the end of the text only when it is sampled.
        request.ends_itself = completion.ends_itself and completion.output_tokens < completion.output_limit
        request.stopped = request.ends_itself and completion.stop is not None
        stream.arrived_ns = now_ns
        self.started += 1
        self._streams[request] = stream
        self._unanswered_tokens += request.prompt
        self._enter(stream, now_ns)

    def abort(self, stream: Stream) -> None:
        """Drop a completion whose client disconnected. As in vLLM 0.32 it is in no metric of finished requests."""
        if not self._forget(stream):
            return
        self.aborted += 1
        self._leave(stream)

    def call_at(self, due_ns: int, action: Callable[[], None]) -> None:
        """Schedule a call."""
        heapq.heappush(self._later, (due_ns, next(self._number), action))

    @abstractmethod
    def next_due_ns(self) -> int | None:
        """Due time of the next work; None if nothing is planned."""

    @abstractmethod
    def pump(self, now_ns: int, until_ns: int) -> int:
        """Handle all due work, until `until_ns` at most. Return the current time at the end."""

    @abstractmethod
    def _enter(self, stream: Stream, now_ns: int) -> None:
        """Submit a request to the scheduler."""

    @abstractmethod
    def _leave(self, stream: Stream) -> None:
        """Remove an aborted request from the scheduler."""

    @abstractmethod
    def _stall(self, stream: Stream, wait_ns: int) -> None:
        """Delay the rest of a stream."""

    def _forget(self, stream: Stream) -> bool:
        """Mark a stream as over. Return False if it was over already."""
        stream.due_ns, stream.plain_left = NEVER_NS, 0
        stream.over = True
        if self._streams.pop(stream.request, None) is None:
            return False
        if not stream.first_ns:
            self._unanswered_tokens -= stream.request.prompt
        return True

    def _first_output(self, stream: Stream, now_ns: int) -> None:
        stream.first_ns = now_ns
        self._unanswered_tokens -= stream.request.prompt
        prompt, cached = len(stream.completion.tokens), stream.request.cached_tokens or 0
        self.metrics.first_token((now_ns - stream.arrived_ns) / 1e9, prompt, cached)

    def _end(self, stream: Stream) -> None:
        """Count a completed answer in the metrics and end it on its connection."""
        self.metrics.request_done(stream.finished())
        self.finished += 1
        stream.peer.answered(close=not stream.keep_alive)

    def _data(self, stream: Stream, first: int, count: int, last: bool) -> bytes | None:
        """Bytes of one event with its faults; None if the answer has ended."""
        faults = stream.faults
        if faults is None:
            return stream.piece(first, count, last)
        written = stream.written
        number = written + 1  # number of this event, from 1
        if (cut := faults.of("cut")) and written >= cut["after_events"]:
            self.abort(stream)
            stream.peer.cut(bool(cut["reset"]))
            return None
        if (error := faults.of("error_event")) and written >= error["after_events"]:
            self._fail(stream, error["message"], int(error["status"]))
            return None
        if (stall := faults.of("stall")) and number == stall["after_events"]:
            self._stall(stream, faults.ns("stall"))
        data = stream.piece(first, count, last)
        if not stream.completion.stream:
            return data
        if (garbage := faults.of("garbage")) and number == garbage["after_events"] + 1:
            return Random(number).randbytes(int(garbage["bytes"]))
        if (comment := faults.of("comment")) and number % max(1, int(comment["every"])) == 0:
            data = stream.frame(b": keep-alive\n\n") + data
        return data

    def _fail(self, stream: Stream, message: str, status: int) -> None:
        """End a stream with an error event, as vLLM does when generation fails."""
        self._forget(stream)
        self.metrics.finished["error"] += 1
        document = error_document(message, status, "InternalServerError")
        if stream.completion.stream:
            stream.peer.write(stream.error_end(document))
        else:
            stream.peer.write(reply_bytes(json_reply(document, status), stream.keep_alive))
        stream.peer.answered(close=not stream.keep_alive)
        self._leave(stream)
