"""Checks of the servers before any load, on the master: reachability, models, streaming, token counts, metrics pages."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from inferload.base.clock import wall_ns
from inferload.base.errors import UsageError
from inferload.base.numbers import number, percent
from inferload.client.connection.proxies import Proxy
from inferload.client.connection.target import Target
from inferload.client.fetch import Fetcher, FetchError
from inferload.client.first_turn import SentTurns
from inferload.client.probe import ServerFacts, facts_of, model_list, model_of
from inferload.client.tokenizer import chat_tokenizer, tokenizer
from inferload.figures.pages.page_names import is_simulated, kind_of, no_known_engine
from inferload.run.master.lifecycle.first_requests import Prompts, Proven, prove_all
from inferload.run.process.run_spec import RunSpec
from inferload.run.process.settings import ClassOptions, ProcessSettings, class_options, client_settings
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.servers import roles
from inferload.servers.exposition import PromParser, page_text
from inferload.workload.content import token_estimate
from inferload.workload.content.chat_template import NO_TEMPLATE, ChatTemplate, measure
from inferload.workload.content.data import DataContext, DataFindings, Opened
from inferload.workload.content.prompts import TOKENS_PER_WORD, Tokenize, Vocabulary, approximate, calibrate
from inferload.workload.plan.turn_checks import check_sendable, too_long
from inferload.workload.sessions import Sessions

if TYPE_CHECKING:
    from inferload.run.master.lifecycle.canaries import Canaries

logger = logging.getLogger(__name__)

NO_PROMETHEUS_PAGE = "not a Prometheus page"
MOST_ERROR = 0.2  # of the counts of words, above which the estimate of tokens per word replaces them


class Counted(Struct, frozen=True):
    """Findings of the server's tokenizer. `note`: why the lengths of generated prompts are an estimate, "" if they are none."""

    vocabulary: Vocabulary
    template: ChatTemplate
    data: DataContext
    note: str = ""


class Preflight(Struct, frozen=True):
    """Results of the checks. `spec`: with the targets as read. `sessions`: of the run, opened with the digests of their data."""

    spec: RunSpec
    proven: Proven
    counted: Counted
    metrics_urls: tuple[str, ...]  # default pages that exist, or the named ones
    roles: dict[str, roles.Role]  # that the run names, by the target of the page
    sessions: Sessions
    canaries: "Canaries | None"  # None: the scenario has none

    @property
    def length_notes(self) -> list[str]:
        lengths = [length.in_words() for length in self.proven.lengths if length.noted]
        return [self.counted.note, *lengths] if self.counted.note else lengths

    @property
    def facts(self) -> ServerFacts:
        return self.proven.servers[0]

    @property
    def data(self) -> DataContext:
        """Digests and token counts of the workload's data."""
        return self.sessions.data

    @property
    def salts(self) -> bool:
        """True if every target accepts `cache_salt`."""
        return all(facts.salts for facts in self.proven.servers)

    @property
    def engine(self) -> str:
        """Engine of the targets; several names if they differ."""
        return ", ".join(dict.fromkeys(facts.engine for facts in self.proven.servers))


def preflight(spec: RunSpec, own: ProcessSettings) -> Preflight:
    """Check the servers; UsageError if no run is possible."""
    of_classes = class_options(spec.scenario, spec.origin, own)
    withheld = own.withheld_from(server_urls(spec))
    if not withheld:
        return _preflight(spec, own, of_classes)
    origins = ", ".join(withheld)
    allow = " ".join(f"--allow-target {origin}" for origin in withheld)
    warning = f"{origins}: not named on the command line, so no API key and no --header is sent; allow it with {allow}"
    logger.warning("%s", warning)
    try:
        return _preflight(spec, own, of_classes)
    except UsageError as error:
        raise UsageError(f"{error} ({warning})") from error


def server_urls(spec: RunSpec) -> list[str]:
    """Return the URLs of all servers that a run sends requests to."""
    return [target.url for target in spec.targets] + list(spec.metrics_urls or ())


def _preflight(spec: RunSpec, own: ProcessSettings, of_classes: Mapping[str, ClassOptions]) -> Preflight:
    sessions = Sessions(spec.scenario, DataContext(spec.origin))
    opened = sessions.open()
    check_sendable(spec.scenario, sessions)
    for line in sessions.warnings():
        logger.warning("%s", line)
    keys = [options.key for options in of_classes.values() if options.key is not None]
    asking = own  # for pages of the servers, which may need a key
    if own.credentials.api_key is None and keys:
        asking = structs.replace(own, credentials=keys[0])
    servers, pages = _servers(spec, asking), _metrics(spec, own)
    servers, named = _with_engine(servers, pages.values()), roles.of_pages(spec.roles, pages)
    counted = _counted(spec, asking, servers[0], opened)
    sessions = Sessions(spec.scenario, counted.data)
    _check_length(spec, sessions, servers, counted.vocabulary)
    proven = prove_all(spec, own, servers, Prompts(sessions, counted.vocabulary, counted.template, of_classes))
    spec = structs.replace(spec, targets=tuple(facts.target for facts in proven.servers))
    canaries = None
    if spec.scenario.canary is not None:
        from inferload.run.master.lifecycle.canaries import Canaries  # of few scenarios

        canaries = Canaries(spec, own, proven.servers, proven.request, of_classes)
    for target in spec.targets:
        # Tasks choose their endpoints.
        url = target.api_url() if spec.scenario.of_tasks else target.url_of(ENDPOINTS[proven.request.endpoint])
        url += " (the address as it is: no known path below it has an API)" if target.whole else ""
        proxy = Proxy.for_target(target)
        through = "" if proxy is None else f" through the proxy {proxy.url} ({proxy.variable})"
        logger.info("requests go to %s%s", url, through)
    sessions = Sessions(spec.scenario, counted.data)
    return Preflight(spec, proven, counted, tuple(pages), named, sessions, canaries)


