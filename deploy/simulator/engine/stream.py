"""Answer in progress: due times and bytes of its events."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..answers.completion_events import CompletionEvents
from ..answers.usage import Timings
from ..core.request import Request
from ..metrics.engine_metrics import FinishedRequest
from ..protocol.completion_request import CompletionRequest
from ..protocol.http import LAST_CHUNK, chunk, json_reply, reply_bytes
from .chaos import Faults


class Peer(Protocol):
    """Connection of an answer."""

    def write(self, data: bytes) -> bool:
        """Send bytes. Return False if the kernel did not take all of them; the rest follows later."""

    def answered(self, close: bool) -> None:
        """End the answer; close the connection if requested."""

    def cut(self) -> None:
        """Close immediately, in the middle of the answer."""


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
    last_index: int = 0  # index of the last output token
    over: bool = False
    index: int = 0  # tokens written
    written: int = 0  # events written
    plain_left: int = 0  # next events that `write_plain` may write
    pending: int = 0  # output tokens of ended steps in the queue of the front end
    held: int = 0  # output tokens due but held
    hold_ns: int = 0  # no event is written before this time
    pooled: bool = False  # a text that is only read: its one output is no token, and is not written
    others: "Sequence[Stream]" = ()  # of the same request

    def __post_init__(self) -> None:
        self.last_index = self.request.output_tokens - 1

    def allow_plain(self) -> None:
        """Allow `write_plain` for the next events as long as they are plain."""
        if self.completion.stream and self.faults is None:
            self.plain_left = max(0, min(self.events.plain_until(self.index), self.last_index) - self.index)

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

    def finished(self) -> FinishedRequest:
        """Values of a complete answer for the metrics."""
        admitted_ns = self.request.admitted_ns
        return FinishedRequest(
            queue_s=(admitted_ns - self.request.queued_ns) / 1e9,
            prefill_s=(self.first_ns - admitted_ns) / 1e9,
            decode_s=(self.last_ns - self.first_ns) / 1e9,
            e2e_s=(self.last_ns - self.arrived_ns) / 1e9,
            reason="stop" if self.completion.ends_itself else "length",
        )

    def piece(self, first: int, count: int, last: bool) -> bytes:
        """Bytes of tokens [first, first + count); empty before the end if the answer is not streamed."""
        if self.pooled:
            return b""
        if not self.completion.stream:
            return reply_bytes(json_reply(self._document()), self.keep_alive) if last else b""
        data = self.events.role() if first == 0 else b""
        if not last:
            return data + self.events.token(first, count)
        closing = self.events.closing(self.request.cached_tokens or 0, self.timings())
        return data + self.events.last_token(first, count) + closing

    def _document(self) -> dict[str, Any]:
        return self.events.document(self.request.cached_tokens or 0, self.timings())

    def error_end(self, document: Any) -> bytes:
        """Error event and end of the body."""
        return chunk(f"data: {json.dumps(document)}\n\ndata: [DONE]\n\n".encode()) + LAST_CHUNK
