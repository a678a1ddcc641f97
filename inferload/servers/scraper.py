"""Scraper of Prometheus metrics, in a process of its own: parsing must not delay the load generator.

A run forks it from its loaded process; `inferload scrape` runs the same scrapes without a run.

A thread per target scrapes at absolute times; late scrapes are skipped and counted. The timestamp of a scrape is the wall time of
the middle of its request. A target that is down leaves a gap in the data, and one line on stderr when it goes down and one when it
is up again. The parent process receives one JSON object per scrape on stdout: `{"wall_ns", "target", "up", "skipped", "replicas",
"gauges": {...}}`, with "error" if the target is down, and without gauges if several servers are behind its address; lines are
dropped if the pipe is full. An empty object follows each write to the disk.
"""

import json
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from inferload.base.clock import NS_PER_S, Anchor, now_ns
from inferload.base.escaping import escaped
from inferload.base.redaction import Redaction
from inferload.base.rundir import reason
from inferload.base.tls import TlsSettings
from inferload.figures.pages import metric_names as names
from inferload.figures.pages.page_names import kind_of, names_on_pages, page_meanings
from inferload.figures.servers.server_figures import READINGS
from inferload.figures.servers.server_formulas import Reading
from inferload.servers import parts, roles, scrapes_file
from inferload.servers.exposition import TOO_LARGE, Labels, Sample
from inferload.servers.page_samples import Page, PageSamples
from inferload.servers.replicas import READ, Replicas
from inferload.servers.roles import Role, of_labels, of_words
from inferload.servers.scrape_http import MetricsClient, MetricsUrl, PageClient

# Interval between parts; a kill -9 loses no scrape that is older than twice that.
PART_S = 4.0
# Timeout of a scrape: longer than an interval, since a busy server answers late.
TIMEOUT_S = 4.0
# Timeout of the last scrape, after the stop request.
LAST_S = 2.0
# A page that left the list is scraped until it does not answer, since turns may be in flight there, and at most so long.
LEAVE_S = 60.0
# Scrapes on a new connection each that tell the servers of a balancer per connection apart.
PROBES = 8


class Scrape(Struct, frozen=True):
    """Result of one scrape. `error` is None if the target was up."""

    wall_ns: int
    target: str
    duration_ns: int
    skipped: int  # scrapes so far that were skipped because the previous one was still running
    samples: list[Sample]
    error: str | None = None
    replicas: int = 1  # servers behind the address that are recognised so far
    page: Page | None = None  # None: all samples are of the scrape

    @property
    def at_ns(self) -> int:
        """Wall time of its samples."""
        return self.wall_ns if self.page is None else self.page.at_ns


def identifying(samples: Sequence[Sample]) -> list[tuple[str, Labels, float]]:
    """Return the values that distinguish servers, with vLLM's names."""
    found = [sample for sample in samples if sample.metric in _IDENTIFYING and abs(sample.value) < TOO_LARGE]
    return [(sample.metric, sample.labels, sample.value) for sample in _translated(found)]


_IDENTIFYING = names_on_pages(READ)
_QUEUES = (names.RUNNING, names.WAITING, names.WAITING_BY_REASON)


def _translated(samples: Sequence[Sample]) -> Iterator[Sample]:
    """Yield each sample of a page under vLLM's names for it."""
    meanings = page_meanings({sample.metric for sample in samples})
    for sample in samples:
        for meaning in meanings[sample.metric]:
            if meaning.metric == sample.metric:
                yield sample
            elif (labels := meaning.labels(sample.labels)) is not None:
                yield sample._replace(metric=meaning.metric, labels=labels, value=sample.value * meaning.scale)


