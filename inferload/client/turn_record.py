"""Request, result and record of one turn."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

import msgspec
import numpy as np

from inferload.base.clock import NS_PER_S
from inferload.base.on_use import OnUse
from inferload.client.answers.answer import Answer
from inferload.turns.record import CANCELLED, Failure, Phase, TurnRecord
from inferload.turns.remarks import Remark
from inferload.workload.content.messages import ToolCall
from inferload.workload.content.script import TurnReply

if TYPE_CHECKING:
    from inferload.client.cookies import Jar

_JAR = OnUse["type[Jar]"]({"session": "inferload.client.cookies:Jar"})

# Delay after a failed turn: without it, closed-loop users would send to a server that is down in a tight loop.
AFTER_FAILURE_NS = NS_PER_S

MOST_MAX_TOKENS = 2**31 - 1  # sums of any number of turns fit into 64 bits


class SessionCookies(msgspec.Struct):
    """Cookies of a session and its sub-agents. `jar`: None until an answer sets one."""

    jar: Jar | None = None

    def take(self, url: str, lines: str) -> None:
        """Take the Set-Cookie headers of an answer, one a line."""
        if self.jar is None:
            self.jar = _JAR["session"]()
        self.jar.take(url, lines)


class TurnRequest(msgspec.Struct, frozen=True, gc=False):
    """Request of one turn and its place in the workload. `planned_ns`: due time on the monotonic clock of this process."""

    body: bytes
    turn_id: str
    session_id: str
    turn_index: int
    class_name: str
    phase: Phase
    planned_ns: int
    max_tokens: int | None = None
    step: int | None = None
    pause: Literal["think", "tool"] | None = None  # kind of the pause since the session's previous turn
    final: bool | None = False  # True: the session ends with the answer; None: it ends unless the answer calls a tool
    headers: tuple[tuple[str, str], ...] = ()  # additional headers, which replace the client's of the same name
    model: str = ""  # "": the model of the client
    cookies: SessionCookies | None = None  # of the session; None: none go back
    keep: bool = False  # later requests carry the answer

    def __post_init__(self) -> None:
        """Raise ValueError for a limit that no column can hold."""
        limit = self.max_tokens
        if limit is not None and (type(limit) is not int or not 0 <= limit <= MOST_MAX_TOKENS):
            raise ValueError(f"max_tokens is {limit!r}; give a whole number up to {MOST_MAX_TOKENS:,}")


class TurnResult(msgspec.Struct, frozen=True, gc=False):
    """Record and answer of a turn. `detail`: text of the failure, "" if there is none."""

    record: TurnRecord
    text: str
    detail: str
    reads_unstamped: int = 0  # reads without a plausible kernel timestamp
    reasoning: str = ""  # reasoning text, if the server separates it
    tool_calls: tuple[ToolCall, ...] = ()
    native: bytes | None = b""  # of `Message`; None: the answer is too large to be kept for later requests
    session_token: str = ""  # to be sent with the next turns of the session
    response_id: str = ""  # as the server gave it
    examples: dict[Remark, str] = {}  # of each remark of the record
    over_ns: int = 0  # end of the body, or of the wait for it, from which on the session continues

    @property
    def free_ns(self) -> int:
        """Instant from which the session goes on: a failed turn delays it by AFTER_FAILURE_NS."""
        record = self.record
        return max(record.closed_ns, self.over_ns) if record.ok else record.closed_ns + AFTER_FAILURE_NS

    def reply(self) -> TurnReply:
        """Return the answer for the session's script."""
        return TurnReply(
            self.text,
            self.record.output_tokens,
            reasoning=self.reasoning,
            tool_calls=self.tool_calls,
            finish_reason=self.record.finish_reason,
            native=self.native or b"",
            response_id=self.response_id,
        )


class SentFields(TypedDict):
    """Fields of a record that neither its request nor its answer has; instants, and what it took, of the last attempt."""

    worker: str
    target: str
    model: str
    attempts: int
    connect_ns: int | None
    round_trip_ns: int | None
    written_ns: int | None
    closed_ns: int
    delay_ns: array[int] | None
    status: int | None
    server: str | None
    failure: Failure | None
    answer_digest: str | None


def turn_record(
    request: TurnRequest, answer: Answer, sent_ns: int | None, *, cancelled: bool, **others: Unpack[SentFields]
) -> TurnRecord:
    """Return the record of a turn. `sent_ns`: of the first attempt."""
    metrics, event_ns = answer.metrics, answer.event_ns
    return TurnRecord(
        turn_id=request.turn_id,
        session_id=request.session_id,
        turn_index=request.turn_index,
        class_name=request.class_name,
        phase=request.phase,
        planned_ns=request.planned_ns,
        max_tokens=request.max_tokens,
        step=request.step,
        pause=request.pause,
        sent_ns=sent_ns,
        first_event_ns=answer.first_event_ns,
        first_ns=event_ns[0] if event_ns else None,
        first_visible_ns=answer.first_visible_ns,
        last_ns=event_ns[-1] if event_ns else answer.whole_ns,
        input_tokens=answer.input_tokens,
        output_tokens=answer.output_tokens,
        hidden_tokens=None if answer.output_tokens is None else answer.hidden_tokens,
        cached_tokens=answer.cached_tokens,
        texts=answer.texts,
        event_ns=_since(sent_ns or 0, event_ns) if event_ns else None,
        event_tokens=answer.tokens_by_event,
        finish_reason=CANCELLED if cancelled else answer.finish_reason,
        request_id=answer.request_id,
        server_queue_ms=None if metrics is None else metrics.queue_time_ms,
        server_ttft_ms=None if metrics is None else metrics.time_to_first_token_ms,
        server_generation_ms=None if metrics is None else metrics.generation_time_ms,
        remarks=tuple(answer.remarks),
        final=not cancelled and (not answer.tool_calls if request.final is None else request.final),
        **others,
    )


def answer_digest(text: str, reasoning: str, calls: Sequence[ToolCall]) -> str:
    """Return a digest of an answer, of 16 hexadecimal digits. Ids of calls, which servers draw, are no part of it."""
    parts = [text, reasoning, [(call.name, call.arguments) for call in calls]]
    return blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()


def _since(start_ns: int, at_ns: array[int]) -> array[int]:
    """Return the same array with offsets from an instant: this is the last use of the instants of an answer."""
    offsets = np.frombuffer(at_ns, dtype=np.int64)
    np.subtract(offsets, start_ns, out=offsets)
    return at_ns
