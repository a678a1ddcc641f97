"""Recorder of a run's live figures: one point per second from workers' reports and metrics scrapes. No I/O.

Client figures are those of the rolling span of `inferload.results.rolling_stats`, the same as on the terminal. A column of one
class is named `NAME@class:CLASS`, one of a metrics target `NAME@target:TARGET`; without `@` it is of all classes or targets.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from inferload.base.clock import NS_PER_S
from inferload.figures.pages import metric_names as names
from inferload.figures.rate_figures import ATTAINMENT, EVENTS_PER_ARRIVAL, typical_gap_ms
from inferload.figures.servers.server_figures import RUNNING
from inferload.figures.turn_figures import ITL
from inferload.results.rolling_stats import SPAN_S, RecentFigures
from inferload.run.live.bottleneck import ClientFigures, LiveDiagnosis
from inferload.run.live.panels import CLIENT, LOAD, OF_SERVERS
from inferload.run.live.recorder import MINUTE_S, Recorder
from inferload.run.live.scrape_window import LiveWindow, Values
from inferload.run.live.series import Series
from inferload.servers import replicas
from inferload.servers.bottleneck.peers import OUTLIER, Peer, outliers, silence_s
from inferload.servers.servers_window import ServersWindow
from inferload.turns.tally import Tally

MOST_TARGETS = 16
STALE_S = 5.0  # an older scrape is unknown

_RUNNING = RUNNING.formula.readings[0].name
_COMPARED = "compared with the other servers over the last scrapes"
FAILED = "failed:"  # prefix of the columns of failures per second, by class of failure


class Instant(Struct, frozen=True):
    """State at the end of a second. `users`: None in an open loop; `scrapes`: newest line of the scraper by target."""

    in_flight: int
    users: int | None
    wall_ns: int
    scrapes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class _Target(Struct):
    """Scrapes of a target in the rolling span, oldest first, as (seconds since the load began, gauges).

    `replicas`: servers behind its address; of several, nothing is shown.
    """

    diagnosis: LiveDiagnosis
    answered_ns: int | None = None  # wall time of the newest scrape, of an inference server
    interval_ns: int = 0  # shortest time between two of them
    replicas: int = 1
    gauges: deque[tuple[float, Values]] = field(default_factory=lambda: deque(maxlen=SPAN_S + 1))
    at_ns: int = 0  # wall time of the newest samples that have times of their own

    def note(self, line: Mapping[str, Any]) -> None:
        """Note when an inference server last answered."""
        if line.get("up") and _RUNNING in line["gauges"] and names.IN_FRONT not in line["gauges"]:
            lasted_ns = 0 if self.answered_ns is None else line["wall_ns"] - self.answered_ns
            if lasted_ns > 0:
                self.interval_ns = min(lasted_ns, self.interval_ns or lasted_ns)
            self.answered_ns = line["wall_ns"]

    def add(self, at_s: float, line: Mapping[str, Any], wall_ns: int, client: ClientFigures) -> None:
        self.note(line)
        scraped_ns = line.get("wall_ns", 0)
        at_ns = line.get("at_ns", scraped_ns)
        fresh = (
            line.get("up") and wall_ns - scraped_ns <= STALE_S * NS_PER_S and scraped_ns - at_ns <= MINUTE_S * NS_PER_S
        )
        gauges = line.get("gauges") or {} if fresh else {}
        self.replicas = line.get("replicas", 1)
        if fresh and at_ns != scraped_ns:  # the newest values stay until the samples move
            if at_ns == self.at_ns:
                return
            at_s -= (wall_ns - at_ns) / NS_PER_S
            wall_ns = self.at_ns = at_ns
        if self.replicas > 1:
            self.gauges.clear()  # scrapes before were of several servers, too
            return
        self.gauges.append((at_s, gauges))
        self.diagnosis.add(wall_ns / NS_PER_S, gauges, client)

    def peer(self, name: str, wall_ns: int) -> Peer | None:
        """Return its figures for a comparison with other servers; None if it never answered, or is no inference server."""
        if self.answered_ns is None or self.replicas > 1:
            return None
        return Peer.of(name, self.diagnosis.window, (wall_ns - self.answered_ns) / NS_PER_S)

    def window(self, seconds: int) -> LiveWindow:
        """Return the scrapes of the last seconds; the last two if samples with their own times are rarer."""
        scrapes = list(self.gauges)[-seconds - 1 :]
        if not self.at_ns or len(scrapes) < 3:
            return LiveWindow(scrapes, seconds if self.at_ns else None)
        begin_s = min(scrapes[-1][0] - seconds, scrapes[-2][0])
        return LiveWindow([scrape for scrape in scrapes if scrape[0] >= begin_s - 1e-3], seconds)


class LiveRecorder:
    """Series of one run.

    `reports`: of its workers. `failures`: failed turns by class of failure so far. `slo`: limits by name, as `itl_ms`.
    `max_num_seqs`: of the server, if known. `hosts`: addresses that turns are sent to.
    """

    def __init__(
        self, reports: Recorder, slo: Mapping[str, float] | None = None, max_num_seqs: int | None = None, hosts: int = 1
    ) -> None:
        self.series = Series()
        self.failures: Counter[str] = Counter()
        self.targets: dict[str, _Target] = {}
        self.reports = reports
        self._slo = slo or {}
        self._max_num_seqs = max_num_seqs
        self._hosts = hosts
        self._outliers: dict[str, tuple[float, str]] = {}  # begin and text by target

    @property
    def classes(self) -> list[str]:
        """Names of the classes with columns of their own."""
        return list(self.reports.classes)

    def begin(self, scrapes: Mapping[str, Mapping[str, Any]]) -> None:
        """Note the newest lines of the scraper before the load: a server can end within the first second."""
        for target, line in self._lines(scrapes):
            target.note(line)

    def close_second(self, at_s: float, instant: Instant) -> None:
        """Add the point of the second that ends `at_s` seconds after the load began."""
        reports = self.reports
        values: dict[str, float | None] = dict(zip(LOAD, (instant.in_flight, instant.users), strict=True))
        figures = reports.recent.figures(at_s)
        values |= _client(figures)
        for name, recent in reports.classes.items():
            values |= _scoped(_client(recent.figures(at_s)), f"class:{name}")
        total = reports.recent.total(at_s) or Tally()
        client = ClientFigures(
            typical_gap_ms(total.sketch(ITL.key)),
            figures[EVENTS_PER_ARRIVAL.key],
            *reports.health.figures(at_s),
            reports.failed_now.total() - reports.refused_now,
            reports.ok,
            instant.in_flight if len(self.targets) == self._hosts == 1 else 0,
        )
        values |= self._server(at_s, instant, client)
        self.failures.update(reports.failed_now)
        values |= {f"{FAILED}{failure}": reports.failed_now[failure] for failure in self.failures}
        reports.failed_now.clear()
        reports.refused_now = 0
        self.series.append(at_s, values)

    def bottlenecks(self) -> list[dict[str, object]]:
        """Return servers that differ from their peers, then the current finding of each server that has one."""
        found: list[dict[str, object]] = [
            {"target": name, "code": OUTLIER, "probable": False, "since_s": since_s, "now": text, "evidence": _COMPARED}
            for name, (since_s, text) in self._outliers.items()
        ]
        single = ((name, target) for name, target in self.targets.items() if target.replicas == 1)
        states = ((name, target.diagnosis.state()) for name, target in single)
        return found + [{"target": name, **state} for name, state in states if state is not None]

    def _compare(self, wall_ns: int) -> None:
        peers = [peer for name, target in self.targets.items() if (peer := target.peer(name, wall_ns)) is not None]
        # It sees one scrape per second at most.
        intervals_s = [max(0.0, target.interval_ns / NS_PER_S - 1.0) for target in self.targets.values()]
        begins_s = {name: since_s for name, (since_s, _) in self._outliers.items()}
        self._outliers = {
            outlier.target: (begins_s.get(outlier.target, wall_ns / NS_PER_S), outlier.text)
            for outlier in outliers(peers, silence_s(intervals_s))
        }

    def left_out(self) -> list[str]:
        """Return a text for each address with several servers, in place of their figures."""
        several = ((name, target.replicas) for name, target in self.targets.items() if target.replicas > 1)
        return [replicas.left_out(name, count) for name, count in several]

    def slo_attainment(self) -> float | None:
        """Return the SLO attainment of the minute before the newest point; None without an SLO."""
        total = self.reports.minute.total(self.series.newest_s)
        return None if total is None else ATTAINMENT.value(total, MINUTE_S)

    def _lines(self, scrapes: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[_Target, Mapping[str, Any]]]:
        """Yield the lines of the scraper with their targets, of MOST_TARGETS at most."""
        for name, line in scrapes.items():
            if name not in self.targets and len(self.targets) < MOST_TARGETS:
                self.targets[name] = _Target(LiveDiagnosis(self._max_num_seqs, self._slo))
            if name in self.targets:
                yield self.targets[name], line

    def _server(self, at_s: float, instant: Instant, client: ClientFigures) -> dict[str, float | None]:
        for target, line in self._lines(instant.scrapes):
            target.add(at_s, line, instant.wall_ns, client)
        self.targets = {name: target for name, target in self.targets.items() if name in instant.scrapes}  # some left
        self._compare(instant.wall_ns)
        values = _figures(self.targets.values())
        for name, target in self.targets.items():
            values |= _scoped(_figures([target]), f"target:{name}")
        return values


def _client(figures: RecentFigures) -> dict[str, float | None]:
    return {name: figures[name] for name in CLIENT}


def _figures(targets: Iterable[_Target]) -> dict[str, float | None]:
    """Return the server columns of targets together: counts of the last second, others over the rolling span.

    A column that no target publishes is absent.
    """
    each = list(targets)
    second, span = (ServersWindow([target.window(seconds) for target in each]) for seconds in (1, SPAN_S))
    values = {row.key: row.number(second if row.form == "count" else span) for row in OF_SERVERS}
    return {name: value for name, value in values.items() if value is not None}


def _scoped(values: Mapping[str, float | None], scope: str) -> dict[str, float | None]:
    return {f"{name}@{scope}": value for name, value in values.items()}
