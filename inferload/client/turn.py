"""One streamed turn: the request goes out, the reply is stamped as it comes, and a record is what is left.

The stream is not owned by the greenlet that asked for it: a user who is stopped, or a greenlet that is killed, leaves the turn
to finish and to be recorded.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import gevent
import msgspec
import numpy as np
from gevent.event import Event

from inferload.client.answers.event_stream import EventStream, Scan
from inferload.client.answers.sse import SseError
from inferload.client.answers.stream_answer import Answer
from inferload.client.connection.connect import DialError
from inferload.client.connection.deferred_parser import Pump
from inferload.client.connection.http1 import ChunkError, Http1Error
from inferload.client.connection.reply import AnyConnection, Arrivals, ConnectionLost, Reply
from inferload.client.connection.target import Target
from inferload.content.messages import ToolCall
from inferload.measure.clock import NS_PER_S, now_ns
from inferload.measure.record import CANCELLED, Failure, Phase, TurnRecord

_DETAIL_BYTES = 4096  # kept of an error's body: the client redacts it before it cuts it to a line
_ERROR_BYTES = 1 << 20  # a refusal is not read on beyond that
_LOOK_NS = _QUIET_NS = NS_PER_S // 4


class TurnRequest(msgspec.Struct, frozen=True, gc=False):
    """What is to be sent, and whose it is. `planned_ns` is on this process's monotonic clock."""

    body: bytes
    turn_id: str
    session_id: str
    turn_index: int
    class_name: str
    phase: Phase
    planned_ns: int
    max_tokens: int | None = None
    step: int | None = None
    pause: Literal["think", "tool"] | None = None  # what the session did since its turn before
    final: bool | None = False  # whether the session ends with the answer; None: unless that calls a tool
    headers: tuple[tuple[str, str], ...] = ()  # of this turn alone; they win over the client's
    model: str = ""  # "": the client's


