"""One streamed turn, from the request to its record.

A turn is independent of the greenlet that started it: it is finished and recorded even if the user is stopped or the greenlet is
killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

import gevent
from gevent.event import Event

from inferload.base.clock import NS_PER_S
from inferload.client.answers.answer import Answer, Frames
from inferload.client.answers.event_stream import ReplyParser
from inferload.client.answers.sse import SseError
from inferload.client.connection.connect import DialError
from inferload.client.connection.deferred_parser import ParseQueue
from inferload.client.connection.error_log import ErrorLog
from inferload.client.connection.http1 import Http1Error
from inferload.client.connection.reply import AnyConnection, CertificateRefused, ConnectionLost, HttpReply
from inferload.client.connection.tcp_info import ConnectionEnd
from inferload.client.retry import RequestInFlight, crossed_by_close
from inferload.client.turn_record import SessionCookies, TurnRequest, TurnResult, answer_digest, turn_record
from inferload.scenario.schema.request import Timeouts
from inferload.turns.record import Failure
from inferload.turns.remarks import Remark
from inferload.workload.content.messages import sendable

_CHECK_NS = _QUIET_NS = NS_PER_S // 4
_BODY_END_NS = NS_PER_S // 50  # time from the end marker within which the body must end for the connection to be reused


class TurnState(Enum):
    """Progress of a turn. A retry on a new connection leads from IN_FLIGHT back to CONNECTING."""

    CONNECTING = "connecting"
    IN_FLIGHT = "in flight"  # the request is being sent, or is sent; the reply is being received
    ENDED = "ended"  # nothing more is received; the rest of the reply is parsed
    RECORDED = "recorded"  # the result is available


class TurnHost(Protocol):
    """The client as seen by its turns."""

    url: str
    model: str
    worker: str
    timeouts: Timeouts
    parse_queue: ParseQueue

    @property
    def now_ns(self) -> Callable[[], int]: ...
    @property
    def without_secrets(self) -> Callable[[str], str]: ...

    frames: Frames

    def idle_connection(self) -> AnyConnection | None: ...
    def dial(self) -> AnyConnection: ...
    def keep(self, connection: AnyConnection) -> None: ...
    def close_idle_since(self, kept_ns: int) -> None: ...
    def request_bytes(self, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> bytes: ...

    answer_digests: bool
    finish_reasons: bool
    server_header: str | None
    session_token_header: str | None
    cookie_url: str

    def new_answer(self) -> Answer: ...
    def recorded(self, turn: Turn) -> None: ...

    parser_errors: ErrorLog


class Turn:
    """A started turn. `wait` blocks the calling greenlet until it is recorded."""

    def __init__(self, client: TurnHost, request: TurnRequest) -> None:
        self.request = request
        self.cookies = request.cookies
        self.state = TurnState.CONNECTING
        self.result: TurnResult | None = None
        self.started_ns = client.now_ns()
        self.next_check_ns = 0  # time of the next check for timeouts
        self.queued = False  # the turn is in the parse queue
        self._was_overdue = False  # at the latest check
        self._client = client
        self._recorded = Event()
        self._connection: AnyConnection | None = None
        self._sender: gevent.Greenlet | None = None
        self._attempts = 0  # requests of which a byte was sent
        self._undelivered = 0  # of these: of which the server received no byte
        self._crossed: AnyConnection | None = None  # connection whose close crossed the first request
        self._sent_ns: int | None = None  # of the first attempt
        self._connect_ns: int | None = None
        self._round_trip_ns: int | None = None
        self._ended_ns: int | None = None  # time of the end of the reply, or of its cancellation
        self._cancelled = False
        self._given_up: tuple[Failure, str] | None = None
        self._begin_attempt()

    def wait(self) -> TurnResult:
        """Block until the turn is recorded; return its result."""
        self._recorded.wait()
        assert self.result is not None
        return self.result

    def wait_until(self, at_ns: int) -> bool:
        """Block until the turn is recorded, or until `at_ns`; return True if it is recorded."""
        return bool(self._recorded.wait(max(0, at_ns - self._client.now_ns()) / NS_PER_S))

    def cancel(self) -> None:
        """End the turn as cancelled, which is no failure. No effect on a turn that has ended."""
        if self.state in (TurnState.ENDED, TurnState.RECORDED):
            return
        self._cancelled = True
        self._abort()

    def give_up(self, failure: Failure, detail: str) -> None:
        """End the turn as failed. No effect on a turn that has ended."""
        if self.state in (TurnState.ENDED, TurnState.RECORDED):
            return
        self._given_up = failure, detail
        self._abort()

    def overdue(self, at_ns: int) -> tuple[Failure, str] | None:
        """Return the timeout that the turn exceeds in two successive checks, if any. Sets `next_check_ns`.

        At the first check after a pause of the process, the reply may not be read yet.
        """
        self.next_check_ns = at_ns + _CHECK_NS
        exceeded = self._exceeded(at_ns)
        confirmed, self._was_overdue = self._was_overdue, exceeded is not None
        return exceeded if confirmed else None

    def _exceeded(self, at_ns: int) -> tuple[Failure, str] | None:
        """Return the exceeded timeout, if any, after queueing unparsed reads that may contain an event or the end."""
        if self._parser.answer.closed:
            return None
        limits = self._client.timeouts
        end_ns = self.started_ns + round(limits.turn_s * NS_PER_S)
        turn_left_ns = end_ns - at_ns
        if turn_left_ns < 0:
            if self._parses_until(end_ns):
                return None
            return Failure.TIMEOUT_TURN, f"not over after {limits.turn_s:g} s"
        if self._sent_ns is None:
            return None
        event_ns = self._parser.answer.last_event_ns
        since_ns = event_ns or self._sent_ns
        silent_ns = at_ns - since_ns
        shorter_s = min(limits.first_event_s, limits.between_events_s)
        limit_s = limits.first_event_s if event_ns is None else limits.between_events_s
        if silent_ns > shorter_s * NS_PER_S and self._parses_until(since_ns + round(limit_s * NS_PER_S)):
            return None
        if silent_ns <= limit_s * NS_PER_S:
            quiet_left_ns = round(shorter_s * NS_PER_S) - silent_ns
            self.next_check_ns = at_ns + max(0, min(turn_left_ns, quiet_left_ns))
            return None
        if event_ns is None:
            return Failure.TIMEOUT_FIRST_EVENT, f"no event within {limit_s:g} s"
        return Failure.TIMEOUT_BETWEEN_EVENTS, f"no event for {limit_s:g} s"

    def _parses_until(self, limit_ns: int) -> bool:
        """Queue unparsed reads, if any may have arrived by an instant; return True if so."""
        if (self._parser.arrived_ns or 0) > limit_ns or not self._reply.fetch_waiting():
            return False
        self.queue_parsing()
        return True

    @property
    def hides_marks(self) -> bool:
        """True if the reader of the connection cannot see the end of the answer."""
        return self._reply.hides_marks

    def queue_parsing_if_due(self, at_ns: int) -> None:
        """Queue the unparsed reads if they are large, or if nothing followed them for a while: they may contain the end."""
        reply = self._reply
        unparsed = reply.body_bytes
        if unparsed > reply.parse_bytes or (unparsed and at_ns - (reply.last_ns or at_ns) > _QUIET_NS):
            self.queue_parsing()

    def queue_parsing(self) -> None:
        """Add the turn to the parse queue, unless it is there."""
        if not self.queued:
            self.queued = True
            self._client.parse_queue.add(self)

    def _abort(self) -> None:
        """Stop sending and receiving."""
        self._ended_ns = self._client.now_ns()
        if self._sender is not None:
            self._sender.kill(block=False)
        self._reply.finish(complete=False)

    # -- sending

    def _begin_attempt(self, *, on_new_connection: bool = False) -> None:
        self.state = TurnState.CONNECTING
        answer = self._client.new_answer()
        answer.keeping = self.request.keep and bool(answer.keeps)
        self._parser = ReplyParser(answer, self._client.frames)
        self._taken = False  # the kernel has taken a byte of the request
        self._in_pieces = False
        self._written_ns: int | None = None
        if not self._attempts:
            self._sent_ns = None
        connection = None if on_new_connection else self._client.idle_connection()
        if connection is None:
            self._reply = HttpReply(self._on_reply_done)
            self._sender = gevent.spawn(self._dial, self._reply)
        else:
            self._send(connection)

    def _dial(self, reply: HttpReply) -> None:
        begun_ns = self._client.now_ns()
        try:
            connection = self._client.dial()
        except DialError as error:
            self._parser.fail(error.failure, error.why)
            reply.finish(complete=False)
            return
        if self._sent_ns is None:  # later it is a part of the time since then
            self._connect_ns = self._client.now_ns() - begun_ns
        if reply.done:  # the turn was ended during the connect
            connection.close()
        else:
            connection.refresh()  # a connection that has ended again fails its turn
            self._send(connection)

    def _send(self, connection: AnyConnection) -> None:
        """Send the request; a greenlet sends the rest if the socket buffer is full."""
        self.state = TurnState.IN_FLIGHT
        self._connection = connection
        self._round_trip_ns = connection.info.round_trip_ns
        headers = self.request.headers
        if (cookies := self.request.cookies) is not None and cookies.jar is not None:
            headers = (*cookies.jar.headers(self._client.cookie_url), *headers)  # own ones replace them
        request = self._client.request_bytes(self.request.body, headers)
        self._reply = reply = connection.expect(self._on_reply_done, self.queue_parsing)
        reply.floor_ns = at_ns = self._client.now_ns()
        if not self._attempts:
            self._sent_ns = at_ns
        try:
            rest = connection.offer(request)
        except OSError as error:  # an error reply that has arrived already takes precedence
            reply.finish(complete=False, error=connection.cause_of(error))
            return
        self._taken = True
        self._attempts += 1
        if rest:
            self._in_pieces = True
            self._sender = gevent.spawn(self._send_rest, connection, rest, reply)
        else:
            self._written_ns = self._client.now_ns()

    def _send_rest(self, connection: AnyConnection, rest: bytes | memoryview, reply: HttpReply) -> None:
        try:
            connection.send_rest(rest)
        except OSError as error:
            reply.finish(complete=False, error=error if connection.closed else connection.cause_of(error))
        else:
            if reply is self._reply:  # else the request is being sent again
                self._written_ns = self._client.now_ns()

    # -- end of the reply, in the event loop

    def _on_reply_done(self) -> None:
        reply, connection, self._connection = self._reply, self._connection, None
        if connection is not None:
            is_broken = reply.error is not None and self._parser.failure is None
            send_again = is_broken and self._is_crossed(reply, connection)
            connection.release()
            whole = reply.complete and not reply.left_open and not reply.surplus
            keep = whole and reply.head is not None and reply.head.keep_alive and self._written_ns is not None
            if keep and not connection.closed:
                self._client.keep(connection)
            elif self._crossed is not connection:
                connection.close()
            if send_again:
                # The server has probably closed the connections that were idle for longer as well, and the client may not know yet.
                self._client.close_idle_since(connection.kept_ns)
                self._begin_attempt(on_new_connection=True)
                return
        if self._crossed is not None:  # by now the server's kernel has answered the request
            self._undelivered += self._crossed.is_rejected()
            self._crossed.close()
            self._crossed = None
        if self._ended_ns is None:
            self._ended_ns = reply.last_ns if reply.complete and not reply.left_open else self._client.now_ns()
        self.state = TurnState.ENDED
        self.queue_parsing()

    def _is_crossed(self, reply: HttpReply, connection: AnyConnection) -> bool:
        """Return True if the server may have closed the idle connection before the request arrived: it is sent again."""
        end = connection.end_by_peer()
        if end is None and isinstance(reply.error, OSError):  # a byte could not be sent
            end = ConnectionEnd(self._client.now_ns())
        if end is None:
            return False
        written_ns = self._written_ns
        request = RequestInFlight(
            earlier_requests=connection.turns - 1,
            earlier_attempts=self._attempts - self._taken,
            received=reply.last_ns is not None,
            is_begun=self._taken,
            is_written=written_ns is not None,
            # The process may have paused between the only write and its stamp.
            last_byte_ns=written_ns if self._in_pieces and written_ns is not None else reply.floor_ns,
            round_trip_ns=self._round_trip_ns,
        )
        if not crossed_by_close(request, end):
            return False
        if request.is_written and end.answered_ns is not None and end.is_unacknowledged:
            self._crossed = connection  # kept until the server's kernel has accepted or rejected the request
        return True

    # -- parsing, by the parse queue

    def step(self) -> bool:
        """Parse one slice of the reads; create the record after the last one. Return True if no read is left."""
        reply, parser = self._reply, self._parser
        if reply.fetch_waiting():
            self._parse(parser.feed, reply, reply.body(parser.stream.reads_per_slice))
            if reply.fetch_waiting():
                return False
        self.queued = False
        if self.state is TurnState.ENDED:
            self._finish_parsing()
        else:
            self._leave_open_body()
        return True

    def _parse(self, parse: Callable[..., None], *parts: Any) -> None:
        """Pass parts of the reply to the parser. If it raises, the turn fails."""
        reply, parser = self._reply, self._parser
        try:
            parse(*parts)
        except Exception as error:  # noqa: BLE001  no answer of a server may end the event loop's work for other turns
            failure, detail = _failure_of(error)
            if failure is Failure.CLIENT_ERROR:
                self._client.parser_errors.log("an answer could not be parsed", error)
            parser.fail_as_the_answer()
            if not parser.answer.closed or failure is Failure.CLIENT_ERROR:
                parser.fail(failure, detail)
            reply.finish(complete=False, error=error)
            reply.drop()

    def _leave_open_body(self) -> None:
        """End the turn if its answer was complete some time ago: the server or a proxy keeps the body open.

        The end of a body may have been read after the event loop's last poll: it is reported at the next one.
        """
        parser, answer = self._parser, self._parser.answer
        if not parser.stream.is_closing or self._reply.is_over:
            return
        quiet_ns = self._client.now_ns() - _BODY_END_NS
        if not answer.closed:
            if parser.arrived_ns is None or parser.arrived_ns > quiet_ns:
                self._reply.watch_end()
                return
            self._parse(parser.stream.close_if_whole, parser.arrived_ns)
        if not answer.closed:  # half an event: more bytes decide
            self._reply.watch_next()
        elif (answer.last_event_ns or 0) > quiet_ns:
            self._reply.watch_end()
        else:
            answer.remark(
                Remark.OPEN_BODY, f"the body did not end within {_BODY_END_NS // 1_000_000} ms of {answer.end_marker}"
            )
            self._reply.leave_open()

    # -- the record

    def _finish_parsing(self) -> None:
        reply, parser, answer = self._reply, self._parser, self._parser.answer
        self._cancelled = self._cancelled and not answer.closed  # else the answer was complete already
        parser.fail_as_the_answer()  # it explains what a timeout after it shows
        if not (self._cancelled or answer.closed):
            self._parse(parser.stream.finish, parser.arrived_ns or self._client.now_ns())
        if self._given_up is not None and not (answer.closed and self._given_up[0] is Failure.UNFINISHED):
            parser.fail(*self._given_up)
        if reply.error is not None and not answer.closed:
            parser.fail(*_failure_of(reply.error))
        self._parse(parser.end, reply)
        answer.asked(self.request.body)
        self._parse(answer.settle, self._client.frames.begins)
        if parser.failure is None:
            if not self._cancelled:
                answer.conclude(reply.complete, self._client.finish_reasons)
            parser.fail_as_the_answer()
        self._conclude(self._build_result())

    def _conclude(self, result: TurnResult) -> None:
        if lines := self._header("set-cookie"):  # texts do not have them, whether or not they go back
            self.cookies = self.cookies or SessionCookies()
            self.cookies.take(self._client.cookie_url if self.request.cookies else "", lines)
        self.state, self.result = TurnState.RECORDED, result
        reply, self._sender = self._reply, None
        reply.drop()  # removes the references back to this turn, so that no cycle is left for the garbage collector
        self._recorded.set()
        self._client.recorded(self)

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the reply, names in lower case."""
        head = self._reply.head
        return {} if head is None else head.headers

    def _header(self, name: str | None) -> str:
        """Return a header of the reply; "" if it has none."""
        return "" if name is None else self.headers.get(name, "")

    def _build_result(self) -> TurnResult:
        reply, parser, client = self._reply, self._parser, self._client
        answer = parser.answer
        is_whole = reply.complete and not reply.left_open
        over_ns = parser.arrived_ns if is_whole and parser.arrived_ns is not None else self._ended_ns
        over_ns = self._client.now_ns() if over_ns is None else over_ns
        # What follows the end marker is no part of the answer.
        closed_ns = over_ns if not answer.closed or answer.last_event_ns is None else answer.last_event_ns
        calls = () if answer.tool_calls is None else answer.tool_calls.calls(self.request.turn_id)
        text, reasoning = "".join(answer.text), sendable("".join(answer.reasoning))
        native = b"" if parser.failure is not None else answer.native(calls)
        record = turn_record(
            self.request,
            answer,
            self._sent_ns,
            cancelled=self._cancelled,
            worker=client.worker,
            target=client.url,
            model=self.request.model or client.model,
            attempts=self._attempts - self._undelivered,
            connect_ns=self._connect_ns,
            round_trip_ns=self._round_trip_ns,
            written_ns=self._written_ns,
            closed_ns=closed_ns,
            delay_ns=parser.delays or None,
            status=None if reply.head is None else reply.head.status,
            server=client.without_secrets(self._header(client.server_header)) or None,
            failure=parser.failure,
            answer_digest=answer_digest(text, reasoning, calls) if client.answer_digests else None,
        )
        return TurnResult(
            record,
            text,
            client.without_secrets(parser.text),
            parser.unstamped,
            reasoning=reasoning,
            tool_calls=calls,
            native=native,
            over_ns=over_ns,
            session_token=self._header(client.session_token_header),
            response_id=answer.request_id or "",
            examples={remark: client.without_secrets(text) for remark, text in answer.remarks.items()},
        )


def _failure_of(error: Exception) -> tuple[Failure, str]:
    """Return failure class and detail for the error that ended a reply."""
    if isinstance(error, Http1Error):
        return Failure.BAD_HTTP, str(error)
    if isinstance(error, SseError):
        return Failure.BAD_EVENT, str(error)
    if isinstance(error, CertificateRefused):
        return Failure.TLS, str(error)
    if isinstance(error, ConnectionLost | OSError):
        return Failure.CUT, str(error)
    return Failure.CLIENT_ERROR, f"{type(error).__name__}: {error}"
