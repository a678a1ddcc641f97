"""Client of a server in memory: the turns of the load path, on a virtual clock and without sockets."""

import logging
import struct
from collections.abc import Callable
from functools import partial
from typing import cast

from greenlet import getcurrent

from inferload.base.clock import NS_PER_S
from inferload.client.answers.event_stream import scanner
from inferload.client.client import ClientSettings, standing_headers, with_headers
from inferload.client.connection.deferred_parser import ParseJob
from inferload.client.connection.error_log import ErrorLog
from inferload.client.connection.http1 import request_head, with_body
from inferload.client.connection.reply import AnyConnection, ConnectionLost, GatheredReply, HttpReply
from inferload.client.connection.tcp_info import TcpInfo
from inferload.client.endpoints.table import DIALECTS
from inferload.client.turn import Turn
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.turns.record import Failure

from ..simulator.in_memory import InMemoryServer
from .clock import VirtualClock, wait

logger = logging.getLogger(__name__)

_CHECK_NS = NS_PER_S // 4  # between two checks for timeouts, as in the client with sockets
_STAMP = struct.Struct("qq")


class _Connection:
    """Client's end of a connection in memory. Bytes arrive at the instant at which they are sent."""

    info = TcpInfo()

    def __init__(self, server: InMemoryServer, clock: VirtualClock) -> None:
        self.turns = 0
        self.kept_ns = 0
        self.closed = False
        self._clock = clock
        self._reply: GatheredReply | None = None
        self._end = server.connect(self._receive, self._lost)

    def expect(self, on_done: Callable[[], None], on_parse_due: Callable[[], None] | None = None, /) -> HttpReply:
        """Return the reply to the next request."""
        self.turns += 1
        self._reply = GatheredReply(on_done, on_parse_due)
        return self._reply

    def offer(self, data: bytes) -> bytes:
        """Send a request whole."""
        self._clock.at(self._clock.now_ns(), partial(self._end.send, data))
        return b""

    def send_rest(self, rest: bytes | memoryview) -> None:
        """Do nothing: `offer` leaves no rest."""

    def refresh(self) -> bool:
        """Return False if the server has closed the connection."""
        return not self.closed

    def end_by_peer(self) -> None:
        """Return None: no close crosses a request, since both arrive at the instant at which they are sent."""

    def release(self) -> None:
        """Detach the reply."""
        self._reply = None

    def close(self) -> None:
        """Close the connection; the server aborts an answer in progress."""
        if not self.closed:
            self.closed = True
            self._end.close()

    def _receive(self, data: bytes) -> None:
        if self._reply is not None:
            clock = self._clock
            at_ns, wall_ns = clock.now_ns(), clock.wall_ns()
            self._reply.take(data, at_ns, wall_ns, [(0, 0, _STAMP.pack(*divmod(wall_ns, NS_PER_S)))])

    def _lost(self) -> None:
        self.closed = True
        if self._reply is not None:
            self._reply.end(ConnectionLost("the server closed the connection"))


class _Jobs:
    """Parse jobs, each run at the instant at which it is added."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def add(self, job: ParseJob, /) -> None:
        """Run a job after the current call."""
        self._clock.at(self._clock.now_ns(), partial(_finish, job))


def _finish(job: ParseJob) -> None:
    while not job.step():
        pass


class VirtualClient:
    """Client of one server in memory (`TurnHost`). `on_turn` is called with the result of each turn."""

    def __init__(
        self,
        settings: ClientSettings,
        server: InMemoryServer,
        clock: VirtualClock,
        on_turn: Callable[[TurnResult], None],
    ) -> None:
        self.target, self.model, self.worker, self.timeouts = (
            settings.target,
            settings.model,
            settings.worker,
            settings.timeouts,
        )
        self.now_ns = clock.now_ns
        self.parse_queue = _Jobs(clock)
        self.parser_errors = ErrorLog(logger)
        self.scan = scanner()
        self.finish_reasons = settings.finish_reasons
        self.server_header = self.session_token_header = None
        self.new_answer = DIALECTS[settings.endpoint].answer
        self.in_flight: set[Turn] = set()
        self._server = server
        self._clock = clock
        self._on_turn = on_turn
        self._idle: list[AnyConnection] = []
        self._waiting: dict[Turn, Callable[[], object]] = {}
        accepted = {"Accept": "text/event-stream", "Content-Type": "application/json"}
        self._headers = {**accepted, **standing_headers(settings)}
        self._path = settings.target.path_to(ENDPOINTS[settings.endpoint])
        self._checking = False

    def send(self, request: TurnRequest, cancel_ns: int | None = None) -> TurnResult:
        """Send a turn, and block the calling greenlet until it is recorded. `cancel_ns`: instant of its cancellation."""
        turn = Turn(self, request)
        self.in_flight.add(turn)
        self._waiting[turn] = getcurrent().switch
        if cancel_ns is not None:
            self._clock.at(cancel_ns, turn.cancel)
        if not self._checking:
            self._checking = True
            self._clock.at(self._clock.now_ns() + _CHECK_NS, self._check)
        wait()
        assert turn.result is not None
        return turn.result

    def give_up_all(self) -> None:
        """End every turn in flight as unfinished."""
        for turn in list(self.in_flight):
            turn.give_up(Failure.UNFINISHED, "the run ended before the answer did")

    # -- for Turn

    def idle_connection(self) -> AnyConnection:
        """Return an open connection."""
        while self._idle:
            if not (connection := self._idle.pop()).closed:
                return connection
        return cast(AnyConnection, _Connection(self._server, self._clock))

    def dial(self) -> AnyConnection:
        """Return a new connection."""
        return cast(AnyConnection, _Connection(self._server, self._clock))

    def keep(self, connection: AnyConnection) -> None:
        """Add a connection to the idle ones."""
        self._idle.append(connection)

    def close_idle_since(self, kept_ns: int) -> None:
        """Close all idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def request_bytes(self, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> bytes:
        """Return the request of a turn with its additional headers."""
        return with_body(request_head("POST", self._path, with_headers(self._headers, headers)), body)

    def without_secrets(self, text: str) -> str:
        """Return a text: there are no secrets."""
        return text[:300]

    def recorded(self, turn: Turn) -> None:
        """Pass a result on, and resume the greenlet that waits for it."""
        self.in_flight.discard(turn)
        assert turn.result is not None
        self.finish_reasons |= turn.result.record.finish_reason is not None
        self._on_turn(turn.result)
        self._clock.at(self._clock.now_ns(), self._waiting.pop(turn))

    def _check(self) -> None:
        """End the turns that exceed a timeout."""
        at_ns = self._clock.now_ns()
        for turn in list(self.in_flight):
            if at_ns >= turn.next_check_ns and (overdue := turn.overdue(at_ns)) is not None:
                turn.give_up(*overdue)
        self._checking = bool(self.in_flight)
        if self._checking:
            self._clock.at(at_ns + _CHECK_NS, self._check)
