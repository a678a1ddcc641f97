"""`inferload scrape`: record the Prometheus metrics of servers without a run."""

import argparse
import math
import os
import select
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.errors import UsageError, explained
from inferload.base.numbers import clock
from inferload.base.run_options import API_KEY_VARIABLE, TLS_OPTIONS, add_options
from inferload.base.status_lines import StatusLines
from inferload.servers import metrics_targets, replicas

EXIT_INCOMPLETE = 1
PROGRESS_S = 1.0

_OPTIONS = ("--api-key-file", *TLS_OPTIONS)
_EPILOG = """\
Examples:
  inferload scrape http://server:8000 --out metrics --duration 600
  inferload report --locust-csv results/load --scrape metrics  # afterwards
Ctrl-C, SIGTERM and the end of --duration have the same effect: one last scrape, then all parts are joined into DIR/all.parquet.
Exit code: 0 every page had metrics; 1 a page never had any, or samples could not be written; 2 invalid arguments."""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "scrape",
        description="Read the metrics pages of servers at fixed intervals and write them as Parquet.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add(
        "urls",
        metavar="URL",
        nargs="+",
        help="metrics page, as http://server:8000/metrics (default path: /metrics), dns://NAME:PORT/metrics (each address of a "
        "name), or a file (a URL per line, or Prometheus file_sd, .json or .yaml)",
    )
    add("--out", metavar="DIR", type=Path, required=True, help="output directory; must be empty or absent")
    add(
        "--interval",
        metavar="S",
        type=partial(_seconds, 0.05, 3600.0),
        default=0.25,
        help="seconds between scrapes, 0.05 to 3600 (default: 0.25)",
    )
    add(
        "--duration",
        metavar="S",
        type=partial(_seconds, 0.05, 1e8),
        help="seconds until the end (default: until Ctrl-C)",
    )
    add_options(parser, _OPTIONS)
    parser.set_defaults(run=run)


def _seconds(least: float, most: float, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r}: not a number of seconds, {least:g} to {most:g}")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Scrape until the end; return the exit code."""
    from inferload.base.clock import Anchor
    from inferload.base.redaction import Redaction
    from inferload.base.tls import TlsSettings
    from inferload.client.connection import credentials
    from inferload.servers import scraper as scrape  # imports pyarrow

    _check_free(arguments.out)
    key = credentials.api_key(arguments.api_key_file, API_KEY_VARIABLE)
    urls = metrics_targets.urls_of(arguments.urls)
    clients = scrape.clients_of(urls, TlsSettings.of(arguments), key)
    job = scrape.ScrapeJob(clients, arguments.interval, arguments.out, Anchor.take())
    progress = ScrapeProgress([client.url.target for client in clients])
    buffer = scrape.ScrapeBuffer(on_scrape=progress.add, redact=Redaction.of(key, ()))
    woken, wake = os.pipe()
    handlers = {
        number: signal.signal(number, lambda *_: os.write(wake, b"x")) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        scrape.scrape_all(job, buffer, _end_waiter(woken, arguments.duration, progress))
    except OSError as error:
        raise UsageError(f"--out {arguments.out}: {error.strerror}; name a directory that can be written") from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(woken)
        os.close(wake)
    print(progress.summary(arguments.out))
    return EXIT_INCOMPLETE if progress.silent or buffer.lost else 0


def _check_free(folder: Path) -> None:
    with explained(f"--out {folder}", "name a directory that can be read"):
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if taken:
        raise UsageError(f"--out {folder}: not an empty directory; name another, or remove it")


def _end_waiter(woken: int, duration_s: float | None, progress: "ScrapeProgress") -> Callable[[float], bool]:
    """Return a function that waits up to a timeout for a signal or the end, shows the progress, and returns True at the end."""
    end_ns = None if duration_s is None else now_ns() + round(duration_s * NS_PER_S)

    def ended(timeout_s: float) -> bool:
        left_s = math.inf if end_ns is None else (end_ns - now_ns()) / NS_PER_S
        ready, _, _ = select.select([woken], [], [], max(0.0, min(timeout_s, left_s, PROGRESS_S)))
        progress.show()
        return bool(ready) or (end_ns is not None and now_ns() >= end_ns)

    return ended


class ScrapeProgress:
    """Counts of scrapes by target, shown as one line of stderr on a terminal."""

    def __init__(self, targets: list[str]) -> None:
        self._begun_ns = now_ns()
        self._answered = dict.fromkeys(targets, 0)
        self._failed = dict.fromkeys(targets, 0)
        # Newest scrape. All targets are keys from the start: threads add scrapes while another reads.
        self._latest: dict[str, Any] = dict.fromkeys(targets)
        self._status = StatusLines(sys.stderr)

    def add(self, scrape: Any) -> None:
        """Count one scrape. Called by the threads of the targets under a lock."""
        (self._answered if scrape.error is None else self._failed)[scrape.target] += 1
        self._latest[scrape.target] = scrape

    @property
    def silent(self) -> list[str]:
        """Targets without any successful scrape."""
        return [target for target, count in self._answered.items() if not count]

    def line(self) -> str:
        """Return elapsed time, number of scrapes, and number of targets that are up."""
        up = sum(scrape is not None and scrape.error is None for scrape in self._latest.values())
        counts = f"{sum(self._answered.values()):,} scrapes, {sum(self._failed.values()):,} failed"
        return f"{clock((now_ns() - self._begun_ns) / NS_PER_S)} · {counts} · {up} of {len(self._answered)} targets up"

    def show(self) -> None:
        self._status.draw([self.line()])

    def summary(self, folder: Path) -> str:
        """Return the result: the last line, and a line per target without metrics, or with several servers."""
        self._status.clear()
        lines = [f"{folder}: {self.line()}"]
        newest = [scrape for scrape in self._latest.values() if scrape is not None]
        errors = {scrape.target: scrape.error for scrape in newest}
        lines += [f"{target}: no metrics: {errors.get(target, 'no answer')}" for target in self.silent]
        lines += [replicas.left_out(scrape.target, scrape.replicas) for scrape in newest if scrape.replicas > 1]
        return "\n".join(lines)
