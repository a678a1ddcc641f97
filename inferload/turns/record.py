"""Turn record: instants and counts of one request and its streamed answer.

All durations are derived from the instants by the table in `measures`. An unknown value is None, never 0.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import msgspec

from inferload.base.clock import NS_PER_S
from inferload.turns.remarks import Remark

CANCELLED = "cancelled"  # finish reason of a turn that its caller cancelled

SAMPLE = "#"  # in the session id of a sample of a group, before its number from 1
FIRST_SAMPLE = f"/{SAMPLE}1"

Phase = Literal["warmup", "measure", "drain"]
PHASES: tuple[Phase, ...] = ("warmup", "measure", "drain")

# Instants of a record, in the order of a turn's progress, and times that the server reported.
INSTANTS = (
    "planned_ns", "sent_ns", "written_ns", "first_event_ns", "first_ns", "first_visible_ns", "last_ns", "closed_ns",
)  # fmt: skip
SERVER_TIMES = ("server_queue_ms", "server_ttft_ms", "server_generation_ms")


class Failure(StrEnum):
    """Classes of failed turns."""

    CONNECT = "connect"  # no TCP connection: refused, unreachable, name not found, proxy refused
    TLS = "tls"  # certificate or handshake
    TIMEOUT_CONNECT = "timeout_connect"
    TIMEOUT_FIRST_EVENT = "timeout_first_event"
    TIMEOUT_BETWEEN_EVENTS = "timeout_between_events"
    TIMEOUT_TURN = "timeout_turn"
    HTTP_4XX = "http_4xx"  # counted by `status` too
    HTTP_429 = "http_429"
    HTTP_5XX = "http_5xx"
    HTTP_OTHER = "http_other"  # a status that is invalid for a completion: a final 1xx, 3xx
    NOT_SSE = "not_sse"  # 200, but the answer is not an event stream (for example an HTML page)
    BAD_EVENT = "bad_event"  # an event with damaged JSON, or one that is too long
    SERVER_ERROR = "server_error"  # {"error": ...} inside the stream, or an answer that the server reports as aborted
    CUT = "cut"  # the stream ended without its end marker, or without the finish reason that other answers of the server have
    BAD_HTTP = "bad_http"  # the reply violates HTTP/1.1
    EMPTY = "empty"  # a complete stream without an output token
    CLIENT_ERROR = "client_error"  # an error of inferload
    REJECTED = "rejected"  # a complete answer that the task's check rejected
    UNFINISHED = "unfinished"  # still streaming at the end of the drain; neither ok nor failed


BUSY_4XX = (408, 425)  # beside 429: not about the request


def refused_turns(by_failure: Mapping[str, int], by_status: Mapping[int, int] | Mapping[str, int]) -> int:
    """Return the turns that failed with a client error, as they do at any load: 4xx, but not 408, 425 and 429 of a busy server.

    `by_status` also counts unfinished turns: with one of 408 or 425 the result is too low, never too high.
    """
    busy = sum(count for status, count in by_status.items() if int(status) in BUSY_4XX)
    return max(0, by_failure.get(Failure.HTTP_4XX, 0) - busy)


class TurnRecord(msgspec.Struct, frozen=True, gc=False):
    """One turn. Instants are monotonic nanoseconds of its worker; None if the turn did not reach them.

    `planned`: arrival of the session for its first turn, else the previous turn's `closed` + think time. `sent`: just
    before the first byte on a connected socket, of the first attempt. `written`: the whole request handed to the kernel, of the
    last attempt.
    `first_event`: first SSE data event of any kind. `first`, `last`: first and last event with output. `first_visible`:
    first event with visible, non-reasoning content. Without a stream, `first_event` is the first byte
    of the answer and `last` its last one. `closed`: end of the reply, or of the wait for it.

    A struct, because the creation of a frozen dataclass with this many fields takes six times as long.
    """

    turn_id: str
    session_id: str
    turn_index: int
    class_name: str
    worker: str
    phase: Phase  # of `planned`
    planned_ns: int
    closed_ns: int
    sent_ns: int | None = None
    written_ns: int | None = None
    first_event_ns: int | None = None
    first_ns: int | None = None
    first_visible_ns: int | None = None
    last_ns: int | None = None
    connect_ns: int | None = None  # duration of DNS + TCP + TLS when this turn opened a connection before `sent`
    round_trip_ns: int | None = None  # smallest of the connection before the turn was sent, of the last attempt
    input_tokens: int | None = None
    output_tokens: int | None = None
    hidden_tokens: int | None = 0  # of the output tokens: those that no output event stands for; None: not known
    cached_tokens: int | None = None
    texts: int | None = None  # of a request whose answer is no stream
    event_ns: array[int] | None = None  # array('q'): each output event, offset from `sent`
    event_tokens: array[int] | None = None  # array('i'): tokens of each output event, by the server or by the texts
    delay_ns: array[int] | None = None  # array('q'): per read, read time - kernel receive timestamp; not in the file
    attempts: int = 1  # requests of which the server may have received a byte
    target: str = ""
    server: str | None = None  # that answered, by a header of the answer
    model: str = ""
    max_tokens: int | None = None
    finish_reason: str | None = None
    request_id: str | None = None
    answer_digest: str | None = None
    step: int | None = None
    server_queue_ms: float | None = None
    server_ttft_ms: float | None = None
    server_generation_ms: float | None = None
    failure: Failure | None = None
    status: int | None = None
    pause: Literal["think", "tool"] | None = None  # kind of the pause since the turn before; None: first turn
    final: bool = False  # the session ends with this answer
    remarks: tuple[Remark, ...] = ()  # not in the file

    @property
    def ok(self) -> bool:
        """True for a complete answer, and for a turn that its caller cancelled."""
        return self.failure is None

    @property
    def cancelled(self) -> bool:
        """True if the caller cancelled it before the end of the answer: it has no measure that spans the whole answer."""
        return self.failure is None and self.finish_reason == CANCELLED

    @property
    def finished(self) -> bool:
        """Ok or failed, but not unfinished."""
        return self.failure is not Failure.UNFINISHED

    @property
    def retries(self) -> int:
        """Requests of this turn after the first."""
        return max(0, self.attempts - 1)

    @property
    def opens_session(self) -> bool:
        """True for the first turn of a session, of a group of samples that of the first one; not of a sub-agent.

        The session ids of samples and sub-agents have a path.
        """
        return self.turn_index == 0 and ("/" not in self.session_id or self.session_id.endswith(FIRST_SAMPLE))

    @property
    def client_delay_max_ns(self) -> int | None:
        """Longest delay of a chunk of this turn in the client."""
        return max(self.delay_ns) if self.delay_ns else None


@dataclass(frozen=True, slots=True)
class PhaseWindow:
    """Half-open interval of one phase on a worker's monotonic clock. `end_ns`: None while it lasts.

    `step`: number of the step of the load, if the measure phase has steps.
    """

    phase: Phase
    start_ns: int
    end_ns: int | None = None
    step: int | None = None

    def holds(self, at_ns: int) -> bool:
        return self.start_ns <= at_ns and (self.end_ns is None or at_ns < self.end_ns)


def stepped(windows: Sequence[PhaseWindow], bounds_s: Sequence[float]) -> tuple[PhaseWindow, ...]:
    """Split the measure phase at the starts of its steps, without steps that would start after its end."""
    parts: list[PhaseWindow] = []
    for window in windows:
        if window.phase != "measure" or not bounds_s:
            parts.append(window)
            continue
        starts_ns = [window.start_ns + round(bound_s * NS_PER_S) for bound_s in bounds_s]
        ends_ns: list[int | None] = [*starts_ns[1:], window.end_ns]
        for step, (start_ns, end_ns) in enumerate(zip(starts_ns, ends_ns, strict=True)):
            if step and window.end_ns is not None and start_ns >= window.end_ns:
                break
            last_ns = end_ns if window.end_ns is None or end_ns is None else min(end_ns, window.end_ns)
            parts.append(PhaseWindow("measure", start_ns, last_ns, step))
    return tuple(parts)
