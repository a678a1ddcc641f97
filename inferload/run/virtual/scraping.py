"""Scrapes of a simulated server in memory, by the scraper's own code on the virtual loop."""

import json
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event

from inferload.base.clock import Anchor
from inferload.run.virtual.server import SimulatedServer
from inferload.servers.scrape_http import MetricsUrl
from inferload.servers.scraper import Scrape, ScrapeBuffer, ScrapeJob, line_of, scrape_all


class MemoryPage:
    """Client of the server's metrics page."""

    def __init__(self, url: MetricsUrl, simulated: SimulatedServer) -> None:
        self.url = url
        self._simulated = simulated

    def get(self, timeout_s: float) -> str:
        return self._simulated.metrics_page()

    def close(self) -> None:
        """Do nothing: there is no connection."""


class VirtualScraping:
    """Counterpart of `Scraping`, in this process."""

    def __init__(
        self, folder: Path, urls: tuple[str, ...], interval_s: float, simulated: SimulatedServer, anchor: Anchor
    ) -> None:
        self._scrapes: dict[str, Scrape] = {}  # the latest by target
        self.write_error: str | None = None
        self._stop, self._scraped = Event(), Event()
        clients = [MemoryPage(MetricsUrl.parse(url), simulated) for url in urls]
        buffer = ScrapeBuffer(on_scrape=self._keep, on_write_error=self._failed)
        job = ScrapeJob(clients, interval_s, folder, anchor)
        self._scraper = gevent.spawn(scrape_all, job, buffer, self._stop.wait)

    @property
    def latest(self) -> dict[str, dict[str, Any]]:
        return {target: json.loads(line_of(scrape)) for target, scrape in self._scrapes.items()}

    def wait_for_first(self, targets: int) -> None:
        """Wait until every target was scraped."""
        while len(self._scrapes) < targets:
            self._scraped.wait()
            self._scraped.clear()

    def stop(self) -> None:
        """Make a last scrape, and write the last part."""
        self._stop.set()
        self._scraper.join()

    def _keep(self, scrape: Scrape) -> None:
        self._scrapes[scrape.target] = scrape
        self._scraped.set()

    def _failed(self, error: str) -> None:
        self.write_error = self.write_error or error
