"""The client of one worker: keep-alive connections, turns in flight, timeouts, and the callback for results."""

import logging
from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from operator import attrgetter

import gevent
import msgspec

from inferload.base.clock import now_ns
from inferload.base.redaction import Redaction
from inferload.base.tls import TlsSettings
from inferload.client.answers.answer import Frames
from inferload.client.answers.event_stream import scanner
from inferload.client.connection import in_memory
from inferload.client.connection.connect import Dialer, reader_thread
from inferload.client.connection.deferred_parser import ParseQueue
from inferload.client.connection.error_log import ErrorLog
from inferload.client.connection.http1 import request_head, with_body
from inferload.client.connection.reply import AnyConnection
from inferload.client.connection.target import Target
from inferload.client.endpoints.dialect import DIALECTS
from inferload.client.turn import Turn
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.scenario.schema.endpoints import ENDPOINTS, EndpointName
from inferload.scenario.schema.request import Timeouts
from inferload.turns.record import CANCELLED, Failure, TurnRecord

logger = logging.getLogger(__name__)

_SWEEP_S = 0.25
_WAKES = 4
_MOST_CLEAN = 100


@dataclass(frozen=True, slots=True)
class Credentials:
    """API key. It stays in this process: no option, message, file or log contains it. `source`: where a user corrects it."""

    api_key: str | None = None
    source: str = "the file of --api-key-file, or in OPENAI_API_KEY"

    def __repr__(self) -> str:
        return "Credentials(api_key=None)" if self.api_key is None else "Credentials(api_key='***')"

    def headers(self) -> dict[str, str]:
        """Return the authentication headers of a request."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Address, model and connection settings of one server."""

    target: Target
    model: str
    worker: str = "w0"
    tls: TlsSettings = field(default_factory=TlsSettings)
    timeouts: Timeouts = field(default_factory=Timeouts)
    credentials: Credentials = field(default_factory=Credentials)
    headers: tuple[tuple[str, str], ...] = ()
    endpoint: EndpointName = "chat"
    server_header: str | None = None  # of an answer: the server that gave it
    session_token_header: str | None = None  # of an answer: to be sent with the next turns of the session
    answer_digests: bool = False  # a record has a digest of its answer
    finish_reasons: bool = False  # the answers of the server are known to have one
    detail_chars: int = 300  # longest text of a failure
    declared_models: tuple[str, ...] = ()  # by the user; a name that a server reports may be an echoed secret
    class_keys: Collection[str] = ()  # of the classes of a mix

    @property
    def redaction(self) -> Redaction:
        """Redaction of the key, the header values, the target's query and the proxy passwords, which spares the address."""
        return self.spared(Redaction.of(self.credentials.api_key, self.headers, self.target.query, self.class_keys))

    def spared(self, redaction: Redaction) -> Redaction:
        """Return a redaction that spares the address and the declared models."""
        return redaction.sparing((*self.target.addresses, *self.declared_models), self.declared_models)


