"""The client of one worker: connections kept alive, turns under way, time-outs, and who is told of each record."""

from collections.abc import Callable
from dataclasses import dataclass, field

import gevent
import msgspec

from inferload.client.answers.event_stream import scanner
from inferload.client.answers.registry import ANSWERS
from inferload.client.connection import reader_choice
from inferload.client.connection.connect import Dialer, TlsSettings, reader_thread
from inferload.client.connection.deferred_parser import Pump
from inferload.client.connection.http1 import request_head, with_body
from inferload.client.connection.redaction import Redaction
from inferload.client.connection.reply import AnyConnection
from inferload.client.connection.target import Target
from inferload.client.turn import Timeouts, Turn, TurnRequest, TurnResult
from inferload.measure.clock import now_ns
from inferload.measure.record import Failure, TurnRecord
from inferload.scenario.schema.endpoints import ENDPOINTS, Endpoint

__all__ = ["Client", "ClientSettings", "Credentials", "Timeouts", "standing_headers"]

_SWEEP_S = 0.25
_WAKES = 4
_DETAIL_CHARS = 300


@dataclass(frozen=True, slots=True)
class Credentials:
    """The key of the API. It stays in this process: no option, message, file or log carries it."""

    api_key: str | None = None

    def __repr__(self) -> str:
        return "Credentials(api_key=None)" if self.api_key is None else "Credentials(api_key='***')"

    def headers(self) -> dict[str, str]:
        """What a request carries to prove itself."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """All that a client needs to know of its server."""

    target: Target
    model: str
    worker: str = "w0"
    tls: TlsSettings = field(default_factory=TlsSettings)
    timeouts: Timeouts = field(default_factory=Timeouts)
    credentials: Credentials = field(default_factory=Credentials)
    headers: tuple[tuple[str, str], ...] = ()
    endpoint: Endpoint = "chat"

    @property
    def redaction(self) -> Redaction:
        """What removes the key, the headers' values and the proxies' passwords from texts."""
        return Redaction.of(self.credentials.api_key, self.headers)


class Client:
    """Runs turns against one target. `on_turn` is called from the event loop with each result, and must be quick."""

    def __init__(self, settings: ClientSettings, on_turn: Callable[[TurnResult], None]) -> None:
        self.target = settings.target
        self.model = settings.model
        self.worker = settings.worker
        self.timeouts = settings.timeouts
        self._thread = None if settings.target.scheme == "https" else reader_thread(gevent.get_hub().loop)
        self.pump = Pump(gevent.get_hub().loop, wakes=1 if self._thread is None else _WAKES)
        self._redact = settings.redaction
        self.new_answer = ANSWERS[settings.endpoint]
        self._on_turn = on_turn
        self.scan = scanner()
        self._dialer = Dialer(settings.target, settings.tls, settings.timeouts.connect_s, self._thread)
        self._idle: list[AnyConnection] = []
        self._live: set[Turn] = set()
        self._head = _head_maker(settings, self._dialer.request_path_prefix)
        self._sweeper = gevent.get_hub().loop.timer(_SWEEP_S, _SWEEP_S)
        self._sweeper.start(self._sweep)

    def start(self, request: TurnRequest) -> Turn:
        """Send a turn now; it is under way when this returns."""
        turn = Turn(self, request)
        self._live.add(turn)
        return turn

    def never_sent(self, request: TurnRequest, detail: str) -> TurnResult:
        """What there is to be said of a turn that could not be made, by a fault of ours."""
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
            target=self.target.url,
            model=request.model or self.model,
            max_tokens=request.max_tokens,
            step=request.step,
            failure=Failure.CLIENT_ERROR,
            pause=request.pause,
        )
        return TurnResult(record, "", self.without_secrets(detail))

    def without_secrets(self, detail: str) -> str:
        """What went wrong, redacted, and only then cut to a length for a log."""
        return self._redact(detail)[:_DETAIL_CHARS]

    @property
    def reader(self) -> reader_choice.ReaderName:
        """What takes the tokens off the sockets; TLS is Python's."""
        return "python" if self._thread is None else "native"

    @property
    def in_flight(self) -> int:
        """Turns begun and not recorded yet."""
        return len(self._live)

    def pauses(self) -> list[tuple[int, int]] | None:
        """The newest times, from and until, at which nobody read; None where that is when the event loop stood still."""
        return None if self._thread is None else self._thread.raw.pauses()

    def give_up_all(self) -> None:
        """End every turn under way as unfinished."""
        for turn in list(self._live):
            turn.give_up(Failure.UNFINISHED, "the run ended before the answer did")

    def close(self) -> None:
        """Close idle connections and leave the loop. Call it when nothing is in flight."""
        self._sweeper.stop()
        self._sweeper.close()
        self.pump.close()
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        if self._thread is not None:
            self._thread.close()

    # -- for Turn

    def idle_connection(self) -> AnyConnection | None:
        """The connection used last that is still open."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
            connection.close()  # the peer has closed it, and we had not heard
        return None

    def dial(self) -> AnyConnection:
        """A new connection; DialError where there is none."""
        return self._dialer.dial()

    def keep(self, connection: AnyConnection) -> None:
        """Take back a connection that can carry another turn."""
        self._idle.append(connection)

    def request_bytes(self, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> bytes:
        """The whole request of a turn; `headers` are the turn's own."""
        return self._head(body, headers)

    def recorded(self, turn: Turn) -> None:
        """A turn is over and has its result."""
        self._live.discard(turn)
        assert turn.result is not None
        turn.result = self._redacted(turn.result)
        self._on_turn(turn.result)

    def _redacted(self, result: TurnResult) -> TurnResult:
        """The result without secrets in the texts of its record: a server may echo them as a name or an id."""
        record, changes = result.record, {}
        for name in ("model", "finish_reason", "request_id"):
            text = getattr(record, name)
            if text and (clean := self._redact(text)) != text:
                changes[name] = clean
        if not changes:
            return result
        return msgspec.structs.replace(result, record=msgspec.structs.replace(record, **changes))

    def _sweep(self) -> None:
        at_ns = now_ns()
        for turn in list(self._live):
            try:
                if self._thread is None:  # a thread that reads says itself when there is much, or the end
                    turn.digest_if_due(at_ns)
                if at_ns >= turn.look_ns and (overdue := turn.overdue(at_ns)) is not None:
                    turn.give_up(*overdue)
            except Exception as error:  # noqa: BLE001  the loop stops a timer that raises, and with it all time-outs
                turn.fail(error)


def standing_headers(settings: ClientSettings) -> dict[str, str]:
    """The headers that every request of a client carries; a person's own come last and win."""
    headers = {
        "Host": settings.target.authority,
        "User-Agent": "inferload",
        "Accept-Encoding": "identity",  # a compressed stream would hide when a token came
        **settings.credentials.headers(),
    }
    return with_headers(headers, settings.headers)


def with_headers(headers: dict[str, str], more: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """The headers with others put on top: of two of one name, however it is written, the later one stays."""
    for name, value in more:
        headers = {kept: old for kept, old in headers.items() if kept.lower() != name.lower()}
        headers[name] = value
    return headers


def _head_maker(settings: ClientSettings, prefix: str) -> Callable[[bytes, tuple[tuple[str, str], ...]], bytes]:
    headers = {"Accept": "text/event-stream", "Content-Type": "application/json", **standing_headers(settings)}
    path = prefix + settings.target.api + ENDPOINTS[settings.endpoint].path
    standing = request_head("POST", path, headers)

    def head(body: bytes, own: tuple[tuple[str, str], ...]) -> bytes:
        return with_body(request_head("POST", path, with_headers(headers, own)) if own else standing, body)

    return head
