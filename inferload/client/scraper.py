"""The metrics scraper: a process of its own, so that neither parsing nor waiting disturbs the load generator.

A run starts it as `python -m inferload.client.scraper --out RUN/server_metrics --interval-s 0.25 --target URL [--target URL ...]`;
`inferload scrape` runs the same scrapes for a person, without a run.

Each target is scraped at absolute times by a thread of its own; what is late is skipped and counted, never bunched. A
scrape is stamped with the wall time of the middle of its request. A target that is down leaves a gap in the data and one
line on stderr when it goes and one when it returns. On stdout stands one JSON object per scrape for the process that
started this one: `{"wall_ns", "target", "up", "skipped", "gauges": {...}}`, with "error" where the target is down; lines
that nobody reads are left out rather than waited for.

As a run's child it ends on SIGTERM, or when stdin is closed (its parent is gone): one last scrape, the last part written, all parts
joined, exit code 0. SIGINT is ignored, since Ctrl-C reaches the whole group and the parent decides. An API key is read
from the environment (OPENAI_API_KEY) and from nowhere else.
"""

import argparse
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from inferload import scrapes_file
from inferload.client.connection.redaction import Redaction
from inferload.client.scrape_http import MetricsClient, MetricsUrl, tls_context
from inferload.errors import UsageError
from inferload.escaping import escaped
from inferload.measure.clock import NS_PER_S, Anchor, now_ns
from inferload.rundir import reason
from inferload.server_metrics import metric_names as names
from inferload.server_metrics.exposition import PromParser, Sample

# The environment's variable with the parent's own headers, `NAME: VALUE` a line: known so that they are redacted.
REDACTED_HEADERS = "INFERLOAD_REDACTED_HEADERS"
# A part is closed this often; a kill -9 loses no scrape that is older than twice that.
PART_S = 4.0
# How long a scrape may take: longer than an interval, since a busy server answers late but truly.
TIMEOUT_S = 4.0
# What the last scrape may take when the scraper is told to stop.
LAST_S = 2.0


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer, or one failure to get it. `error` is None when the target was up."""

    wall_ns: int
    target: str
    duration_ns: int
    skipped: int  # due times so far at which the previous scrape was still under way
    samples: list[Sample]
    error: str | None = None


def gauges(samples: list[Sample]) -> dict[str, float]:
    """The few figures that a live page shows, over all engines: KV usage the highest, everything else the sum.

    Only what the server publishes is there; `_total` values are counters since the server's start.
    """
    meaning = names.current_names({sample.metric for sample in samples})
    values: dict[str, list[float]] = {}
    for sample in samples:
        values.setdefault(meaning[sample.metric] or "", []).append(sample.value)
    shown = {
        "requests_running": names.RUNNING,
        "requests_waiting": names.WAITING,
        "prefix_cache_queries_total": names.PREFIX_QUERIES,
        "prefix_cache_hits_total": names.PREFIX_HITS,
        "preemptions_total": names.PREEMPTIONS,
        "prompt_tokens_total": names.PROMPT_TOKENS,
        "generation_tokens_total": names.GENERATION_TOKENS,
    }
    found = {name: sum(values[metric]) for name, metric in shown.items() if metric in values}
    if names.KV_CACHE_USAGE in values:
        found["kv_cache_usage"] = max(values[names.KV_CACHE_USAGE])
    return found


def line_of(scrape: Scrape) -> str:
    """What the parent reads of a scrape; a value that JSON cannot hold (NaN) is left out."""
    document: dict[str, object] = {
        "wall_ns": scrape.wall_ns,
        "target": scrape.target,
        "up": scrape.error is None,
        "skipped": scrape.skipped,
        "gauges": {name: value for name, value in gauges(scrape.samples).items() if abs(value) < float("inf")},
    }
    if scrape.error is not None:
        document["error"] = scrape.error
    return json.dumps(document, ensure_ascii=False)


@dataclass(slots=True)
class Book:
    """Scrapes of all targets' threads until a part is written. `tell`, `tell_error`: called with each scrape and write error."""

    tell: Callable[[Scrape], None] = lambda scrape: _tell(line_of(scrape))
    tell_error: Callable[[str], None] = lambda error: _tell(json.dumps({"write_error": error}, ensure_ascii=False))
    columns: scrapes_file.ScrapeColumns = field(default_factory=scrapes_file.ScrapeColumns)
    down: set[str] = field(default_factory=set)
    lost: int = 0  # samples that could not be written
    redact: Redaction = field(default_factory=Redaction)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, scrape: Scrape) -> None:
        """Keep a scrape and tell of it."""
        if scrape.error is not None:
            scrape = replace(scrape, error=escaped(self.redact(scrape.error)))
        with self.lock:
            for sample in scrape.samples:
                self.columns.append(scrape.wall_ns, scrape.target, sample.metric, sample.labels, sample.value)
            if scrape.error is None:
                took_s = scrape.duration_ns / NS_PER_S
                self.columns.append(scrape.wall_ns, scrape.target, names.SCRAPE_DURATION, (), took_s)
            self._log(scrape)
            self.tell(scrape)

    def failed(self, error: str, loss: str) -> None:
        """Report a write that failed, on stderr and by `tell_error`."""
        print(f"scraper: {error}: {loss}", file=sys.stderr, flush=True)
        self.tell_error(error)

    def take(self) -> scrapes_file.ScrapeColumns:
        """What came since the last take."""
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