def _counted(spec: RunSpec, own: ProcessSettings, facts: ServerFacts, opened: Mapping[str, Opened]) -> Counted:
    """Measure words, data and chat template by the tokenizer of the first server, as far as it counts plausibly."""
    url = spec.target.url
    template, data = NO_TEMPLATE, _data(spec, opened, None)
    if facts.tokenizer is None:
        return _estimated(data, f"{url} has no /tokenize with plausible counts")
    settings = client_settings(spec.scenario, facts.target, facts.model, own, "preflight")
    with Fetcher(settings) as fetcher:
        tokenize = tokenizer(settings, facts.tokenizer, fetcher)
        try:
            vocabulary = calibrate(tokenize, Sessions(spec.scenario).times())
            if (vocabulary.error or 0.0) > MOST_ERROR:
                return _estimated(
                    data, f"{url}: its /tokenize counts words with an error of {percent(vocabulary.error)}"
                )
            data = _data(spec, opened, tokenize)
        except FetchError as error:
            return _estimated(data, f"{url}: /tokenize failed ({error})")
        if facts.tokenizer.chats and ENDPOINTS[spec.scenario.request.endpoint].chat_template:
            template = measure(chat_tokenizer(settings, fetcher))
    return Counted(vocabulary, template, data)


def _estimated(data: DataContext, reason: str) -> Counted:
    note = f"{reason}: prompt lengths are approximate, by the estimate of {number(TOKENS_PER_WORD)} tokens per word"
    logger.warning("%s", note)
    return Counted(approximate(), NO_TEMPLATE, data, note)


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
            by_class[name] = structs.replace(by_class[name], chars_per_token=measured[0], error=measured[1])
    return DataContext(spec.origin, by_class)


def _servers(spec: RunSpec, own: ProcessSettings) -> tuple[ServerFacts, ...]:
    """Read the list of models, version and tokenizer of each target. UsageError if it is unknown which model to request."""
    names, of_classes, servers = spec.models, [*spec.scenario.class_models.values()], list[ServerFacts]()
    if not spec.scenario.needs_model:
        names = names or of_classes
    for target in spec.targets:
        settings = client_settings(spec.scenario, target, "", own, "preflight")
        models = model_list(settings)
        sent = SentTurns()
        named, names = names, names or [model_of(settings, models, sent)]
        for doubt in dict.fromkeys(filter(None, map(models.doubt, (*named, *of_classes)))):
            logger.warning("%s; the first request decides", doubt)
        servers.append(facts_of(replace(settings, target=models.target), models, names[0], sent))
    return tuple(servers)


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


class _Page(Struct, frozen=True):
    """A metrics page. `fault`: reason why it cannot be scraped, or None; `engine`: None if unknown."""

    fault: str | None
    engine: str | None = None


def _metrics_page(url: str, spec: RunSpec, own: ProcessSettings) -> _Page:
    _, slash, path = url.partition("://")[2].partition("/")
    fetcher = Fetcher(client_settings(spec.scenario, Target.of_page(url), "", own, "preflight"), timeout_s=10)
    try:
        fetched = fetcher.get(slash + path if slash else "/")
    except FetchError as error:
        return _Page("; ".join(filter(None, (str(error), error.remedy))))
    if fetched.status != 200:
        return _Page(fetched.status_text)
    parser = PromParser()
    try:
        text = page_text(fetched.body)
        samples = parser.parse(text)
    except ValueError:
        return _Page(NO_PROMETHEUS_PAGE)
    for remark in parser.remarks(samples, wall_ns()):
        logger.warning("%s: %s", url, remark)
    words = [line.split() for line in text.splitlines() if line.startswith("# TYPE ")]
    types = [line[2] for line in words if len(line) > 2]  # of metrics that may have no samples yet
    if not types and not samples:
        return _Page(NO_PROMETHEUS_PAGE)
    metrics = [*types, *(sample.metric for sample in samples)]
    if is_simulated(metrics):
        return _Page(None, "simulator")
    kind = kind_of(metrics)
    if kind is None:
        logger.warning("%s: %s: no figure is read from it", url, no_known_engine(len(samples)))
    return _Page(None, kind.key if kind is not None and kind.kind in ("engine", "front end") else None)
