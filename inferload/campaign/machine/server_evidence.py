"""Readings of a server, which `checks` judges: its pages, a streamed turn of 32 tokens and a few of two."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from inferload.base.clock import now_ns, wall_ns
from inferload.base.errors import UsageError
from inferload.client.client import Client, ClientSettings
from inferload.client.connection.reader_choice import reader_of
from inferload.client.connection.target import Target
from inferload.client.fetch import Fetcher, FetchError
from inferload.client.first_turn import FirstTurn, NoStreamsError, SentTurns, prove
from inferload.client.probe import ModelList, ServerFacts, facts_of, model_list, model_of
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.figures import metric_names
from inferload.figures.page_kinds import PageKind, of_engine
from inferload.figures.page_names import kind_of, page_meanings
from inferload.figures.rate_figures import HELD_EVENTS, events_per_arrival
from inferload.figures.turn_figures import ITL
from inferload.scenario.schema.request import RequestOptions
from inferload.servers import exposition
from inferload.turns.record import Failure, TurnRecord
from inferload.turns.sketch import Sketch
from inferload.turns.socket_reader import SocketReader

_STREAMED_TOKENS = 32  # that show how a stream arrives
_STREAMS = 3  # a proxy holds each of them, a busy machine only some
_ENOUGH_TOKENS = 16  # limit of an answer that every model takes
USUAL_LIMIT = "max_tokens"
# Long enough to fill blocks of a prefix cache: some servers report cached tokens only if there are some.
_PROMPT = "Count slowly from one to one hundred, and say each number as a word. " * 12


@dataclass(frozen=True, slots=True)
class StreamLook:
    """Output events of one stream, the mean gap between them, and the number that arrives together; None without a gap."""

    events: int = 0
    mean_gap_ms: float | None = None
    events_per_arrival: float | None = None

    @classmethod
    def of(cls, record: TurnRecord) -> "StreamLook":
        """Return the look at the stream of a turn."""
        gaps = Sketch()
        gaps.add_many(ITL.of(record))
        return cls(len(record.event_ns or ()), gaps.mean, events_per_arrival(1, gaps))

    @property
    def held(self) -> bool:
        """True if several events arrive together."""
        return self.events_per_arrival is not None and self.events_per_arrival > HELD_EVENTS


@dataclass(frozen=True, slots=True)
class ServerEvidence:
    """Readings of a server that answers.

    `refused`: problem and remedy if there was no streamed answer, and then no stream and no options. `options`: whether the
    server takes an option or reports a value, by the subject of the check; None: unknown, since its turn failed.
    """

    settings: ClientSettings  # with the target and the model as found
    listed: ModelList
    facts: ServerFacts
    reader: SocketReader | None  # of the sockets, where it is not that of the machine
    refused: tuple[str, str] | None = None
    texts: tuple[str, ...] = ()  # endpoints without streams that answer instead
    limit_key: str = USUAL_LIMIT  # of an answer
    stream: StreamLook = StreamLook()
    options: Mapping[str, bool | None] = field(default_factory=dict)
    page: PageKind | None = None  # kind of its metrics page

    @property
    def engine(self) -> PageKind | None:
        """Engine of the server, by its own pages, else by its metrics page; None if unknown."""
        return of_engine(self.facts.engine) or self.page

    @property
    def doubt(self) -> str:
        """Why the list of models does not show that the model is served; "" if it does."""
        return self.listed.doubt(self.facts.model)


def gather(settings: ClientSettings, model: str | None) -> ServerEvidence:
    """Request the pages of a server, then send the turns. Raise UsageError if it does not answer."""
    sent = SentTurns()
    listed = model_list(settings)
    model = model or model_of(settings, listed, sent)
    settings = replace(settings, target=listed.target, model=model)
    facts = facts_of(settings, listed, model, sent)
    first = FirstTurn(_document(model, USUAL_LIMIT, _ENOUGH_TOKENS), RequestOptions(ignore_eos=False))
    reader = None if settings.target.scheme == "http" else reader_of(settings.target)
    evidence = ServerEvidence(settings, listed, facts, reader)
    try:
        proof = prove(settings, first, sent)
    except UsageError as error:
        texts = error.endpoints if isinstance(error, NoStreamsError) else ()
        return replace(evidence, refused=parted(error), texts=texts)
    evidence = replace(evidence, settings=replace(settings, target=proof.target), limit_key=proof.key)
    return _with_turns(evidence, proof.limit or _ENOUGH_TOKENS)


def _with_turns(evidence: ServerEvidence, least: int) -> ServerEvidence:
    """Send a plain streamed turn, then one turn per optional feature, as the server takes them: with a limit of `least` tokens.

    A turn whose stream is held is repeated: the look is at the stream that was held least.
    """
    send = partial(_turn, evidence.settings, evidence.limit_key, least)
    plain = send({}, tokens=_STREAMED_TOKENS)
    if not _answered(plain):
        return replace(evidence, refused=(plain.detail or "no streamed answer", "see the server's log"))
    streams = [StreamLook.of(plain.record)]
    while streams[-1].held and len(streams) < _STREAMS:
        streams.append(StreamLook.of(send({}, tokens=_STREAMED_TOKENS).record))
    running = send({"stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    both = [result.record for result in (plain, running)]
    options = {
        "usage": plain.record.output_tokens is not None,
        "running usage": _answered(running) and running.record.event_tokens is not None,
        "own times": any(record.server_ttft_ms is not None for record in both),
        "cached tokens": any(record.cached_tokens is not None for record in both),
        "cache_salt": _answered(send({"cache_salt": "inferload-doctor"})),
        "ignore_eos": _answered(send({"ignore_eos": True})),
    }
    stream = min(streams, key=lambda stream: stream.events_per_arrival or math.inf)
    return replace(evidence, stream=stream, options=options)


def parted(error: UsageError) -> tuple[str, str]:
    """Return problem and remedy of an error; "" without a remedy."""
    problem, _, remedy = str(error).rpartition("; ")
    return (problem, remedy) if problem else (remedy, "")


def _answered(result: TurnResult) -> bool:
    """Return True for a complete answer; one of two special tokens is complete and has no text."""
    return result.record.failure in (None, Failure.EMPTY)


def _document(model: str, key: str, limit: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": _PROMPT}],
        key: limit,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _turn(settings: ClientSettings, key: str, least: int, more: Mapping[str, Any], tokens: int = 2) -> TurnResult:
    document = _document(settings.model, key, max(tokens, least)) | dict(more)
    client = Client(replace(settings, worker="doctor"), lambda _result: None)
    try:
        body = json.dumps(document).encode()
        return client.start(TurnRequest(body, "doctor", "doctor", 0, "doctor", "warmup", now_ns())).wait()
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
    def has_own_names(self) -> bool:
        """True if the page has a part of vLLM's metrics, under names of its own."""
        return self.kind is not None and self.kind.has_own_names

    @property
    def known(self) -> list[str]:
        """The vLLM names of `metric_names` that a page of this kind has."""
        names = {name for name in vars(metric_names).values() if isinstance(name, str) and name.startswith("vllm:")}
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
