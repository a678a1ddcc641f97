"""Live figures of a run for the web UI: one point per second, and the document that pages poll."""

from pathlib import Path
from typing import Any

import gevent
from msgspec import structs

from inferload.base.clock import NS_PER_S, now_ns, wall_ns
from inferload.base.escaping import escaped
from inferload.base.numbers import plural
from inferload.results.documents.summary_document import RequestName
from inferload.results.latency_limits import LatencyLimit, latency_limits
from inferload.results.verdict.failures import first_lines, request_lines
from inferload.run.live import tables
from inferload.run.live.live_recorder import FAILED, Instant, LiveRecorder
from inferload.run.live.panels import CLIENT, LOAD, SERVER, view
from inferload.run.live.series import Series, Values
from inferload.run.master.finish import RunResult
from inferload.run.master.lifecycle.master_run import MasterRun
from inferload.run.master.manifest import deployment_of, models_of
from inferload.run.master.so_far import counts_so_far, left_s, measurement_so_far
from inferload.run.process.greenlets import sleep_until
from inferload.scenario.scenario import Scenario
from inferload.servers import replicas
from inferload.servers.bottleneck.evidence import max_num_seqs
from inferload.servers.scrape_http import MetricsUrl
from inferload.turns.states import ENDS

_MOST_MARKS = 200  # in one answer
_MOST_MODELS = 8
_MARK_TEXT = 200  # characters
_NO_TABLES: dict[str, Any] = {
    "badge": None,
    "bottlenecks": [],
    "left_out": [],
    "measurement": None,
    "gates": [],
    "rows": [],
    "others": [],
    "turns": None,
    "figures_of": None,
    "slo_minute": None,
}
_NOT_DRAWN = ("steady",)  # kinds of marks that are no event of the load