def _tell(line: str) -> None:
    """Write a line to the parent if it can take it now: a parent that stalls must not stall the scrapes."""
    data = line.encode() + b"\n"
    try:
        if len(data) <= select.PIPE_BUF and select.select([], [1], [], 0)[1]:
            os.write(1, data)
    except OSError:
        pass  # the parent is gone: stdin says so too, and that ends the scraper


@dataclass(frozen=True, slots=True)
class Scraper:
    """One target, scraped until told to stop."""

    client: MetricsClient
    interval_ns: int
    anchor: Anchor
    book: Book
    stop: threading.Event

    def run(self) -> None:
        """Scrape at start, start + interval, ...; then once more when told to stop."""
        start_ns, tick, skipped = now_ns(), 0, 0
        parser = PromParser(names.KEPT_PREFIXES, self.book.redact)
        while not self.stop.wait(max(0, start_ns + tick * self.interval_ns - now_ns()) / NS_PER_S):
            self.book.add(self._scrape(parser, TIMEOUT_S, skipped))
            due = tick + 1
            tick = max(due, -(-(now_ns() - start_ns) // self.interval_ns))
            skipped += tick - due
        self.book.add(self._scrape(parser, LAST_S, skipped))
        self.client.close()

    def _scrape(self, parser: PromParser, timeout_s: float, skipped: int) -> Scrape:
        before_ns = now_ns()
        samples: list[Sample] = []
        error = None
        try:
            page = self.client.get(timeout_s)
            after_ns = now_ns()
            samples = [sample for sample in parser.parse(page) if not sample.metric.endswith("_created")]
            if not samples:
                error = "the page has no metrics of an inference server"
        except (OSError, ValueError) as fault:
            after_ns = now_ns()
            samples, error = [], str(fault)
        wall_ns = self.anchor.to_wall_ns((before_ns + after_ns) // 2)
        return Scrape(wall_ns, self.client.url.target, after_ns - before_ns, skipped, samples, error)


def write_taken(folder: Path, number: int, book: Book) -> int:
    """Close a part with what came since the last one; returns the number of the next part."""
    columns = book.take()
    if not len(columns):
        return number
    try:
        scrapes_file.write_part(folder, number, columns.to_table())
    except OSError as error:  # a full disk leaves a gap, and the next part may fit again
        book.lost += len(columns)
        book.failed(f"{folder}: {reason(error)}", f"{len(columns)} samples lost")
    return number + 1


def write_until(folder: Path, book: Book, ended: Callable[[float], bool]) -> int:
    """Write parts until the end; returns the number of the next part. `ended`: waits so many seconds at most for the end."""
    number = scrapes_file.next_number(folder)
    due_ns = now_ns() + int(PART_S * NS_PER_S)
    while not ended(max(0, due_ns - now_ns()) / NS_PER_S):
        if now_ns() >= due_ns:
            number = write_taken(folder, number, book)
            due_ns += int(PART_S * NS_PER_S)
    return number


@dataclass(frozen=True, slots=True)
class Job:
    """What is scraped, how often, and where it goes."""

    clients: Sequence[MetricsClient]
    interval_s: float
    folder: Path
    anchor: Anchor


def scrape_all(job: Job, book: Book, ended: Callable[[float], bool]) -> None:
    """From the first scrape to the joined file. `ended`: as of `write_until`."""
    job.folder.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    interval_ns = round(job.interval_s * NS_PER_S)
    scrapers = [Scraper(client, interval_ns, job.anchor, book, stop) for client in job.clients]
    threads = [threading.Thread(target=scraper.run, daemon=True) for scraper in scrapers]
    for thread in threads:
        thread.start()
    number = write_until(job.folder, book, ended)
    stop.set()
    give_up_ns = now_ns() + int((TIMEOUT_S + LAST_S) * NS_PER_S)  # one scrape under way, and the last one
    for thread in threads:
        thread.join(max(0, give_up_ns - now_ns()) / NS_PER_S)
    write_taken(job.folder, number, book)
    try:
        scrapes_file.join_parts(job.folder)
    except OSError as error:  # the parts stand
        book.failed(f"{job.folder}: {reason(error)}", "the parts stay as they are")


def clients_of(
    urls: Sequence[str], ca_file: Path | None, insecure: bool, api_key: str | None, without_key: Collection[str] = ()
) -> list[MetricsClient]:
    """One client per distinct page; those in `without_key` send no key. UsageError for a bad URL or file of authorities."""
    keyless = {MetricsUrl.parse(url) for url in without_key}
    pages = [MetricsUrl.parse(url) for url in dict.fromkeys(urls)]
    context = tls_context(ca_file, insecure)
    return [MetricsClient(page, context, None if page in keyless else api_key) for page in pages]


def parent_ended(woken: int) -> Callable[[float], bool]:
    """Whether SIGTERM came (a byte on `woken`) or stdin was closed, within so many seconds."""

    def ended(timeout_s: float) -> bool:
        ready, _, _ = select.select([0, woken], [], [], timeout_s)
        return woken in ready or (0 in ready and not os.read(0, 4096))

    return ended


def job_of(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Job:
    """The child's work by its own command line."""
    key = environment.get("OPENAI_API_KEY") or None
    clients = clients_of(arguments.target, arguments.ca_file, arguments.insecure, key, arguments.no_key)
    return Job(clients, arguments.interval_s, arguments.out, arguments.anchor or Anchor.take())


def redaction_of(environment: Mapping[str, str]) -> Redaction:
    """Redaction of the child's key and of its parent's header values."""
    return Redaction.of(environment.get("OPENAI_API_KEY") or None, _redacted(environment))


def _redacted(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Headers of the parent that a server may echo in a label or an error; they are sent to no metrics page."""
    lines = environment.get(REDACTED_HEADERS, "").splitlines()
    return [(name, value) for name, _, value in (line.partition(": ") for line in lines)]


def parse_anchor(text: str) -> Anchor:
    """`WALL_NS:MONO_NS`, as the parent read its two clocks."""
    wall, _, mono = text.partition(":")
    return Anchor(int(wall), int(mono))


def parse_interval(text: str) -> float:
    """Seconds between scrapes; ValueError below 50 ms, where the scraper would load the server itself."""
    interval_s = float(text)
    if not 0.05 <= interval_s <= 3600:
        raise ValueError(text)
    return interval_s


def build_parser() -> argparse.ArgumentParser:
    """The scraper's own command line."""
    parser = argparse.ArgumentParser(
        prog="inferload.client.scraper", description="Keeps a server's metrics page.", allow_abbrev=False
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the parts")
    parser.add_argument("--target", action="append", required=True, metavar="URL", help="metrics page; repeatable")
    parser.add_argument(
        "--no-key", action="append", default=[], metavar="URL", help="page that gets no API key; repeatable"
    )
    parser.add_argument(
        "--interval-s", type=parse_interval, default=0.25, help="seconds between scrapes (0.05 to 3600)"
    )
    parser.add_argument("--anchor", type=parse_anchor, metavar="WALL_NS:MONO_NS", help="the parent's clock anchor")
    parser.add_argument("--ca-file", type=Path, help="PEM file of the authority that signed the server's certificate")
    parser.add_argument("--insecure", action="store_true", help="do not check the server's certificate")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Scrape until the parent says or is gone; 2 where the start could not be made."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    woken, wake = os.pipe()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: os.write(wake, b"x"))
    try:
        book = Book(redact=redaction_of(os.environ))
        scrape_all(job_of(build_parser().parse_args(argv), os.environ), book, parent_ended(woken))
    except UsageError as error:
        print(f"scraper: {escaped(str(error))}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