class TurnResult(msgspec.Struct, frozen=True, gc=False):
    """The record, what the model said (for live history), and in words what went wrong ("" where nothing did)."""

    record: TurnRecord
    text: str
    detail: str
    reads_unstamped: int = 0  # reads that carried no kernel stamp that could be believed
    reasoning: str = ""  # what it thought before it spoke, where the server keeps that apart
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits of one turn in seconds; a turn that passes one has failed with the class of that name."""

    connect_s: float = 10.0
    first_event_s: float = 600.0
    between_events_s: float = 120.0
    turn_s: float = 3600.0


class Owner(Protocol):
    """What a turn needs of the client that runs it."""

    @property
    def target(self) -> Target: ...
    @property
    def model(self) -> str: ...
    @property
    def worker(self) -> str: ...
    @property
    def timeouts(self) -> Timeouts: ...
    @property
    def pump(self) -> Pump: ...
    @property
    def without_secrets(self) -> Callable[[str], str]: ...
    @property
    def scan(self) -> Scan | None: ...
    def idle_connection(self) -> AnyConnection | None: ...
    def dial(self) -> AnyConnection: ...
    def keep(self, connection: AnyConnection) -> None: ...
    def request_bytes(self, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> bytes: ...
    def new_answer(self) -> Answer: ...
    def recorded(self, turn: Turn) -> None: ...
    def never_sent(self, request: TurnRequest, detail: str) -> TurnResult: ...


class Turn:
    """A turn under way. `wait` blocks the calling greenlet until it is recorded."""

    def __init__(self, client: Owner, request: TurnRequest) -> None:
        self.request = request
        self.result: TurnResult | None = None
        self.started_ns = now_ns()
        self.look_ns = 0  # when to ask next whether it is overdue
        self.queued = False  # waits in the pump
        self._client = client
        self._recorded = Event()
        self._connection: AnyConnection | None = None
        self._sender: gevent.Greenlet | None = None
        self._attempts = 0
        self._connect_ns: int | None = None
        self._ended_ns: int | None = None  # when we gave it up; None where the reply ended by itself
        self._failure: Failure | None = None
        self._cancelled = False
        self._detail = ""
        self._begin_attempt()

    def wait(self) -> TurnResult:
        """The result, once the turn is over."""
        self._recorded.wait()
        assert self.result is not None
        return self.result

    def wait_until(self, at_ns: int) -> bool:
        """Wait for the turn's end, but not beyond an instant; whether it is over."""
        return bool(self._recorded.wait(max(0, at_ns - now_ns()) / NS_PER_S))

    def cancel(self) -> None:
        """The caller goes away: no failure, but no whole answer either. Harmless when the turn is over already."""
        if self._reply.done or self.result is not None:
            return
        self._cancelled, self._ended_ns = True, now_ns()
        if self._sender is not None:
            self._sender.kill(block=False)
        self._reply.finish(complete=False)

    def give_up(self, failure: Failure, detail: str) -> None:
        """End the turn now, whatever it is doing; harmless when it is over already."""
        if self._reply.done or self.result is not None:
            return
        self._failure, self._detail, self._ended_ns = failure, detail, now_ns()
        if self._sender is not None:
            self._sender.kill(block=False)
        self._reply.finish(complete=False)

    def overdue(self, at_ns: int) -> tuple[Failure, str] | None:
        """The time-out that the turn has run into, if any; asks for parsing first where that could tell.

        `look_ns` is when it is worth asking again.
        """
        limits, self.look_ns = self._client.timeouts, at_ns + _LOOK_NS
        turn_left_ns = self.started_ns + round(limits.turn_s * NS_PER_S) - at_ns
        if turn_left_ns < 0:
            return Failure.TIMEOUT_TURN, f"not over after {limits.turn_s:g} s"
        if self._sent_ns is None:
            return None
        seen_ns = self._answer.last_event_ns
        silent_ns = at_ns - (seen_ns or self._sent_ns)
        shorter_s = min(limits.first_event_s, limits.between_events_s)
        if silent_ns > shorter_s * NS_PER_S and self._reply.waiting:
            self.digest()
            return None
        limit_s = limits.first_event_s if seen_ns is None else limits.between_events_s
        if silent_ns <= limit_s * NS_PER_S:
            quiet_left_ns = round(shorter_s * NS_PER_S) - silent_ns
            self.look_ns = at_ns + max(0, min(turn_left_ns, quiet_left_ns))
            return None
        if seen_ns is None:
            return Failure.TIMEOUT_FIRST_EVENT, f"no event within {limit_s:g} s"
        return Failure.TIMEOUT_BETWEEN_EVENTS, f"no event for {limit_s:g} s"

    def digest_if_due(self, at_ns: int) -> None:
        """Have the pump parse what is there, where that is much or nothing followed it for a while: the end may be in it."""
        reply = self._reply
        there = reply.body_bytes
        if there > reply.digest_bytes or (there and at_ns - (reply.last_ns or at_ns) > _QUIET_NS):
            self.digest()

    def digest(self) -> None:
        """Have the pump parse what is there."""
        if not self.queued:
            self.queued = True
            self._client.pump.add(self)

    # -- sending

    def _begin_attempt(self) -> None:
        self._attempts += 1
        self._reply = Reply(self._on_reply_done)
        self._answer = self._client.new_answer()
        self._stream = EventStream(self._answer, self._client.scan)
        self._delays = array("q")
        self._unstamped = 0
        self._head_checked = False
        self._refused = False  # the body is not a stream of events, but says why there is none
        self._error_body = b""
        self._error_bytes = 0
        self._arrived_ns: int | None = None
        self._sent_ns: int | None = None
        self._written_ns: int | None = None
        connection = self._client.idle_connection()
        if connection is None:
            self._sender = gevent.spawn(self._dial, self._reply)
        else:
            self._send(connection)

    def _dial(self, reply: Reply) -> None:
        begun_ns = now_ns()
        try:
            connection = self._client.dial()
        except DialError as error:
            self._failure, self._detail = error.failure, error.why
            reply.finish(complete=False)
            return
        self._connect_ns = now_ns() - begun_ns
        if reply.done:  # given up while we dialled
            connection.close()
        else:
            self._send(connection)

    def _send(self, connection: AnyConnection) -> None:
        """Send the request; a greenlet sees to what the kernel has no room for."""
        self._connection = connection
        request = self._client.request_bytes(self.request.body, self.request.headers)
        self._reply = reply = connection.expect(self._on_reply_done, self.digest)
        reply.floor_ns = self._sent_ns = now_ns()
        try:
            rest = connection.offer(request)
        except OSError as error:  # a reply that is there already, a refusal say, counts for more
            reply.finish(complete=False, error=error)
            return
        if rest:
            self._sender = gevent.spawn(self._send_rest, connection, rest, reply)
        else:
            self._written_ns = now_ns()

    def _send_rest(self, connection: AnyConnection, rest: bytes | memoryview, reply: Reply) -> None:
        try:
            connection.send_rest(rest)
        except OSError as error:
            reply.finish(complete=False, error=error)
        else:
            self._written_ns = now_ns()

    # -- the reply is over; runs in the event loop

    def _on_reply_done(self) -> None:
        connection = self._connection
        try:
            self._end_attempt()
        except Exception as error:  # noqa: BLE001  a fault of ours must not stop what reads for the other turns
            if connection is not None:
                connection.close()
            self.fail(error)

    def _end_attempt(self) -> None:
        reply, connection, self._connection = self._reply, self._connection, None
        if connection is not None:
            stale = reply.error is not None and reply.last_ns is None and connection.turns > 1 and self._failure is None
            connection.release()
            keep = reply.complete and reply.head is not None and reply.head.keep_alive and self._written_ns is not None
            if keep and not reply.surplus and not connection.closed:
                self._client.keep(connection)
            else:
                connection.close()
            if stale and self._attempts == 1:
                # The server closed an idle connection just as we used it: nothing was answered, so ask once more.
                self._begin_attempt()
                return
        if self._ended_ns is None:
            self._ended_ns = reply.last_ns if reply.complete else now_ns()
        self.digest()

    # -- parsing, by the pump

    def step(self) -> bool:
        """One slice of parsing; the last one makes the record."""
        reply = self._reply
        if reply.waiting:
            try:
                self._arrived(reply.body(self._stream.reads_per_slice))
            except (Http1Error, SseError) as error:
                self._fail(Failure.BAD_EVENT if isinstance(error, SseError) else Failure.BAD_HTTP, str(error))
                reply.finish(complete=False, error=error)
                reply.drop()
            if reply.waiting:
                return False
        if not self._answer.digest_ids():
            return False
        reply.parsed()
        self.queued = False
        if reply.done and reply is self._reply:
            self._record()
        return True

    def fail(self, error: Exception) -> None:
        """End the turn as a client error, recorded once; nothing where it has its record already."""
        if self.result is not None:
            return
        detail = f"{type(error).__name__}: {error}"
        self._failure, self._detail = Failure.CLIENT_ERROR, detail
        self._answer.token_ids = None  # what cannot be hashed must not be hashed again
        self.queued = True  # for good: the end of the reply asks for a step, and there is none left to do
        try:
            self._reply.finish(complete=False)
            result = self._made_result()
        except Exception:  # noqa: BLE001  the pump has logged the cause; the turn is counted in any case
            result = self._client.never_sent(self.request, detail)
        self._conclude(result)

    def _arrived(self, reads: Arrivals) -> None:
        self._delays.extend(reads.delay_ns)
        self._unstamped += reads.unstamped
        self._arrived_ns = reads.at_ns[-1]
        if not self._head_checked:
            self._check_head()
        if self._refused:
            self._refusal(reads.data)
            return
        self._stream.feed(self._reply, reads)

    def _refusal(self, data: bytes) -> None:
        """Keep the beginning of a body that says why there are no events."""
        self._error_bytes += len(data)
        try:
            body = self._reply.unframe(data)
        except ChunkError as error:
            self._error_body = (self._error_body + error.body)[:_DETAIL_BYTES]
            raise
        self._error_body = (self._error_body + body)[:_DETAIL_BYTES]
        if self._error_bytes > _ERROR_BYTES:
            self._reply.finish(complete=False)
            self._reply.drop()

    def _check_head(self) -> None:
        head = self._reply.head
        assert head is not None
        self._head_checked = True
        kind = head.headers.get("content-type", "text/event-stream").partition(";")[0].strip().lower()
        self._refused = head.status != 200 or kind != "text/event-stream"
        if head.status != 200:
            self._fail(_status_class(head.status), f"HTTP {head.status}")
        elif self._refused:
            self._fail(Failure.NOT_SSE, f"200, but {kind} instead of text/event-stream")

    def _fail(self, failure: Failure, detail: str) -> None:
        if self._failure is None:
            self._failure, self._detail = failure, detail

    # -- the record

    def _record(self) -> None:
        if self.result is not None:  # ended by a fault of ours while this waited in the pump
            return
        reply, answer = self._reply, self._answer
        if reply.head is not None and not self._head_checked:
            self._check_head()
        self._cancelled = self._cancelled and not answer.closed  # else the whole answer was there already
        if not self._cancelled:
            self._stream.finish(self._arrived_ns or now_ns())
        if self._failure is None and reply.error is not None and not answer.closed:
            self._fail(*_failure_of(reply.error))
        if self._failure is None:
            if not self._cancelled:
                answer.conclude(reply.complete)
            if answer.failure is not None:
                self._fail(answer.failure, answer.detail)
        self._finish()

    def _finish(self) -> None:
        self._conclude(self._made_result())

    def _conclude(self, result: TurnResult) -> None:
        self.result = result
        reply, self._sender = self._reply, None
        reply.drop()  # with the record made, nothing refers back to this turn: no work for the garbage collector
        self._recorded.set()
        self._client.recorded(self)

    def _made_result(self) -> TurnResult:
        detail = self._detail
        if self._error_body:
            detail += ": " + self._error_body.decode("utf-8", "replace").strip()
        answer = self._answer
        return TurnResult(
            self._turn_record(),
            "".join(answer.text),
            self._client.without_secrets(detail),
            self._unstamped,
            reasoning="".join(answer.reasoning),
            tool_calls=() if answer.tool_calls is None else answer.tool_calls.made(),
        )

    def _turn_record(self) -> TurnRecord:
        request, answer, head = self.request, self._answer, self._reply.head
        metrics, sent_ns = answer.metrics, self._sent_ns or 0
        complete = self._reply.complete and self._arrived_ns is not None
        closed_ns = self._arrived_ns if complete else self._ended_ns
        return TurnRecord(
            turn_id=request.turn_id,
            session_id=request.session_id,
            turn_index=request.turn_index,
            class_name=request.class_name,
            worker=self._client.worker,
            phase=request.phase,
            planned_ns=request.planned_ns,
            closed_ns=closed_ns if closed_ns is not None else now_ns(),
            sent_ns=self._sent_ns,
            written_ns=self._written_ns,
            first_event_ns=answer.first_event_ns,
            first_ns=answer.event_ns[0] if answer.event_ns else None,
            first_visible_ns=answer.first_visible_ns,
            last_ns=answer.event_ns[-1] if answer.event_ns else None,
            connect_ns=self._connect_ns,
            input_tokens=answer.input_tokens,
            output_tokens=answer.output_tokens,
            cached_tokens=answer.cached_tokens,
            event_ns=_since(sent_ns, answer.event_ns) if answer.event_ns else None,
            event_tokens=answer.tokens_by_event,
            block_hashes=answer.block_hashes(),
            delay_ns=self._delays or None,
            attempts=self._attempts,
            target=self._client.target.url,
            model=request.model or self._client.model,
            max_tokens=request.max_tokens,
            finish_reason=CANCELLED if self._cancelled else answer.finish_reason,
            request_id=answer.request_id,
            step=request.step,
            server_queue_ms=None if metrics is None else metrics.queue_time_ms,
            server_ttft_ms=None if metrics is None else metrics.time_to_first_token_ms,
            server_generation_ms=None if metrics is None else metrics.generation_time_ms,
            failure=self._failure,
            status=None if head is None else head.status,
            pause=request.pause,
            final=not self._cancelled and (not answer.tool_calls if request.final is None else request.final),
        )


def _since(start_ns: int, at_ns: array[int]) -> array[int]:
    offsets = array("q")
    offsets.frombytes((np.frombuffer(at_ns, dtype=np.int64) - start_ns).tobytes())
    return offsets


def _failure_of(error: Exception) -> tuple[Failure, str]:
    """The class and the detail of a turn whose reply ended with this error."""
    if isinstance(error, Http1Error):
        return Failure.BAD_HTTP, str(error)
    if isinstance(error, ConnectionLost | OSError):
        return Failure.CUT, str(error)
    return Failure.CLIENT_ERROR, f"{type(error).__name__}: {error}"


def _status_class(status: int) -> Failure:
    if status == 429:
        return Failure.HTTP_429
    return {4: Failure.HTTP_4XX, 5: Failure.HTTP_5XX}.get(status // 100, Failure.HTTP_OTHER)
