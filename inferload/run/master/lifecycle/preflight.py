"""Checks of the servers before any load, on the master: reachability, models, streaming, token counts, metrics pages."""

import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from inferload.base.errors import UsageError
from inferload.client.connection.proxies import Proxy
from inferload.client.connection.target import Target
from inferload.client.fetch import Fetcher, FetchError
from inferload.client.first_turn import FirstTurn, Proof, SentTurns, prove
from inferload.client.model_list import listed
from inferload.client.probe import ModelList, ServerFacts, chat_tokenizer, facts_of, model_list, model_of, tokenizer_of
from inferload.client.requests.bodies import BodySettings, BodyWriter, Texts
from inferload.figures import metric_names
from inferload.run.process.run_spec import RunSpec
from inferload.run.process.settings import ProcessSettings, client_settings
from inferload.scenario.scenario import RequestOptions
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.workload.content import token_estimate
from inferload.workload.content.chat_template import NO_TEMPLATE, ChatTemplate, measure
from inferload.workload.content.data import DataContext, DataFindings, Opened
from inferload.workload.content.prompts import Tokenize, Vocabulary, approximate, calibrate
from inferload.workload.content.script import Ask
from inferload.workload.isolation import isolation
from inferload.workload.plan.first_asks import first_asks
from inferload.workload.plan.turn_checks import check_sendable, too_long
from inferload.workload.sessions import Sessions

logger = logging.getLogger(__name__)

NO_PROMETHEUS_PAGE = "not a Prometheus page"


@dataclass(frozen=True, slots=True)
class Preflight:
    """Results of the checks. `spec`: with the targets as read. `sessions`: of the run, opened with the digests of their data.

    `request`: options of the requests, with the key of the limit that the servers take.
    """

    spec: RunSpec
    request: RequestOptions
    targets: tuple[ServerFacts, ...]  # in the order of the run's targets
    vocabulary: Vocabulary
    metrics_urls: tuple[str, ...]  # default pages that exist, or the named ones
    sessions: Sessions
    template: ChatTemplate = NO_TEMPLATE

    @property
    def facts(self) -> ServerFacts:
        """Properties of the first target."""
        return self.targets[0]

    @property
    def data(self) -> DataContext:
        """Digests and token counts of the workload's data."""
        return self.sessions.data

    @property
    def salts(self) -> bool:
        """True if every target accepts `cache_salt`."""
        return all(facts.salts for facts in self.targets)

    @property
    def engine(self) -> str:
        """Engine of the targets; several names if they differ."""
        return ", ".join(dict.fromkeys(facts.engine for facts in self.targets))


def preflight(spec: RunSpec, own: ProcessSettings) -> Preflight:
    """Check the servers; UsageError if no run is possible."""
    withheld = own.withheld_from(server_urls(spec))
    if not withheld:
        return _preflight(spec, own)
    origins = ", ".join(withheld)
    allow = " ".join(f"--allow-target {origin}" for origin in withheld)
    warning = f"{origins}: not named on the command line, so no API key and no --header is sent; allow it with {allow}"
    logger.warning("%s", warning)
    try:
        return _preflight(spec, own)
    except UsageError as error:
        raise UsageError(f"{error} ({warning})") from error


def server_urls(spec: RunSpec) -> list[str]:
    """Return the URLs of all servers that a run sends requests to."""
    return [target.url for target in spec.targets] + list(spec.metrics_urls or ())


def _preflight(spec: RunSpec, own: ProcessSettings) -> Preflight:
    sessions = Sessions(spec.scenario, DataContext(spec.origin))
    opened = sessions.open()
    check_sendable(spec.scenario, sessions)
    for line in sessions.warnings():
        logger.warning("%s", line)
    servers, pages = _servers(spec, own), _metrics(spec, own)
    servers = _with_engine(servers, pages.values())
    targets, request = _prove(spec, own, servers, sessions)
    spec = replace(spec, targets=tuple(facts.target for facts in targets))
    for target in spec.targets:
        # Tasks choose their endpoints.
        url = target.api_url() if spec.scenario.of_tasks else target.url_of(ENDPOINTS[request.endpoint])
        proxy = Proxy.for_target(target)
        through = "" if proxy is None else f" through the proxy {proxy.url} ({proxy.variable})"
        logger.info("requests go to %s%s", url, through)
    settings = client_settings(spec.scenario, spec.target, targets[0].model, own, "preflight")
    vocabulary, template, data = approximate(), NO_TEMPLATE, _data(spec, opened, None)
    if targets[0].tokenizes:
        try:
            vocabulary = calibrate(tokenizer_of(settings))
            data = _data(spec, opened, tokenizer_of(settings))
            if ENDPOINTS[spec.scenario.request.endpoint].chat_template:
                template = measure(chat_tokenizer(settings))
        except FetchError as error:
            logger.warning("%s: /tokenize failed (%s): prompt lengths are approximate", spec.target.url, error)
    else:
        logger.warning("%s has no /tokenize: prompt lengths are approximate", spec.target.url)
    _check_length(spec, sessions, targets, vocabulary)
    return Preflight(spec, request, targets, vocabulary, tuple(pages), Sessions(spec.scenario, data), template)


