"""The first request of a run, before its load: the answer decides whether and in what form the run's requests can be sent.

It has a body of the run, with the lowest limit of the answer that the server accepts. It determines the path of the API, and the
field that limits an answer. Only a refusal ends a run: if the server is busy, or answers in an unexpected form, the run starts and
its own figures show this. A second turn, with a history, ends the run only if the refusal names the history.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import gevent
import msgspec

from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.errors import UsageError
from inferload.client import gateways
from inferload.client.client import Client, ClientSettings, Credentials
from inferload.client.connection.target import Target
from inferload.client.endpoints.dialect import DIALECTS
from inferload.client.requests.bodies import BodySettings, BodyWriter, Texts
from inferload.client.turn_record import SessionCookies, TurnRequest, TurnResult
from inferload.scenario.schema.endpoints import ENDPOINTS, LIMITS, OF_TEXTS, Endpoint, EndpointName, MaxTokensField
from inferload.scenario.schema.request import RequestOptions
from inferload.turns.record import BUSY_4XX, Failure, TurnRecord
from inferload.workload.content.prompts import approximate
from inferload.workload.isolation import Isolation
from inferload.workload.plan.first_asks import PLAIN

logger = logging.getLogger(__name__)

KEY_HINT = "set the key with --api-key-file or OPENAI_API_KEY"

# Limits of the answer: some models take no fewer than 16 tokens; None: the limit of the run.
_LIMITS = (1, 16, None)
_AGAIN_S = (1.0, 2.0, 4.0, 8.0)  # pauses before further attempts at a busy server
_PATIENCE_NS = 10 * NS_PER_S  # before a line says that a server, such as one that loads its model, is waited for
_DETAIL_CHARS, _SHOWN_CHARS = 4096, 400
# Statuses by which servers and gateways answer at a path that they do not have.
_NO_PATH = (401, 403, 404, 405, 410, 421, 501)
_NOT_THERE = (404, 405, 501)
_UNREACHABLE = (Failure.CONNECT, Failure.TLS, Failure.TIMEOUT_CONNECT, Failure.BAD_HTTP, Failure.CLIENT_ERROR)

Reaction = Literal["served", "no path", "refused", "busy", "doubtful", "unreachable"]


class RefusedError(UsageError):
    """A refusal of a first request, which the server has read."""


class NoStreamsError(UsageError):
    """No streamed answer of a server that has endpoints without streams. `endpoints`: those that answer."""

    def __init__(self, text: str, endpoints: tuple[EndpointName, ...]) -> None:
        super().__init__(text)
        self.endpoints = endpoints


@dataclass(slots=True)
class SentTurns:
    """Requests sent to a server before the load, and what it answered. Tokens of answers without counts are missing."""

    requests: int = 0
    served: int = 0  # of these: streamed answers, complete or not
    input_tokens: int = 0
    output_tokens: int = 0
    finish_reasons: bool = False  # one of the answers had a finish reason
    gateway: str = ""  # proxy, gateway or router, from the headers of the answers

    def add(self, record: TurnRecord, headers: Mapping[str, str]) -> None:
        """Add the record of a request, and the headers of its answer."""
        self.gateway = gateways.named(headers) or self.gateway
        self.requests += 1
        self.served += record.status == 200 and record.failure is not Failure.NOT_SSE
        self.input_tokens += record.input_tokens or 0
        self.output_tokens += record.output_tokens or 0
        self.finish_reasons |= record.finish_reason is not None


@dataclass(frozen=True, slots=True)
class FirstTurn:
    """Body of a first request, and the options that it was made with. `whole`: the answer has the limit of the run."""

    document: Mapping[str, Any]
    request: RequestOptions
    headers: tuple[tuple[str, str], ...] = ()
    hint: str = ""  # about the model, for a refusal
    whole: bool = False
    cookies: SessionCookies = field(default_factory=SessionCookies)

    @property
    def form(self) -> bytes:
        """The body without its length of answer: requests of one form are taken or refused alike."""
        own_key = DIALECTS[self.request.endpoint].limit_key(self.request)
        return self.body(own_key, own_key, _LIMITS[0])

    def body(self, key: str, own_key: str, limit: int | None) -> bytes:
        """Return the body with another key of its limit, and at most `limit` tokens of answer; None: those of the run."""
        document = {key if name == own_key else name: value for name, value in self.document.items()}
        if limit is not None:
            own = [key] if key else []
            for name in [name for name in LIMITS if type(document.get(name)) is int] or own:
                document[name] = min(document.get(name, limit), limit)
            for name, value in document.items():
                if name.startswith("min_") and name.endswith("tokens") and type(value) is int:
                    document[name] = min(value, limit)
        return msgspec.json.encode(document)


@dataclass(frozen=True, slots=True)
class Proof:
    """Form in which a server accepts the requests of a run. `warning`: why it did not answer the first one, "" if it did."""

    target: Target
    key: str  # field that limits the length of an answer
    limit: int | None  # lowest accepted limit in tokens, of those tried; None: the run's limit
    warning: str = ""
    answer: TurnResult | None = None  # None: it did not answer
    turn: FirstTurn | None = None  # as answered


def prove(settings: ClientSettings, turn: FirstTurn, sent: SentTurns) -> Proof:
    """Send the first request until the server answers it, and return the form that it accepts.

    Raise RefusedError if the server refuses the request, and another UsageError if it cannot take any.
    """
    return _FirstRequest(settings, turn, sent).result()


def try_history(settings: ClientSettings, turn: FirstTurn, sent: SentTurns) -> str:
    """Send a turn with a history to a server that answered the first one; return why it did not answer it, "" if it did.

    Raise RefusedError if the server refuses the history.
    """
    own_key, limits, pauses_s = DIALECTS[settings.endpoint].limit_key(turn.request), [*_LIMITS], [*_AGAIN_S]
    url, kept = settings.target.url_of(ENDPOINTS[settings.endpoint]), "previous_response_id" in turn.document
    while True:
        answer = send(settings, turn, turn.body(own_key, own_key, limits[0]), sent)
        reaction = reaction_to(answer, turn.document)
        if reaction == "served":
            return ""
        from inferload.client import refusals  # few servers refuse anything

        unknown = kept and (answer.record.status == 404 or refusals.refused_keys(answer.detail, ("store",)))
        if _judged(answer) and (unknown or refusals.names_history(answer.detail)):
            remedy = refusals.STORE_REMEDY if kept else refusals.HISTORY_REMEDY
            raise RefusedError(f"{url}: a turn with a history is refused: {_text(answer)}; {remedy}")
        if reaction == "refused" and len(limits) > 1:
            del limits[0]
        elif reaction == "busy" and pauses_s:
            _await(url, answer, pauses_s)
        else:
            return f"{url}: a turn with a history had no answer: {_text(answer)}"


@dataclass(slots=True)
class _FirstRequest:
    given: ClientSettings
    turn: FirstTurn
    sent: SentTurns
    settings: ClientSettings = field(init=False)  # with the current reading of the address
    key: str = ""
    limits: list[int | None] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=lambda: [*_AGAIN_S])
    missed: TurnResult | None = None  # answer at the first reading of the address, if it has no API there
    readings: list[Target] = field(default_factory=list)  # of the address: from the current one on
    tried: list[str] = field(default_factory=list)  # URLs without an API
    refused: TurnResult | None = None  # answer to the first key of the limit, if it does not mention the other

    def result(self) -> Proof:
        self.settings = self.given
        own_key = DIALECTS[self.settings.endpoint].limit_key(self.turn.request)
        self._begin(own_key)
        self.readings = _readings(self.settings)
        while True:
            answer = send(self.settings, self.turn, self.turn.body(self.key, own_key, self.limits[0]), self.sent)
            reaction = reaction_to(answer, self.turn.document)
            if reaction == "served":
                return Proof(self.settings.target, self.key, self.limits[0], answer=answer, turn=self.turn)
            if reaction == "refused":
                self._yield_to(answer)
            elif reaction == "busy" and self.pauses_s:
                _await(self._url, answer, self.pauses_s)
            elif reaction == "no path" or (self.missed is not None and self.settings.target.whole):
                self._read_otherwise(answer)
            elif reaction == "unreachable":
                raise self._error(answer)
            else:
                warning = f"{self._url}: the first request had no answer: {_text(answer)}"
                return Proof(self.settings.target, self.key, self.limits[0], warning)

    def _begin(self, key: str) -> None:
        """Set the key of the limit, with all limits to try."""
        self.key, self.limits = key, [*_LIMITS] if self._endpoint.streamed and not self.turn.whole else [None]

    @property
    def _endpoint(self) -> Endpoint:
        return ENDPOINTS[self.settings.endpoint]

    @property
    def _url(self) -> str:
        return self.settings.target.url_of(self._endpoint)

    def _read_otherwise(self, answer: TurnResult) -> None:
        """Take the next reading of the address. Raise UsageError with the answer at the first one if none is left."""
        self.missed = self.missed or answer
        self.tried.append(self._url)
        del self.readings[0]
        if not self.readings:
            raise self._error(self.missed)
        self.settings = replace(self.settings, target=self.readings[0])

    def _yield_to(self, answer: TurnResult) -> None:
        """Change the request after a refusal: the key of its limit, or the limit. Raise UsageError if nothing is left."""
        from inferload.client import refusals  # of few servers

        other = self._other_key()
        if other is not None and refusals.suggests(answer.detail, other):
            self._begin(other)
        elif len(self.limits) > 1:
            del self.limits[0]
        elif other is not None and refusals.refused_keys(answer.detail, self.turn.document) in ((self.key,), ()):
            self.refused = answer
            self._begin(other)
        else:
            raise RefusedError(str(self._error(self.refused or answer)))

    def _other_key(self) -> MaxTokensField | None:
        """Return the other key of the limit of a chat completion, if the run may use it and it was not tried."""
        endpoint = ENDPOINTS[self.settings.endpoint]
        free = endpoint.max_completion_tokens and self.turn.request.max_tokens_field == "auto"
        return "max_completion_tokens" if free and self.key == "max_tokens" else None

    def _error(self, answer: TurnResult) -> UsageError:
        url, text, others = self._url, _text(answer), self.tried
        if self.missed is answer:
            url, *others = self.tried
        if others:
            text += f" (and none at {' and '.join(others)})"
        if self._endpoint.streamed and answer.record.status in _NOT_THERE:
            endpoints = tuple(name for name in OF_TEXTS if _takes_texts(self.given, name, self.sent))
            if endpoints:
                head = f"{url}: a pooling server: {', '.join(endpoints)} answer, without streams, and this does not ({text})"
                return NoStreamsError(f"{head}; choose a scenario of texts, such as embeddings", endpoints)
        remedy = self._remedy(answer)
        streamed = "streamed " if self._endpoint.streamed else ""
        return UsageError(f"{url}: no {streamed}answer from model {self.settings.model}: {text}; {remedy}")

    def _remedy(self, answer: TurnResult) -> str:
        from inferload.client import refusals  # of few servers

        if answer.record.status in (401, 403):
            return key_hint(self.settings.credentials)
        if answer.record.status is not None and 300 <= answer.record.status < 400:
            return "give the address that it leads to with --host"
        if answer.record.failure is Failure.NOT_SSE:
            return "give the address of an OpenAI-compatible API with --host, and let `stream: true` pass to it"
        named = refusals.remedy(answer.detail, self.turn.document, self.turn.request)
        if answer.record.status in _NO_PATH and named != refusals.REMEDIES["model"]:
            named = ""  # the server has not read the body
        if named in ("", refusals.REMEDIES["model"]):
            named = self.turn.hint or named
        return named or "see the server's log"


def key_hint(credentials: Credentials) -> str:
    """Return what to do about a refused request: set a key, or correct it."""
    return KEY_HINT if credentials.api_key is None else f"correct it in {credentials.source}"


def _takes_texts(settings: ClientSettings, endpoint: EndpointName, sent: SentTurns) -> bool:
    """Return True if a server answers a request of texts."""
    request = RequestOptions.model_validate({"endpoint": endpoint})
    writer = BodyWriter(Texts(approximate(), 0), BodySettings(settings.model, request), Isolation())
    first = FirstTurn(msgspec.json.decode(writer.body(PLAIN)), request)
    answer = send(replace(settings, endpoint=endpoint), first, first.body("", "", None), sent)
    return reaction_to(answer, first.document) == "served"


def _readings(settings: ClientSettings) -> list[Target]:
    """Return the readings of an address with different URLs of the endpoint, the likely one first, the address as it is last."""
    target = settings.target
    by_path: dict[str, Target] = {}
    for reading in (target,) if target.whole else (target, target.other_reading, target.as_given):
        by_path.setdefault(reading.path_to(ENDPOINTS[settings.endpoint]), reading)
    return [*by_path.values()]


def reaction_to(answer: TurnResult, sent: Mapping[str, Any]) -> Reaction:
    """Return how a server reacted to a request with this body."""
    failure, status = answer.record.failure, answer.record.status
    if failure is None or (failure is Failure.EMPTY and answer.record.texts is None):
        # The first token of a stream may be a special one without text.
        return "served"
    from inferload.client import refusals  # of few servers

    if failure in _UNREACHABLE:
        return "unreachable"
    if status in _NO_PATH or failure in (Failure.HTTP_OTHER, Failure.NOT_SSE):
        return "no path"
    if (failure is Failure.HTTP_4XX and status not in BUSY_4XX) or (
        # A gateway passes a refusal on as an error of its own, or in a stream.
        (failure is Failure.SERVER_ERROR or status == 500) and refusals.names_an_option(answer.detail, sent)
    ):
        return "refused"
    busy = failure in (Failure.HTTP_429, Failure.HTTP_5XX) or status in BUSY_4XX
    return "busy" if busy or (failure is Failure.CUT and status is None) else "doubtful"


def _judged(answer: TurnResult) -> bool:
    """Return whether the text of a failure is about the request: a refusal, or an error of the server's own code."""
    failure, status = answer.record.failure, answer.record.status
    refused = failure is Failure.HTTP_4XX and status not in (401, 403, *BUSY_4XX)
    return refused or failure is Failure.SERVER_ERROR or status in (500, 501)


