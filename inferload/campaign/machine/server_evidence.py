"""Readings of a server, which `checks` judges: its pages, a streamed turn of 32 tokens and about two dozen of eight."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inferload.base.clock import NS_PER_S, now_ns, token_hex, wall_ns
from inferload.base.errors import UsageError
from inferload.campaign.machine.effects import (
    COUNTING,
    FIELDS,
    Asks,
    Effect,
    answered,
    effect_of,
    events_of,
    logprobs,
    of_stream,
    running_usage,
)
from inferload.client import gateways
from inferload.client.client import Client, ClientSettings
from inferload.client.connection.reader_choice import reader_of
from inferload.client.connection.target import Target
from inferload.client.fetch import Fetched, Fetcher, FetchError
from inferload.client.first_turn import FirstTurn, NoStreamsError, SentTurns, prove
from inferload.client.probe import ModelList, ServerFacts, facts_of, model_list, model_of
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.figures.pages import metric_names
from inferload.figures.pages.page_kinds import PageKind, of_engine
from inferload.figures.pages.page_names import kind_of, page_meanings
from inferload.figures.rate_figures import HELD_EVENTS, events_per_arrival
from inferload.figures.turn_figures import ITL
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.scenario.schema.request import RequestOptions
from inferload.servers import exposition
from inferload.turns.record import TurnRecord
from inferload.turns.sketch import Sketch
from inferload.turns.socket_reader import SocketReader

_STREAMED_TOKENS = 32  # that show how a stream arrives
_STREAMS = 3  # a proxy holds each of them, a busy machine only some
_ENOUGH_TOKENS = 16  # limit of an answer that every model takes
USUAL_LIMIT = "max_tokens"
_RUNNING = {"include_usage": True, "continuous_usage_stats": True}
_LONGEST_S = 30.0  # of a short turn; a server that ignores its limit does not end it
# Headers that most SDKs send. Some proxies compress, and so hold, the streams of such clients only.
SDK_HEADERS = (("Accept", "application/json"), ("Accept-Encoding", "gzip, deflate"))


@dataclass(frozen=True, slots=True)
class StreamLook:
    """Number of output events of one stream, mean gap, mean number that arrive together (both None without a gap), and tokens."""

    events: int = 0
    mean_gap_ms: float | None = None
    events_per_arrival: float | None = None
    tokens: int | None = None

    @classmethod
    def of(cls, record: TurnRecord) -> "StreamLook":
        """Return these figures for the stream of a turn."""
        gaps = Sketch()
        gaps.add_many(ITL.of(record))
        return cls(len(record.event_ns or ()), gaps.mean, events_per_arrival(1, gaps), record.output_tokens)

    @property
    def held(self) -> bool:
        """True if several events arrive together, and more than those of one token."""
        parts = max(1.0, self.events / self.tokens) if self.tokens else 1.0
        return self.events_per_arrival is not None and self.events_per_arrival > HELD_EVENTS * parts


@dataclass(frozen=True, slots=True)
class ServerEvidence:
    """Readings of a server that answers.

    `refused`: problem and remedy if there was no streamed answer; `stream` and `effects` are empty then. `effects`: those of
    request fields and of what answers report, by the name of the check. `as_sdk`: a stream requested with the headers of an SDK.
    """

    settings: ClientSettings  # with the target and the model as found
    listed: ModelList
    facts: ServerFacts
    reader: SocketReader | None  # of the sockets, where it is not that of the machine
    refused: tuple[str, str] | None = None
    texts: tuple[str, ...] = ()  # endpoints without streams that answer instead
    limit_key: str = USUAL_LIMIT  # field that limits the length of an answer
    least: int = 1  # lowest limit that the server accepts, in tokens
    stream: StreamLook = StreamLook()
    as_sdk: StreamLook = StreamLook()
    effects: Mapping[str, Effect] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)  # of a streamed answer
    plain: TurnRecord | None = None  # of the plain turn
    model: str = ""  # that its answers name
    page: PageKind | None = None  # kind of its metrics page

    @property
    def engine(self) -> PageKind | None:
        """Engine of the server, by its own pages, else by its metrics page; None if unknown."""
        return of_engine(self.facts.engine) or self.page

    @property
    def gateway(self) -> str:
        """Name of the proxy, gateway or router, from the headers of answers; "" if they name none."""
        return gateways.named(self.headers) or self.facts.sent.gateway


def gather(settings: ClientSettings, model: str | None, renamed: bool = False) -> ServerEvidence:
    """Request the pages of a server, then send the turns. Raise UsageError if it does not answer.

    `renamed`: the name is that of a gateway in front; the only model that the server lists is the same one.
    """
    sent = SentTurns()
    listed = model_list(settings)
    model = listed.names[0] if renamed and len(listed.names) == 1 else model or model_of(settings, listed, sent)
    settings = replace(settings, target=listed.target, model=model)
    facts = facts_of(settings, listed, model, sent)
    first = FirstTurn(_document(model, COUNTING, {USUAL_LIMIT: _ENOUGH_TOKENS}), RequestOptions(ignore_eos=False))
    reader = None if settings.target.scheme == "http" else reader_of(settings.target)
    evidence = ServerEvidence(settings, listed, facts, reader)
    try:
        proof = prove(settings, first, sent)
    except UsageError as error:
        texts = error.endpoints if isinstance(error, NoStreamsError) else ()
        return replace(evidence, refused=parted(error), texts=texts)
    settings, least = replace(settings, target=proof.target), proof.limit or _ENOUGH_TOKENS
    return _with_turns(replace(evidence, settings=settings, limit_key=proof.key, least=least))


def _with_turns(evidence: ServerEvidence) -> ServerEvidence:
    """Send a plain streamed turn, then those that show the effects of fields."""
    settings, key, least = evidence.settings, evidence.limit_key, evidence.least
    limit = {key: max(_STREAMED_TOKENS, least)}
    plain = send(settings, COUNTING, limit)
    if not answered(plain):
        return replace(evidence, refused=(plain.detail or "no streamed answer", "see the server's log"))

    ask = Asks(
        lambda prompt, tokens, fields: send(settings, prompt, {key: tokens, **fields}, longest_s=_LONGEST_S), key, least
    )
    running = raw(settings, {key: ask.limit, "stream_options": _RUNNING})
    events = [] if running is None else events_of(running)
    effects = {name: effect_of(name, ask) for name in FIELDS}
    records = [result.record for result in (plain, ask(COUNTING), ask(COUNTING, 2))]
    for what, seen in {
        "usage": any(record.output_tokens is not None for record in records),
        "own times": any(record.server_ttft_ms is not None for record in records),
        "cached tokens": any(record.cached_tokens is not None for record in records),
    }.items():
        effects[what] = Effect("seen", "in the answers") if seen else Effect("none", "not in the answers")
    return replace(
        evidence,
        stream=_least_held(settings, limit, (), plain),
        as_sdk=_least_held(settings, limit, SDK_HEADERS),
        effects=effects
        | {
            "running usage": of_stream(running, running_usage),
            "logprobs": of_stream(raw(settings, {key: ask.limit, "logprobs": True}), logprobs),
        },
        headers={} if running is None else running.headers,
        plain=plain.record,
        model=next((str(each["model"]) for each in events if each.get("model")), ""),
    )


def _least_held(
    settings: ClientSettings, limit: Mapping[str, Any], headers: Sequence[tuple[str, str]], *sent: TurnResult
) -> StreamLook:
    """Return the figures of the stream that was held least. A held stream is repeated, up to `_STREAMS` streams in all."""
    looks = [StreamLook.of(result.record) for result in sent]
    while len(looks) < _STREAMS and all(look.held for look in looks):
        looks.append(StreamLook.of(send(settings, unseen(), limit, headers).record))
    return min(looks, key=lambda look: look.events_per_arrival or math.inf)


def unseen() -> str:
    """Return a prompt whose answer is in no cache."""
    return f"{token_hex(8)}. {COUNTING}"


def raw(settings: ClientSettings, fields: Mapping[str, Any]) -> Fetched | None:
    """Send a streamed request and return the answer unparsed; None if there was none."""
    path = settings.target.path_to(ENDPOINTS[settings.endpoint])
    try:
        return Fetcher(settings).post(path, _document(settings.model, COUNTING, fields))
    except FetchError:
        return None


def parted(error: UsageError) -> tuple[str, str]:
    """Return problem and remedy of an error; "" without a remedy."""
    problem, _, remedy = str(error).rpartition("; ")
    return (problem, remedy) if problem else (remedy, "")


def _document(model: str, prompt: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    document = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    return {name: value for name, value in document.items() if value is not None}


def send(
    settings: ClientSettings,
    prompt: str,
    fields: Mapping[str, Any],
    headers: Sequence[tuple[str, str]] = (),
    longest_s: float | None = None,
) -> TurnResult:
    """Send a streamed turn with fields of its body, and return its result; after `longest_s` it is cancelled."""
    client = Client(replace(settings, worker="doctor"), lambda _result: None)
    try:
        body = json.dumps(_document(settings.model, prompt, fields)).encode()
        names = ("doctor", "doctor", 0, "doctor")
        turn = client.start(TurnRequest(body, *names, "warmup", now_ns(), headers=tuple(headers)))
        if longest_s is not None and not turn.wait_until(now_ns() + round(longest_s * NS_PER_S)):
            turn.cancel()
        return turn.wait()
    finally:
        client.close()


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """Metrics page: its kind (None if unknown), number of series, and metric families under their current vLLM names.

    `problem`: why the page cannot be read, "" if it can. `remarks`: what is wrong with a page that can.
    """

    url: str
    kind: PageKind | None = None
    names: frozenset[str] = frozenset()
    problem: str = ""
    remarks: tuple[str, ...] = ()
    series: int = 0
    engine: PageKind | None = None  # of the server, where its own pages name it

    @property
    def serves(self) -> bool:
        """True for the page of an engine, or of a front end of engines."""
        return self.kind is not None and self.kind.kind in ("engine", "front end")

    @property
    def known(self) -> list[str]:
        """The vLLM names of `metric_names` that a page of this kind has, without those of connectors."""
        texts = {name for name in vars(metric_names).values() if isinstance(name, str) and name.startswith("vllm:")}
        names = {name for name in texts if not name.startswith(metric_names.OF_CONNECTORS)}
        return sorted(names if self.kind is None or not self.kind.has_own_names else names & self.kind.metrics)

    @property
    def missing(self) -> list[str]:
        """The known names that the page lacks."""
        return [name for name in self.known if name not in self.names]


def metrics_page(url: str, settings: ClientSettings) -> MetricsPage:
    """Read a Prometheus page."""
    _, slash, path = url.partition("://")[2].partition("/")
    try:
        fetcher = Fetcher(replace(settings, target=Target.of_page(url)), timeout_s=10)
        fetched = fetcher.get(slash + path if slash else "/")
        parser = exposition.PromParser()
        samples = parser.parse(exposition.page_text(fetched.body)) if fetched.status == 200 else []
    except (UsageError, FetchError, ValueError) as error:
        return MetricsPage(url, problem=str(error))
    if not samples:
        return MetricsPage(url, problem="not a Prometheus page" if fetched.status == 200 else fetched.status_text)
    meanings = page_meanings({sample.metric for sample in samples})
    families = frozenset(metric_names.split_suffix(each.metric)[0] for found in meanings.values() for each in found)
    return MetricsPage(
        url, kind_of(meanings), families, remarks=parser.remarks(samples, wall_ns()), series=len(samples)
    )