def _with_engine(targets: Sequence[ServerFacts], engines: Iterable[str | None]) -> tuple[ServerFacts, ...]:
    """Set an unknown engine of a target to that of the metrics pages, if all are of one engine."""
    distinct = set(engines)
    engine = distinct.pop() if len(distinct) == 1 else None
    if engine is None:
        return tuple(targets)
    return tuple(replace(facts, engine=engine) if facts.engine == "unknown" else facts for facts in targets)


def _check_length(spec: RunSpec, sessions: Sessions, targets: Sequence[ServerFacts], vocabulary: Vocabulary) -> None:
    """Raise UsageError if a planned turn exceeds a model's context; log a warning if its length is an estimate."""
    limits = [facts.max_model_len for facts in targets if facts.max_model_len is not None]
    if not limits:
        return
    longest = too_long(spec.scenario, sessions, min(limits))
    if longest is None:
        return
    if longest.exact and vocabulary.exactness == "exact":
        raise UsageError(longest.in_words(min(limits)))
    logger.warning("%s (by estimate)", longest.in_words(min(limits)))


def _data(spec: RunSpec, opened: Mapping[str, Opened], tokenize: Tokenize | None) -> DataContext:
    """Return digests of each class's data, which workers compare, and the server's token counts of samples."""
    by_class = {}
    for name, data in opened.items():
        by_class[name] = DataFindings(data.digest)
        measured = None if tokenize is None else token_estimate.measure(data.sample(), tokenize)
        if measured is not None:
            by_class[name] = replace(by_class[name], chars_per_token=measured[0], error=measured[1])
    return DataContext(spec.origin, by_class)


def _models(spec: RunSpec) -> list[str]:
    """Return the models that the run names."""
    return [model.name for model in spec.scenario.request.models] or ([spec.model] if spec.model is not None else [])


def _servers(spec: RunSpec, own: ProcessSettings) -> tuple[ServerFacts, ...]:
    """Read the list of models, version and tokenizer of each target. UsageError if it is unknown which model to request."""
    names, servers = _models(spec), []
    for target in spec.targets:
        settings = client_settings(spec.scenario, target, "", own, "preflight")
        models = model_list(settings)
        sent = SentTurns()
        names = names or [model_of(settings, models, sent)]
        _warn_of_models(models, names)
        servers.append(facts_of(replace(settings, target=models.target), models, names[0], sent))
    return tuple(servers)


def _warn_of_models(models: ModelList, names: Sequence[str]) -> None:
    for doubt in dict.fromkeys(filter(None, map(models.doubt, names))):
        logger.warning("%s; the first request decides", doubt)


def _prove(
    spec: RunSpec, own: ProcessSettings, servers: Sequence[ServerFacts], sessions: Sessions
) -> tuple[tuple[ServerFacts, ...], RequestOptions]:
    """Send the first requests of each class and model to each server; return the servers as read, and the options that they take.

    The key of the limit is one for all: if a server refuses the first one, those before it are asked again. UsageError if a
    server refuses the run's requests.
    """
    requests = _FirstRequests(spec, own, all(facts.salts for facts in servers))
    targets = [facts.target for facts in servers]
    asks = first_asks(spec.scenario, sessions)
    jobs = [
        (number, model, ask)
        for number, facts in enumerate(servers)
        for model in _models(spec) or [facts.model]
        for ask in asks
    ]
    again: list[tuple[int, str, Ask]] = []
    request = spec.scenario.request
    for at, job in enumerate(jobs):
        number, model, ask = job
        proof = requests.prove(replace(servers[number], target=targets[number]), model, ask, request)
        targets[number] = proof.target
        if proof.key == "max_completion_tokens" and request.max_tokens_field == "auto":
            request, again = request.model_copy(update={"max_tokens_field": proof.key}), jobs[:at]
            logger.info("%s refuses max_tokens: max_completion_tokens limits the answers", proof.target.api_url())
    for number, model, ask in again:
        requests.prove(replace(servers[number], target=targets[number]), model, ask, request)
    return tuple(replace(facts, target=target) for facts, target in zip(servers, targets, strict=True)), request