class Client:
    """Client of one target. `on_turn` is called in the event loop with the result of each turn, and must not block."""

    now_ns = staticmethod(now_ns)

    def __init__(self, settings: ClientSettings, on_turn: Callable[[TurnResult], None]) -> None:
        self.target = settings.target
        self.url = settings.target.url
        self.model = settings.model
        self.worker = settings.worker
        self.timeouts = settings.timeouts
        self.endpoint = ENDPOINTS[settings.endpoint]
        self.new_answer = DIALECTS[settings.endpoint].answer
        marks = self.new_answer.marks
        self.reader = in_memory.reader_of(settings.target)
        loop, is_native = gevent.get_hub().loop, self.reader.reader == "native"
        self.parser_errors = ErrorLog(logger)
        self.parse_queue = ParseQueue(loop, wakes=_WAKES if is_native else 1)
        self._thread = reader_thread(loop, marks, self.parse_queue) if is_native else None
        self._redact = settings.redaction
        self._clean: set[tuple[str, str]] = set()  # fields and their values that repeat, and contain no secret
        self._detail_chars = settings.detail_chars
        self._on_turn = on_turn
        self.frames = Frames(scanner())
        self.finish_reasons = settings.finish_reasons
        self.answer_digests = settings.answer_digests
        self.server_header, self.session_token_header = (
            None if name is None else name.lower() for name in (settings.server_header, settings.session_token_header)
        )
        # URL of the requests, for their cookies; "" if the user has set the header.
        own_cookie = any(name.lower() == "cookie" for name, _value in settings.headers)
        self.cookie_url = "" if own_cookie else settings.target.origin + settings.target.path_to(self.endpoint)
        self._spared = settings.spared
        self._dialer = Dialer(settings.target, settings.tls, settings.timeouts.connect_s, self._thread, marks)
        self._idle: list[AnyConnection] = []
        self._live: set[Turn] = set()
        self._head = _head_maker(settings, self._dialer)
        self._sweeper = gevent.get_hub().loop.timer(_SWEEP_S, _SWEEP_S)
        self._sweeper.start(self._sweep)

    def start(self, request: TurnRequest) -> Turn:
        """Start a turn without waiting for its connection or reply."""
        turn = Turn(self, request)
        self._live.add(turn)
        return turn

    def never_sent(self, request: TurnRequest, detail: str) -> TurnResult:
        """Return the result of a turn that was not sent, a client error."""
        record = TurnRecord(
            turn_id=request.turn_id,
            session_id=request.session_id,
            turn_index=request.turn_index,
            class_name=request.class_name,
            worker=self.worker,
            phase=request.phase,
            planned_ns=request.planned_ns,
            closed_ns=now_ns(),
            attempts=0,
            target=self.url,
            model=request.model or self.model,
            max_tokens=request.max_tokens,
            step=request.step,
            failure=Failure.CLIENT_ERROR,
            pause=request.pause,
        )
        return TurnResult(record, "", self.without_secrets(detail))

    def without_secrets(self, detail: str) -> str:
        """Redact a text, then cut it to the length of a failure's text."""
        if not detail:
            return detail
        return self._redact(detail)[: self._detail_chars]

    @property
    def in_flight(self) -> int:
        """Number of turns that are started and not yet recorded."""
        return len(self._live)

    def pauses(self) -> list[tuple[int, int]] | None:
        """Return the latest pauses (start, end) of the reader thread; None if the event loop reads."""
        return None if self._thread is None else self._thread.raw.pauses()

    def give_up_all(self) -> None:
        """End every turn in flight as unfinished."""
        for turn in list(self._live):
            turn.give_up(Failure.UNFINISHED, "the run ended before the answer did")

    def close(self) -> None:
        """Close idle connections and unregister from the event loop. No turn may be in flight."""
        self._sweeper.stop()
        self._sweeper.close()
        self.parse_queue.close()
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        if self._thread is not None:
            self._thread.close()

    # -- for Turn

    def idle_connection(self) -> AnyConnection | None:
        """Return the most recently used open connection."""
        while self._idle:
            connection = self._idle.pop()
            if connection.refresh():
                return connection
            connection.close()  # closed by the peer
        return None

    def dial(self) -> AnyConnection:
        """Open a connection. Raise DialError if that fails."""
        return self._dialer.dial()

    def keep(self, connection: AnyConnection) -> None:
        """Add a connection to the idle ones."""
        connection.kept_ns = now_ns()
        self._idle.append(connection)

    def close_idle_since(self, kept_ns: int) -> None:
        """Close the connections that have been idle since then, or for longer."""
        stale = bisect_right(self._idle, kept_ns, key=attrgetter("kept_ns"))
        for connection in self._idle[:stale]:
            connection.close()
        del self._idle[:stale]

    def request_bytes(self, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> bytes:
        """Return the request of a turn with its additional headers."""
        return self._head(body, headers)

    def recorded(self, turn: Turn) -> None:
        """Remove a turn that has its result, and pass the result on."""
        self._live.discard(turn)
        assert turn.result is not None
        self.finish_reasons |= turn.result.record.finish_reason not in (None, CANCELLED)
        turn.result = self._redacted(turn.result)
        if (cookies := turn.cookies) is not None and cookies.jar is not None:
            turn.result = cookies.jar.masked(turn.result, self._spared)
        self._on_turn(turn.result)

    def _redacted(self, result: TurnResult) -> TurnResult:
        """Redact the texts of a record: a server may echo secrets as a name or an id."""
        record, changes = result.record, {}
        for name in ("model", "finish_reason", "request_id"):
            text = getattr(record, name)
            if not text or (name, text) in self._clean:
                continue
            redact = self._redact.value if name == "model" else self._redact
            if (clean := redact(text)) != text:
                changes[name] = clean
            elif name != "request_id" and len(self._clean) < _MOST_CLEAN:
                self._clean.add((name, text))
        if not changes:
            return result
        return msgspec.structs.replace(result, record=msgspec.structs.replace(record, **changes))

    def _sweep(self) -> None:
        at_ns = now_ns()
        for turn in list(self._live):
            if self._thread is None or turn.hides_marks:  # else the reader thread reports much data and the end
                turn.queue_parsing_if_due(at_ns)
            if at_ns >= turn.next_check_ns and (overdue := turn.overdue(at_ns)) is not None:
                turn.give_up(*overdue)


def standing_headers(settings: ClientSettings) -> dict[str, str]:
    """Return the headers of every request of a client; user-defined headers replace others of the same name."""
    headers = {
        "Host": settings.target.authority,
        "User-Agent": "inferload",
        "Accept-Encoding": "identity",  # compression would delay tokens
        **settings.credentials.headers(),
    }
    return with_headers(headers, settings.headers)


def with_headers(headers: dict[str, str], more: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return the headers with `more` added; the latter replace headers of the same name, regardless of case."""
    for name, value in more:
        headers = {other: text for other, text in headers.items() if other.lower() != name.lower()}
        headers[name] = value
    return headers


def _head_maker(settings: ClientSettings, dialer: Dialer) -> Callable[[bytes, tuple[tuple[str, str], ...]], bytes]:
    kind = "text/event-stream" if ENDPOINTS[settings.endpoint].streamed else "application/json"
    accepted = {"Accept": kind, "Content-Type": "application/json"}
    headers = {**accepted, **standing_headers(settings), **dialer.request_headers}
    path = dialer.request_path_prefix + settings.target.path_to(ENDPOINTS[settings.endpoint])
    standing = request_head("POST", path, headers)

    def head(body: bytes, own: tuple[tuple[str, str], ...]) -> bytes:
        return with_body(request_head("POST", path, with_headers(headers, own)) if own else standing, body)

    return head
