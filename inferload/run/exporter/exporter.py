"""HTTP page of the metrics of the master's current run, for --export-metrics."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import gevent
from gevent.pywsgi import WSGIServer

from inferload import __version__
from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.errors import UsageError
from inferload.figures.rate_figures import ACHIEVED, OFFERED
from inferload.run.exporter import metrics
from inferload.run.exporter.metrics import RunState
from inferload.run.master.lifecycle.master_run import MasterRun
from inferload.run.master.manifest import models_of
from inferload.run.process.listen_address import ListenAddress
from inferload.servers.text_format import CONTENT_TYPE
from inferload.turns.record import Phase

logger = logging.getLogger(__name__)

_INTERVALS = 4  # of the last scrapes; the longest is that of a single scraper if there are several
_LONGEST_WAIT_S = 60.0  # Prometheus' default interval
_SLACK = 1.2
_LEAST_SLACK_S = 2.0  # a scrape of a busy machine comes late
_POLL_S = 0.05
_SCRAPER_HEADER = "HTTP_X_PROMETHEUS_SCRAPE_TIMEOUT_SECONDS"  # of Prometheus and its compatible scrapers


class Exporter:
    """Metrics page of the latest run, which stays until the next run starts.

    `latest`: returns the latest run; `users`: returns Locust's current number of users.
    """

    def __init__(self, latest: Callable[[], MasterRun | None], users: Callable[[], int]) -> None:
        self._latest = latest
        self._users = users
        self._scrapes_ns: deque[int] = deque(maxlen=_INTERVALS + 1)
        self._final_run_id: str | None = None  # run whose final state was scraped

    def listen(self, address: ListenAddress) -> None:
        """Serve the page; UsageError if the address is not free."""
        server = WSGIServer((address.host, address.port), self.page, log=None, error_log=logger)
        try:
            server.start()
        except OSError as error:
            raise UsageError(address.fault(error)) from error
        logger.info("metrics of this run for Prometheus: %s", address.url)

    def page(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request (WSGI)."""
        if environ["PATH_INFO"] != "/metrics":
            start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            return [b"the metrics are at /metrics\n"]
        run = self._latest()
        body = b"" if run is None else metrics.page(state(run, self._users())).encode()
        start_response("200 OK", [("Content-Type", CONTENT_TYPE), ("Content-Length", str(len(body)))])
        return [body] if run is None or _SCRAPER_HEADER not in environ else self._scraped(body, run)

    def _scraped(self, body: bytes, run: MasterRun) -> Iterator[bytes]:
        """Yield a page, and note its scrape after the write, which fails if the scraper has closed the connection."""
        final = run.summary is not None
        yield body
        self._scrapes_ns.append(now_ns())
        if final:
            self._final_run_id = run.run_id

    def wait_for_last_scrape(self) -> None:
        """Wait until a regular scraper has the final state of the run: the process ends after it, or another run begins."""
        run, wait_s = self._latest(), self._wait_s()
        if run is None or run.summary is None or run.run_id == self._final_run_id or not wait_s:
            return
        logger.info("waiting at most %.0f s for the last scrape of the metrics", wait_s)
        until_ns = now_ns() + round(wait_s * NS_PER_S)
        over = False
        while run.run_id != self._final_run_id:
            if over:
                logger.warning("the final metrics of the run were not scraped within %.0f s", wait_s)
                return
            over = now_ns() > until_ns  # after a pause of the process, a scrape may be in the socket: poll once more
            gevent.sleep(_POLL_S)

    def _wait_s(self) -> float:
        """Return the longest interval of the last scrapes with some slack; 0 without two scrapes."""
        longest_s = max((later - earlier for earlier, later in pairwise(self._scrapes_ns)), default=0) / NS_PER_S
        return min(max(_SLACK * longest_s, longest_s + _LEAST_SLACK_S), _LONGEST_WAIT_S) if longest_s else 0.0


def state(run: MasterRun, users: int) -> RunState:
    summary, scenario = run.summary, run.spec.scenario
    recent = run.recorder.recent.figures(run.phases.elapsed_s()) if run.summary is None else None
    warmed = scenario.phases.adaptive or scenario.phases.warmup_s > 0
    phases: tuple[Phase, ...] = ("warmup", "measure") if warmed else ("measure",)
    return RunState(
        run_id=run.run_id,
        scenario=scenario.name,
        model=", ".join(models_of(run.spec, run.preflight)),
        engine=run.preflight.engine,
        version=__version__,
        started=[(phase, name) for phase in phases for name in run.preflight.sessions.classes],
        tallies=run.inbox.totals.tallies,
        health=run.inbox.totals.health,
        phase=run.phases.now() if run.summary is None else None,
        in_flight=run.roster.in_flight,
        users=users if run.summary is None else 0,  # Locust's users may still run, without a load
        offered_sessions_per_s=None if recent is None else recent[OFFERED.key],
        achieved_sessions_per_s=None if recent is None else recent[ACHIEVED.key],
        measurement=None if summary is None else summary.verdict.measurement,
        outcome=None if summary is None else summary.outcome.state,
        redact=run.redaction.document,
    )