@dataclass(slots=True)
class _FirstRequests:
    """First requests of a run; each distinct one is sent once to each server."""

    spec: RunSpec
    own: ProcessSettings
    salts: bool
    proofs: dict[tuple[Target, bytes], Proof] = field(default_factory=dict)

    def prove(self, facts: ServerFacts, model: str, ask: Ask, request: RequestOptions) -> Proof:
        """Send a first request. Tasks choose their endpoints: for them an answer on any endpoint is enough."""
        try:
            return self._prove(facts, model, ask, request)
        except UsageError:
            others = [
                endpoint for endpoint in ENDPOINTS if self.spec.scenario.of_tasks and endpoint != request.endpoint
            ]
            for endpoint in others:
                with contextlib.suppress(UsageError):
                    return self._prove(facts, model, ask, request.model_copy(update={"endpoint": endpoint}))
            raise

    def _prove(self, facts: ServerFacts, model: str, ask: Ask, request: RequestOptions) -> Proof:
        scenario = self.spec.scenario
        settings = client_settings(scenario, facts.target, model, self.own, "preflight")
        settings = replace(settings, endpoint=request.endpoint)
        isolated = isolation(scenario.cache.isolate, "preflight", 0, takes_salt=self.salts)
        bodies = replace(BodySettings.of(scenario, model), request=request)
        body = BodyWriter(Texts(approximate(), 0), bodies, isolated).body(ask)
        affinity = ((request.affinity_header, "preflight"),) if request.affinity_header else ()
        hint = f"the server lists {listed(facts.models)}: name another model with --model or request.models"
        turn = FirstTurn.of(body, request, (*affinity, *ask.headers), "" if model in facts.models else hint)
        if (known := self.proofs.get((facts.target, turn.form))) is not None:
            return known
        proof = self.proofs[facts.target, turn.form] = prove(settings, turn, facts.sent)
        if proof.warning:
            logger.warning("%s; the load is sent all the same", proof.warning)
        return proof


def _metrics(spec: RunSpec, own: ProcessSettings) -> dict[str, str | None]:
    """Return the metrics pages to scrape, each with its engine. Named pages must exist; default pages may be missing."""
    if spec.metrics_urls is not None:
        pages = {url: _metrics_page(url, spec, own) for url in spec.metrics_urls}
        for url, page in pages.items():
            if page.fault is not None:
                raise UsageError(f"--metrics-url {url}: {page.fault}; name the right page, or --metrics-url none")
        return {url: page.engine for url, page in pages.items()}
    engines: dict[str, str | None] = {}
    for target in spec.targets:
        url, page = target.metrics_url, _metrics_page(target.metrics_url, spec, own)
        if page.fault == NO_PROMETHEUS_PAGE:  # TensorRT-LLM has JSON at /metrics
            other = f"{target.url}/prometheus/metrics"
            elsewhere = _metrics_page(other, spec, own)
            url, page = (other, elsewhere) if elsewhere.fault is None else (url, page)
        if page.fault is None:
            engines[url] = page.engine
            continue
        logger.warning(
            "%s: %s: the report will have no metrics of this server; name the page with --metrics-url", url, page.fault
        )
    return engines


@dataclass(frozen=True, slots=True)
class _Page:
    """A metrics page. `fault`: reason why it cannot be scraped, or None; `engine`: None if unknown."""

    fault: str | None
    engine: str | None = None


def _metrics_page(url: str, spec: RunSpec, own: ProcessSettings) -> _Page:
    _, slash, path = url.partition("://")[2].partition("/")
    fetcher = Fetcher(client_settings(spec.scenario, Target.of_page(url), "", own, "preflight"), timeout_s=10)
    try:
        fetched = fetcher.get(slash + path if slash else "/")
    except FetchError as error:
        return _Page(str(error))
    if fetched.status != 200:
        return _Page(fetched.status_text)
    if b"# TYPE " not in fetched.body:
        return _Page(NO_PROMETHEUS_PAGE)
    words = [line.split() for line in fetched.body.decode(errors="replace").splitlines() if line.startswith("# TYPE ")]
    types = [line[2] for line in words if len(line) > 2]
    return _Page(None, metric_names.engine_of(types))