def readings(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the readings of all server figures, by name, for the live view. What the server does not publish is absent.

    Besides: the number of engines, the queue of each (`NAME@ENGINE`), the sizes of the smallest KV cache, and whether it is a page
    of what stands before engines.
    """
    found: dict[str, list[Sample]] = {}
    sizes: dict[str, list[float]] = {}

    def engines_of(metric: str) -> tuple[dict[str, str], ...]:
        return parts.engines(metric, [sample.labels for sample in found.get(metric, ())])

    for sample in _translated(samples):
        found.setdefault(sample.metric, []).append(sample)
        if sample.metric == names.CACHE_CONFIG:
            for name, text in sample.labels:
                if name in _CACHE_SIZES and _NUMBER.fullmatch(text):
                    sizes.setdefault(name, []).append(float(text))
    values = {name: min(each) for name, each in sizes.items()}
    engines = [engine for engine in max(map(engines_of, (names.RUNNING, names.WAITING)), key=len) if engine]
    for reading in READINGS:
        of = [sample for sample in found.get(reading.metric, ()) if reading.label in (None, *sample.labels)]
        if of:
            values[reading.name] = _read(reading, of)
        for engine in engines if reading.metric in _QUEUES else ():
            own = [sample for sample in of if set(engine.items()).issubset(sample.labels)]
            if own:
                values[f"{reading.name}@{' '.join(engine.values())}"] = _read(reading, own)
    if names.KV_CACHE_USAGE in found:
        values["engines"] = len(engines_of(names.KV_CACHE_USAGE))
    kind = kind_of({sample.metric for sample in samples})
    marks = {} if kind is None else {names.IN_FRONT: kind.in_front, names.DECODES_ONLY: names.RUNNING in kind.unlike}
    return values | {mark: 1.0 for mark, holds in marks.items() if holds}


def _read(reading: Reading, samples: Sequence[Sample]) -> float:
    values = [sample.value for sample in samples]
    if len(values) == 1:
        return values[0]
    if reading.over == "sum":
        every = [sample.labels for sample in samples]
        return float(parts.summed(reading.metric, every, [np.array([value]) for value in values])[0])
    return max(values) if reading.over == "highest" else min(values)


_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]+)?")  # "None" if unknown
_CACHE_SIZES = ("kv_cache_size_tokens", "kv_cache_max_concurrency", "block_size", "num_gpu_blocks")


def line_of(scrape: Scrape, known: Mapping[str, Role] = MappingProxyType({})) -> str:
    """Return the line for the parent process; values that JSON cannot represent (NaN) are omitted. `known`: roles by target."""
    every = {} if scrape.replicas > 1 else readings(scrape.samples)
    if every and names.IN_FRONT not in every and (role := _role(scrape, known)) is not None:
        every[names.ROLE + role] = 1.0
    if scrape.page is not None and scrape.page.mixed:  # counts of different times have no common increase
        every = {name: value for name, value in every.items() if not name.partition("{")[0].endswith(parts.COUNTERS)}
    document: dict[str, object] = {
        "wall_ns": scrape.wall_ns,
        "at_ns": scrape.at_ns,
        "target": scrape.target,
        "up": scrape.error is None,
        "skipped": scrape.skipped,
        "replicas": scrape.replicas,
        "gauges": {name: value for name, value in every.items() if abs(value) < float("inf")},
    }
    if scrape.error is not None:
        document["error"] = scrape.error
    return json.dumps(document, ensure_ascii=False)


def _role(scrape: Scrape, known: Mapping[str, Role]) -> str | None:
    """Return the role that the run, the page or the address says."""
    if scrape.target in known:
        return known[scrape.target].name
    said = of_labels(dict(each.labels) for each in scrape.samples if each.metric in roles.READ)
    return said or of_words(scrape.target)


def called(call: Callable[..., object], *arguments: object) -> object:
    return call(*arguments)


class ScrapeBuffer(Struct):
    """Buffer of the samples of all targets until a part is written. `on_scrape`, `on_write_error`: called with each of these."""

    on_scrape: Callable[[Scrape], None] = lambda scrape: None
    on_write_error: Callable[[str], None] = lambda error: None
    on_write: Callable[[], None] = lambda: None  # after each write to the disk
    apart: Callable[..., object] = called  # calls what waits for the disk
    columns: scrapes_file.ScrapeColumns = field(default_factory=scrapes_file.ScrapeColumns)
    down: set[str] = field(default_factory=set)
    lost: int = 0  # samples that could not be written
    redact: Redaction = field(default_factory=Redaction)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, scrape: Scrape) -> None:
        """Add the samples of a scrape, log a change of the target's state, and call `on_scrape`."""
        if scrape.error is not None:
            scrape = replace(scrape, error=escaped(self.redact(scrape.error)))
        with self.lock:
            for sample in scrape.samples if scrape.page is None else scrape.page.stored:
                at_ns = scrape.wall_ns if sample.at_ns is None else sample.at_ns
                self.columns.append(at_ns, scrape.target, sample.metric, sample.labels, sample.value)
            if scrape.error is None:
                took_s = scrape.duration_ns / NS_PER_S
                self.columns.append(scrape.at_ns, scrape.target, names.SCRAPE_DURATION, (), took_s)
            self._log(scrape)
            self.on_scrape(scrape)

    def failed(self, error: str, loss: str) -> None:
        """Report a failed write on stderr and by `on_write_error`."""
        print(f"scraper: {error}: {loss}", file=sys.stderr, flush=True)
        self.on_write_error(error)

    def take(self) -> scrapes_file.ScrapeColumns:
        """Return and remove the samples."""
        with self.lock:
            taken, self.columns = self.columns, scrapes_file.ScrapeColumns()
        return taken

    def _log(self, scrape: Scrape) -> None:
        if scrape.error is not None and scrape.target not in self.down:
            self.down.add(scrape.target)
            print(f"scraper: {scrape.target}: no metrics: {scrape.error}", file=sys.stderr, flush=True)
        elif scrape.error is None and scrape.target in self.down:
            self.down.discard(scrape.target)
            print(f"scraper: {scrape.target}: metrics are back", file=sys.stderr, flush=True)


class Scraper(Struct):
    """Scrapes of one target until `stop` is set.

    The first scrapes, and those after a page of another process, are on a new connection each: if a server restarted, the page
    before does not come back; behind a balancer per connection it soon does.
    """

    client: PageClient
    interval_ns: int
    anchor: Anchor
    buffer: ScrapeBuffer
    stop: threading.Event
    replicas: Replicas = field(default_factory=Replicas)
    probes: int = PROBES  # scrapes to come on a new connection each
    until_ns: int | None = None  # of a page that left the list: its last scrape is the last one with an answer

    def run(self) -> None:
        """Scrape at start, start + interval, ... until `stop` is set, then once more; or until the page has left."""
        start_ns, tick, skipped = now_ns(), 0, 0
        pages = PageSamples(self.buffer.redact)
        over = False
        while not over:
            over = self.stop.wait(max(0, start_ns + tick * self.interval_ns - now_ns()) / NS_PER_S)
            scrape = self._scrape(pages, LAST_S if over else TIMEOUT_S, skipped)
            if self.until_ns is not None and (scrape.error is not None or now_ns() > self.until_ns):
                break
            self.buffer.add(scrape)
            due = tick + 1
            tick = max(due, -(-(now_ns() - start_ns) // self.interval_ns))
            skipped += tick - due
        self.client.close()

    def _scrape(self, pages: PageSamples, timeout_s: float, skipped: int) -> Scrape:
        before_ns = now_ns()
        text = page = error = None
        if self.probes and self.replicas.count == 1:
            self.client.close()
            self.probes -= 1
        try:
            text = self.client.get(timeout_s)
        except (OSError, ValueError) as fault:
            error = str(fault)
        after_ns = now_ns()
        wall_ns = self.anchor.to_wall_ns((before_ns + after_ns) // 2)
        try:
            page = None if text is None else pages.read(text, wall_ns)
        except ValueError as fault:
            error = str(fault)
        samples = [] if page is None else page.samples
        self.replicas.add(wall_ns / NS_PER_S, identifying(samples))
        if self.replicas.changed:
            self.probes = PROBES
        target, duration_ns = self.client.url.target, after_ns - before_ns
        return Scrape(wall_ns, target, duration_ns, skipped, samples, error, self.replicas.count, page)


def write_part(folder: Path, number: int, buffer: ScrapeBuffer) -> int:
    """Write the samples since the last part; return the number of the next part."""
    columns = buffer.take()
    if not len(columns):
        return number
    try:
        buffer.apart(scrapes_file.write_part, folder, number, columns.to_table(), buffer.on_write)
    except OSError as error:  # a full disk leaves a gap, and the next part may fit again
        buffer.lost += len(columns)
        buffer.failed(f"{folder}: {reason(error)}", f"{len(columns)} samples lost")
    return number + 1


def write_until(folder: Path, buffer: ScrapeBuffer, ended: Callable[[float], bool]) -> int:
    """Write parts until the end; return the number of the next part. `ended(timeout_s)`: wait for the end, True if it came."""
    number = scrapes_file.next_number(folder)
    due_ns = now_ns() + int(PART_S * NS_PER_S)
    while not ended(max(0, due_ns - now_ns()) / NS_PER_S):
        if now_ns() >= due_ns:
            number = write_part(folder, number, buffer)
            due_ns += int(PART_S * NS_PER_S)
    return number


class ScrapeJob(Struct, frozen=True):
    """Targets, interval and folder of scrapes. `roles`: known to the run. `changed`: returns other clients, None: the same."""

    clients: Sequence[PageClient]
    interval_s: float
    folder: Path
    anchor: Anchor
    roles: Mapping[str, Role] = {}
    changed: Callable[[], Sequence[PageClient] | None] = lambda: None


def scrape_all(job: ScrapeJob, buffer: ScrapeBuffer, ended: Callable[[float], bool]) -> None:
    """Scrape all targets until the end and join the parts. `ended`: as for `write_until`."""
    job.folder.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    interval_ns = round(job.interval_s * NS_PER_S)
    running: dict[str, tuple[Scraper, threading.Thread]] = {}

    def have(clients: Sequence[PageClient]) -> None:
        now = {client.url.target: client for client in clients}
        for target, (scraper, _) in running.items():
            scraper.until_ns = None if target in now else scraper.until_ns or now_ns() + round(LEAVE_S * NS_PER_S)
        for target, client in now.items():
            if target not in running or not running[target][1].is_alive():
                scraper = Scraper(client, interval_ns, job.anchor, buffer, stop)
                running[target] = scraper, threading.Thread(target=scraper.run, daemon=True)
                running[target][1].start()

    def ended_or_changed(timeout_s: float) -> bool:
        over = ended(timeout_s)
        if (clients := job.changed()) is not None:
            have(clients)
        return over

    have(job.clients)
    number = write_until(job.folder, buffer, ended_or_changed)
    stop.set()
    give_up_ns = now_ns() + int((TIMEOUT_S + LAST_S) * NS_PER_S)  # the current scrape and the last one
    for _, thread in running.values():
        thread.join(max(0, give_up_ns - now_ns()) / NS_PER_S)
    write_part(job.folder, number, buffer)
    try:
        buffer.apart(scrapes_file.join_parts, job.folder, buffer.on_write)
    except OSError as error:  # the parts still exist
        buffer.failed(f"{job.folder}: {reason(error)}", "the parts are not joined")


def clients_of(
    urls: Sequence[str], tls: TlsSettings, api_key: str | None, without_key: Collection[str] = ()
) -> list[MetricsClient]:
    """Return one client per distinct page; those in `without_key` send no key. Raise UsageError for a bad URL or TLS file."""
    keyless = {MetricsUrl.parse(url) for url in without_key}
    pages = [MetricsUrl.parse(url) for url in dict.fromkeys(urls)]
    uses_tls = tls.names_files or any(page.scheme == "https" for page in pages)  # a wrong file is an error at any page
    context = tls.context() if uses_tls else None
    return [MetricsClient(page, context, None if page in keyless else api_key, tls) for page in pages]