def _await(url: str, answer: TurnResult, pauses_s: list[float]) -> None:
    """Wait for the next of the pauses of a busy server."""
    if len(pauses_s) == len(_AGAIN_S):
        logger.warning("%s: %s; trying again for %g s", url, _text(answer), sum(_AGAIN_S))
    gevent.sleep(pauses_s.pop(0))


def _text(answer: TurnResult) -> str:
    from inferload.client import refusals  # of few servers

    text = refusals.text_of(answer.detail)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def send(settings: ClientSettings, first: FirstTurn, body: bytes, sent: SentTurns) -> TurnResult:
    client = Client(replace(settings, worker="preflight", detail_chars=_DETAIL_CHARS), lambda _result: None)
    cookies, names = first.cookies if first.request.cookies else None, ("preflight", "preflight", 0, "preflight")
    request = TurnRequest(body, *names, "warmup", now_ns(), headers=first.headers, cookies=cookies, keep=True)
    turn = client.start(request)
    try:
        if not turn.wait_until(now_ns() + _PATIENCE_NS):
            logger.info("%s: no answer to the first request yet: waiting for it", settings.target.url)
        result = turn.wait()
        sent.add(result.record, turn.headers)
        return result
    finally:
        client.give_up_all()  # if this greenlet is killed
        turn.wait()
        client.close()
