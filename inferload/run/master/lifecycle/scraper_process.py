"""Scraper process of a run, controlled by the master."""

import json
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

import gevent
from gevent.event import Event
from gevent.fileobject import FileObject

from inferload.base.clock import NS_PER_S, Anchor, now_ns
from inferload.base.threads import in_thread
from inferload.client.connection.target import Target
from inferload.run.process.greenlets import fork_apart, logged_wait
from inferload.run.process.settings import ProcessSettings
from inferload.servers import scrapes_file
from inferload.servers.roles import Role
from inferload.servers.scrape_http import MetricsUrl

logger = logging.getLogger(__name__)

_FIRST_S = 10.0
_STALL_S = 30.0  # without a line of a process that makes the last scrape and joins the parts
_LAST_LINES_S = 10.0  # to read the last lines of a process that has ended, on a busy machine


class Scraping:
    """Process that scrapes the metrics pages into a run directory until `stop`. `latest`: newest line of each target."""

    def __init__(
        self,
        folder: Path,
        urls: tuple[str, ...],
        interval_s: float,
        own: ProcessSettings,
        anchor: Anchor,
        *,
        roles: Mapping[str, Role] = MappingProxyType({}),
    ) -> None:
        self.latest: dict[str, dict[str, Any]] = {}
        self.write_error: str | None = None  # the first write of a part that failed
        self._folder = folder
        self._heard_ns = now_ns()  # instant of the last line
        self._news, self._ended = Event(), Event()
        (stdin, stop), (lines, stdout) = os.pipe(), os.pipe()
        self._own, self._targets = own, {MetricsUrl.parse(url).target for url in urls}
        keyless = _keyless(urls, own)

        def work() -> None:
            from inferload.servers import scraper, scraping  # of this process only

            clients = partial(scraper.clients_of, tls=own.tls, api_key=own.credentials.api_key)
            redact = own.redaction
            job = scraper.ScrapeJob(clients(urls, without_key=keyless), interval_s, folder, anchor, roles)
            scraping.scrape_for_parent(job, redact, in_thread, lambda urls, keyless: clients(urls, without_key=keyless))

        self._stdin = FileObject(stop, "wb", buffering=0)
        self.pid = fork_apart("scraper", work, stdin, stdout, self._end)
        self._reader = gevent.spawn(self._read, FileObject(lines, "r", encoding="utf-8"))

    def wait_for_first(self, targets: int) -> None:
        """Wait until every target was scraped, so that the first values of counters precede the load."""
        with gevent.Timeout(_FIRST_S, False):
            while len(self.latest) < targets and not self._ended.is_set():
                self._news.wait()
                self._news.clear()
        if missing := targets - len(self.latest):
            logger.warning("%d of %d metrics pages: no values before the load began", missing, targets)

    def change(self, urls: Sequence[str], lists: Sequence[str]) -> None:
        """Scrape these pages from now on; the others until they do not answer. `lists`: DNS names and files that have them now."""
        self._own, self._targets = self._own.also_to(lists, urls), {MetricsUrl.parse(url).target for url in urls}
        self.latest = {target: line for target, line in self.latest.items() if target in self._targets}
        with suppress(OSError, ValueError):  # the process has ended
            self._stdin.write(json.dumps([list(urls), _keyless(urls, self._own)]).encode() + b"\n")

    def stop(self) -> None:
        """Make a last scrape, write the last part and end the process; kill it if it stalls."""
        if self._ended.is_set() and not self._stdin.closed:
            logger.warning("the metrics scraper had ended by itself")
        self._stdin.close()
        self._heard_ns = now_ns()
        with logged_wait(logger, lambda: f"waiting until the scrapes in {self._folder} are written"):
            while (left_ns := self._heard_ns + round(_STALL_S * NS_PER_S) - now_ns()) > 0:
                if self._ended.wait(left_ns / NS_PER_S):
                    break
        if not self._ended.is_set():
            logger.warning("the metrics scraper made no progress for %g s and was killed", _STALL_S)
            os.kill(self.pid, signal.SIGKILL)
            self._ended.wait()
        scrapes_file.clear_up(self._folder)
        self._reader.join(timeout=_LAST_LINES_S)

    def _end(self) -> None:
        self._ended.set()
        self._news.set()

    def _read(self, lines: TextIO) -> None:
        with lines:
            for line in lines:
                self._heard_ns = now_ns()
                try:
                    document = json.loads(line)
                except ValueError:
                    continue
                if "write_error" in document:
                    self.write_error = self.write_error or str(document["write_error"])
                elif document and document.get("target", "") in self._targets:
                    self.latest[document.get("target", "")] = document
                self._news.set()


def _keyless(urls: Sequence[str], own: ProcessSettings) -> list[str]:
    return [url for url in urls if not own.may_send_to(Target.of_page(url))]
