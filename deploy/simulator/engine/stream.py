"""Answer in progress: due times and bytes of its events."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..answers.completion_events import CompletionEvents, Timings
from ..core.request import Request
from ..metrics.engine_metrics import Metrics
from ..protocol.completion_request import CompletionRequest
from ..protocol.http import json_reply, reply_bytes
from .chaos import Faults


class Peer(Protocol):
    """Connection of an answer."""

    def write(self, data: bytes) -> bool:
        """Send bytes. Return False if the kernel did not take all of them; the rest follows later."""

    def answered(self, close: bool) -> None:
        """End the answer; close the connection if requested."""

    def cut(self) -> None:
        """Close immediately, in the middle of the answer."""


def request_of(completion: CompletionRequest) -> Request:
    """Request of the engine for a completion."""
    params = completion.params
    return Request(
        completion.tokens,
        completion.output_tokens,
        completion.script.tokens,
        params.cache_salt,
        params.reads_cache,
        # A requested length is known in advance, the end of the text only when it is sampled.
        ends_itself=completion.ends_itself and completion.output_tokens < completion.output_limit,
    )


@dataclass(slots=True, eq=False)
class Stream:
    """Answer in progress. Times are monotonic ns, 0 until reached."""

    completion: CompletionRequest
    request: Request
    events: CompletionEvents
    peer: Peer
    keep_alive: bool
    faults: Faults | None = None
    arrived_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0  # end of the step of its last output
    over: bool = False
    interval: int = 1  # least tokens of an event after the first
    index: int = 0  # tokens written
    written: int = 0  # events written
    plain_left: int = 0  # next events that `write_plain` may write
    pending: int = 0  # output tokens of ended steps in the queue of the front end
    held: int = 0  # output tokens due but held
    hold_ns: int = 0  # no event is written before this time
    pooled: bool = False  # a text that is only read: its one output is no token, and is not written
    others: "Sequence[Stream]" = ()  # of the same request

    def allow_plain(self) -> None:
        """Allow `write_plain` for the next events as long as they are plain."""
        if self.completion.params.stream and self.faults is None:
            last = self.request.output_tokens - 1
            self.plain_left = max(0, min(self.events.plain_until(self.index), last) - self.index)

    def write_plain(self) -> bool:
        """Write the next event, of one token. Return False if the kernel did not take all of its bytes."""
        taken = self.peer.write(self.events.plain_token(self.index))
        self.index += 1
        self.written += 1
        self.plain_left -= 1
        return taken

    def timings(self) -> Timings:
        """Timings of a complete answer in ms, as vLLM reports them."""
        admitted_ns = self.request.admitted_ns
        inference_ms = (self.last_ns - admitted_ns) / 1e6
        generation_ms = (self.last_ns - self.first_ns) / 1e6
        tokens = self.completion.output_tokens
        return {
            "time_to_first_token_ms": (self.first_ns - admitted_ns) / 1e6,
            "generation_time_ms": generation_ms,
            "queue_time_ms": (admitted_ns - self.request.queued_ns) / 1e6,
            "mean_itl_ms": generation_ms / (tokens - 1) if tokens > 1 else None,
            "tokens_per_second": tokens / inference_ms * 1000 if inference_ms > 0 else None,
        }

    def count(self, metrics: Metrics) -> None:
        """Count a complete answer. Aborted ones are not counted, as in vLLM 0.32."""
        admitted_ns = self.request.admitted_ns
        metrics.finished["stop" if self.completion.ends_itself else "length"] += 1
        metrics.queue.observe((admitted_ns - self.request.queued_ns) / 1e9)
        metrics.prefill.observe((self.first_ns - admitted_ns) / 1e9)
        metrics.decode.observe((self.last_ns - self.first_ns) / 1e9)
        metrics.e2e.observe((self.last_ns - self.arrived_ns) / 1e9)

    def piece(self, first: int, count: int, last: bool) -> bytes:
        """Bytes of tokens [first, first + count); empty before the end if the answer is not streamed."""
        if self.pooled:
            return b""
        cached = self.request.cached_tokens or 0
        if not self.completion.params.stream:
            if not last:
                return b""
            return reply_bytes(json_reply(self.events.document(cached, self.timings())), self.keep_alive)
        data = self.events.role() if first == 0 else b""
        if not last:
            return data + self.events.token(first, count)
        return data + self.events.last_token(first, count) + self.events.closing(cached, self.timings())
