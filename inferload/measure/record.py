"""The turn record: what is kept of one request and its streamed answer.

A record holds instants and counts; every duration is derived from them by the one table in `measures`. What is not
known is None, never 0.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import msgspec

CANCELLED = "cancelled"  # the finish reason of a turn that its caller broke off

Phase = Literal["warmup", "measure", "drain"]
PHASES: tuple[Phase, ...] = ("warmup", "measure", "drain")

# The fields of a record that are instants, in the order in which a turn passes them, and what the server said of its own part.
INSTANTS = (
    "planned_ns",
    "sent_ns",
    "written_ns",
    "first_event_ns",
    "first_ns",
    "first_visible_ns",
    "last_ns",
    "closed_ns",
)
SERVER_TIMES = ("server_queue_ms", "server_ttft_ms", "server_generation_ms")


class Failure(StrEnum):
    """Why a turn did not end well: a closed list, so that failures can be counted over workers and runs."""

    CONNECT = "connect"  # no TCP connection: refused, unreachable, name not found, proxy refused
    TLS = "tls"  # certificate or handshake
    TIMEOUT_CONNECT = "timeout_connect"
    TIMEOUT_FIRST_EVENT = "timeout_first_event"
    TIMEOUT_BETWEEN_EVENTS = "timeout_between_events"
    TIMEOUT_TURN = "timeout_turn"
    HTTP_4XX = "http_4xx"  # 401, 404, 429 and so on stay apart by `status`
    HTTP_429 = "http_429"
    HTTP_5XX = "http_5xx"
    HTTP_OTHER = "http_other"  # a status that no completion may have: 1xx at the end, 3xx
    NOT_SSE = "not_sse"  # 200, but the answer is no event stream (an HTML page, say)
    BAD_EVENT = "bad_event"  # an event that is not the JSON of a completion, or one with a number out of range
    SERVER_ERROR = "server_error"  # {"error": ...} inside the stream, or an answer that the server says it broke off
    CUT = "cut"  # the stream ended before its end was said
    BAD_HTTP = "bad_http"  # the reply breaks HTTP/1.1
    EMPTY = "empty"  # a whole stream without one output token
    CLIENT_ERROR = "client_error"  # a fault of ours: never the server's
    REJECTED = "rejected"  # answered in full, and refused by the check of the task that asked
    UNFINISHED = "unfinished"  # still streaming when the run gave up waiting; neither ok nor failed


class TurnRecord(msgspec.Struct, frozen=True, gc=False):
    """One turn. Instants are monotonic nanoseconds of the worker that ran it; None where the turn never got there.

    `planned`: a session's first turn its arrival, a later turn the previous turn's `closed` + think time. `sent`: just
    before the first byte on a connected socket, of the last attempt. `written`: the whole request handed to the kernel.
    `first_event`: first SSE data event of any kind. `first`, `last`: first and last event that carried output.
    `first_visible`: first event with visible, non-reasoning content. `closed`: the reply ended, or the turn was given up.

    A struct and no dataclass: to make a frozen one of so many fields takes six times as long, and there is one for each turn.
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
    connect_ns: int | None = None  # duration of DNS + TCP + TLS when this turn opened a connection
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    event_ns: array[int] | None = None  # array('q'): each output event, offset from `sent`
    event_tokens: array[int] | None = None  # array('i'): tokens that each output event carried, where the server said
    # array('q'): of the whole row, prompt and answer, a hash of all its tokens up to each full block of 16; where asked for.
    block_hashes: array[int] | None = None
    delay_ns: array[int] | None = (
        None  # array('q'): per read, user-space read time - kernel receive stamp; not in the file
    )
    attempts: int = 1
    target: str = ""
    model: str = ""
    max_tokens: int | None = None
    finish_reason: str | None = None
    request_id: str | None = None
    step: int | None = None
    server_queue_ms: float | None = None
    server_ttft_ms: float | None = None
    server_generation_ms: float | None = None
    failure: Failure | None = None
    status: int | None = None
    pause: Literal["think", "tool"] | None = None  # what its session did since the turn before; None: it is the first
    final: bool = False  # its session is over with this answer

    @property
    def ok(self) -> bool:
        """Ended as its caller wanted: answered in full, or cancelled by the caller."""
        return self.failure is None

    @property
    def cancelled(self) -> bool:
        """Its caller went away, on purpose, before the answer's end: what spans the whole answer is not known of it."""
        return self.failure is None and self.finish_reason == CANCELLED

    @property
    def finished(self) -> bool:
        """Ok or failed, but not given up in flight."""
        return self.failure is not Failure.UNFINISHED

    @property
    def opens_session(self) -> bool:
        """First turn of a session; the first turn of a sub-agent is not: its session id has a path below its parent's."""
        return self.turn_index == 0 and "/" not in self.session_id

    @property
    def client_delay_max_ns(self) -> int | None:
        """The longest that a chunk of this turn waited in our process."""
        return max(self.delay_ns) if self.delay_ns else None


@dataclass(frozen=True, slots=True)
class PhaseWindow:
    """The half-open interval of one phase on a worker's monotonic clock; an end of None: it is not over yet.

    `step`: number of the step of the load that it is, where the measure phase has steps.
    """

    phase: Phase
    start_ns: int
    end_ns: int | None = None
    step: int | None = None

    def holds(self, at_ns: int) -> bool:
        """Whether the instant lies in this phase."""
        return self.start_ns <= at_ns and (self.end_ns is None or at_ns < self.end_ns)


def stepped(windows: Sequence[PhaseWindow], bounds_s: Sequence[float]) -> tuple[PhaseWindow, ...]:
    """The windows with the measure phase cut where each step begins; steps that would begin after its end are not there."""
    found: list[PhaseWindow] = []
    for window in windows:
        if window.phase != "measure" or not bounds_s:
            found.append(window)
            continue
        starts_ns = [window.start_ns + round(bound_s * 1e9) for bound_s in bounds_s]
        ends_ns: list[int | None] = [*starts_ns[1:], window.end_ns]
        for step, (start_ns, end_ns) in enumerate(zip(starts_ns, ends_ns, strict=True)):
            if step and window.end_ns is not None and start_ns >= window.end_ns:
                break
            last_ns = end_ns if window.end_ns is None or end_ns is None else min(end_ns, window.end_ns)
            found.append(PhaseWindow("measure", start_ns, last_ns, step))
    return tuple(found)
