"""Scrapes of a server in memory, written as those of the scraper."""

from pathlib import Path

from inferload.base import rundir
from inferload.figures import metric_names as names
from inferload.figures.server_figures import KEPT_PREFIXES
from inferload.servers import scrapes_file
from inferload.servers.exposition import PromParser

from ..simulator.in_memory import InMemoryServer
from .clock import VirtualClock


class Scrapes:
    """Scrapes at equal intervals from now on until `stop`. A scrape takes no time."""

    def __init__(self, server: InMemoryServer, clock: VirtualClock, target: str, interval_ns: int) -> None:
        self._server = server
        self._clock = clock
        self._target = target
        self._interval_ns = interval_ns
        self._parser = PromParser(KEPT_PREFIXES)
        self._columns = scrapes_file.ScrapeColumns()
        self._ended = False
        self._tick()

    def stop(self, run_dir: Path) -> None:
        """Take the last scrape, and write the file of a run directory."""
        self._ended = True
        self._scrape()
        folder = run_dir / rundir.SERVER_METRICS
        scrapes_file.write_part(folder, 0, self._columns.to_table())
        scrapes_file.join_parts(folder)

    def _tick(self) -> None:
        if not self._ended:
            self._scrape()
            self._clock.at(self._clock.now_ns() + self._interval_ns, self._tick)

    def _scrape(self) -> None:
        wall_ns = self._clock.wall_ns()
        for sample in self._parser.parse(self._server.get("/metrics").body.decode()):
            if not sample.metric.endswith("_created"):
                self._columns.append(wall_ns, self._target, sample.metric, sample.labels, sample.value)
        self._columns.append(wall_ns, self._target, names.SCRAPE_DURATION, (), 0.0)