class LiveRun:
    """Live figures of one run, from the begin of its load; after its end they stay for pages that are opened late."""

    def __init__(self, run: MasterRun) -> None:
        self._run = run
        self.run_id = run.run_id
        self._models = [escaped(model) for model in models_of(run.spec, run.preflight)][:_MOST_MODELS]
        self._limits = _limits(run.spec.scenario)
        slo = run.spec.scenario.slo.model_dump(exclude_none=True)
        deployed = deployment_of(run.spec.target.url)  # by `inferload deploy`
        most = None if deployed is None else max_num_seqs(deployed)
        self.recorder = LiveRecorder(run.recorder, slo, most, len(run.spec.targets))
        self.over = self._closed = False
        self._result: RunResult | None = None
        self._tables: tuple[int, dict[str, Any]] | None = None  # (sequence, tables), computed once per point
        self._greenlet = gevent.spawn(self._record)

    @property
    def run_dir(self) -> Path:
        return self._run.directory.path

    def close(self) -> None:
        """Stop recording, at the end of the run, with a last point for what the workers reported since the one before."""
        self._greenlet.kill()
        self._closed = True
        if self._run.windows:
            self.recorder.close_second(self._run.phases.elapsed_s(), self._instant())

    def ended(self, result: RunResult | None) -> None:
        """End the run, with its outcome and the tables of its summary if it has a result."""
        self.over, self._result, self._tables = True, result, None

    def document(
        self, after: int | None = None, class_name: str | None = None, target: str | None = None, marks_after: int = 0
    ) -> dict[str, Any]:
        """Return the points after a sequence number with the current tables; see `series_document`."""
        run, recorder = self._run, self.recorder
        marks, series = run.marks.entries, series_document(recorder.series, after, class_name, target)
        if series["whole"]:
            marks_after = 0  # the page replaces its marks, too
        return {
            "run": self._about(),
            "series": series,
            "view": view() if series["whole"] else None,
            "classes": recorder.classes,
            "targets": list(recorder.targets),
            "marks": [
                {
                    "at_s": mark.wall_ns / NS_PER_S,
                    "kind": mark.kind,
                    "text": mark.text[:_MARK_TEXT],
                    "drawn": mark.kind not in _NOT_DRAWN,
                }
                for mark in marks[marks_after:][:_MOST_MARKS]
            ],
            "marks_to": min(len(marks), marks_after + _MOST_MARKS),
            **self._current_tables(),
        }

    def _record(self) -> None:
        run = self._run
        while not run.windows:
            gevent.sleep(0.05)
        start_ns, second = run.windows[0].start_ns, 0
        self.recorder.begin(self._instant().scrapes)
        while True:
            second = max(second + 1, (now_ns() - start_ns) // NS_PER_S)
            sleep_until(start_ns + second * NS_PER_S)
            self.recorder.close_second(float(second), self._instant())

    def _instant(self) -> Instant:
        run = self._run
        run.inbox.settle()
        scrapes = {} if run.scraping is None else run.scraping.latest
        users = None if run.spec.scenario.open_loop else run.users_now()  # a factor of the rate there
        return Instant(run.roster.in_flight, users, wall_ns(), dict(scrapes))

    def _about(self) -> dict[str, Any]:
        run, result = self._run, self._result
        scenario = run.spec.scenario
        start_ns = run.windows[0].start_ns if run.windows else None
        return {
            "id": run.run_id,
            "scenario": scenario.name,
            "engine": run.preflight.engine,
            "models": self._models,
            "target": ", ".join(target.url for target in run.spec.targets),
            "run_name": None if result is None else result.run_dir.name,  # of the pages of the ended run
            "start_s": None if start_ns is None else run.anchor.to_wall_ns(start_ns) / NS_PER_S,
            "phase": None if result is not None else run.own.writing if self._closed else run.phases.now(),
            "elapsed_s": round(run.phases.elapsed_s() if result is None else self.recorder.series.newest_s, 1),
            "left_s": None if result is not None else left_s(run),
            "draining": result is None and run.stop.is_set() and not self._closed,
            "over": self.over,
            "steady": run.steadiness.now,
            "limits": [structs.asdict(limit) for limit in self._limits],
            "scraped": [MetricsUrl.parse(url).target for url in run.preflight.metrics_urls],
        }

    def _current_tables(self) -> dict[str, Any]:
        sequence = self.recorder.series.sequence
        if self._tables is None or self._tables[0] != sequence:
            self._tables = sequence, self._tables_so_far() if self._result is None else self._tables_after(self._result)
        return self._tables[1]

    def _tables_so_far(self) -> dict[str, Any]:
        run = self._run
        counts = counts_so_far(run)
        if counts is None:
            return dict(_NO_TABLES)
        results, recorder = counts.results(), self.recorder
        gates, measurement = tables.gates_so_far(counts, results), measurement_so_far(run)
        lost = [member.name for member in run.roster.gone]
        total, others = counts.tallies.total(), run.others()
        requests = others.requests(run.inbox.totals.errors, run.anchor.mono_ns)
        troubles, by_name = first_lines(run.inbox.totals.errors.document(run.anchor.mono_ns)), list(requests.by_name)
        troubles += request_lines(by_name)
        if run.preflight.canaries is not None:
            by_name.append(RequestName(name="canary", sent=sum(total.by_canary.values()), failed=total.wrong_canaries))
            troubles += request_lines(by_name[-1:])
        if others.raised:
            troubles.append(f"tasks raised {plural(others.raised, 'exception')}, the first: {others.first}")
        return {
            "bottlenecks": recorder.bottlenecks(),
            "left_out": recorder.left_out(),
            "measurement": None if measurement is None else measurement.text,
            "badge": tables.badge_so_far(counts, gates, lost, troubles, measurement=measurement),
            "gates": gates,
            "rows": tables.class_rows(results),
            "others": tables.other_rows(by_name),
            "turns": {"sent": total.turns_begun} | {state.key: getattr(total, state.key) for state in ENDS},
            "figures_of": counts.phase,
            "slo_minute": recorder.slo_attainment(),
        }

    def _tables_after(self, result: RunResult) -> dict[str, Any]:
        summary = result.summary
        turns = summary.turns.whole_run
        return _NO_TABLES | {
            "left_out": [
                replicas.left_out(entry.target, entry.replicas) for entry in summary.servers if entry.replicas > 1
            ],
            "badge": tables.badge_of(summary),
            "gates": tables.gates_of(summary.verdict.gates),
            "rows": tables.class_rows(summary),
            "others": tables.other_rows(summary.other_requests.by_name),
            "turns": {"sent": turns.sent} | {state.key: getattr(turns, state.key) for state in ENDS},
            "figures_of": "measure",
        }


def _limits(scenario: Scenario) -> list[LatencyLimit]:
    """Return the limits of SLO and gates for lines in the charts."""
    names = [name for name in scenario.class_names or () if scenario.slo_of(name) != scenario.slo]
    slos = {"": scenario.slo} | {name: scenario.slo_of(name) for name in names}
    return latency_limits({name: slo.limits for name, slo in slos.items()}, scenario.gates)


HISTORY = 120  # buckets of a whole run, each with minimum, mean and maximum
NEWEST = 120  # points at full resolution beside them


def series_document(
    series: Series, after: int | None = None, class_name: str | None = None, target: str | None = None
) -> dict[str, Any]:
    """Return the points after a sequence number. None, or a number that is too old: the whole run.

    The whole run is `history`, in at most HISTORY buckets, and the newest points; without older points `history` is null. Client
    columns are of `class_name`, server columns of `target`; None: of all. A column without a known value is absent.
    """
    names = _columns_of(series, class_name, target)
    points = None if after is None else series.after(after, names)
    whole, history = points is None, None
    if points is None:
        points = series.newest(NEWEST, names)
        if (before := series.sequence - len(points.t_s)) > 0:
            past = series.history(before, HISTORY, names)
            parts = {"low": past.low, "mean": past.mean, "high": past.high}
            history = {"t": past.t_s} | {part: _named(columns, names) for part, columns in parts.items()}
    newest = {"t": points.t_s, "columns": _named(points.columns, names)}
    return {"sequence": series.sequence, "whole": whole, "history": history, "points": newest}


def _columns_of(series: Series, class_name: str | None, target: str | None) -> dict[str, str]:
    """Return the names of a document's columns by the names in the series."""
    of_class = "" if class_name is None else f"@class:{class_name}"
    of_target = "" if target is None else f"@target:{target}"
    names = {f"{name}{of_class}": name for name in CLIENT}
    names |= {name: name for name in LOAD}
    names |= {f"{name}{of_target}": name for name in SERVER}
    return names | {name: name for name in series.columns if name.startswith(FAILED)}


def _named(columns: dict[str, Values], names: dict[str, str]) -> dict[str, Values]:
    return {names[name]: values for name, values in columns.items() if any(value is not None for value in values)}
