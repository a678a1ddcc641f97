"""State of a run in progress: three status lines on a terminal or --live, updated once a second, and the progress file."""

import json
import logging
from pathlib import Path
from typing import Any

import gevent

from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.status_lines import StatusLines
from inferload.base.threads import AppendedFile
from inferload.figures.servers import server_figures
from inferload.results.documents.verdict_document import GateResult
from inferload.results.live_display import Course, frame
from inferload.results.progress_lines import Snapshot, lines
from inferload.results.verdict import phase_evidence, validity
from inferload.run.live import tables
from inferload.run.live.scrape_window import LiveWindow
from inferload.run.live.tables import SoFar
from inferload.run.master.lifecycle.master_run import MasterRun
from inferload.servers.servers_window import ServersWindow

logger = logging.getLogger(__name__)

_PERIOD_S = 1.0


class LiveStatus:
    """Status lines of a run, from its preparation to its end."""

    _styled = False  # with escape codes

    def __init__(self, run: MasterRun, status: StatusLines) -> None:
        self._run = run
        self._status = status
        self._status.watch(logging.getLogger().handlers)
        self._greenlet = gevent.spawn(self._show)

    def close(self) -> None:
        """Stop, and remove the lines."""
        self._greenlet.kill()
        self._status.close()

    def _show(self) -> None:
        while True:
            self._status.draw(self._lines(), styled=self._styled)
            gevent.sleep(_PERIOD_S)

    def _lines(self) -> list[str]:
        return lines(snapshot(self._run), self._status.width())


class LiveFigures(LiveStatus):
    """Frames of --live in place of the status lines: the outcome so far, figures and their course."""

    _styled = True

    def __init__(self, run: MasterRun, status: StatusLines) -> None:
        self._course = Course()
        super().__init__(run, status)

    def _lines(self) -> list[str]:
        now = snapshot(self._run)
        self._course.add(now)
        shown = frame(now, self._course, gates_so_far(self._run), self._status.width(), self._status.colour)
        return shown[: self._status.height()]


class ProgressFile:
    """One line of JSON for each second of a run, for other programs.

    `phase`; `elapsed_s` since the load began; `measured_s` since the measure phase began; `turns_begun` in it; `in_flight`.
    """

    def __init__(self, run: MasterRun, path: Path) -> None:
        self._run = run
        self._file = AppendedFile(path, self._failed)  # checked before the run
        self._greenlet = gevent.spawn(self._write)

    def close(self) -> None:
        self._greenlet.kill()
        self._file.flush()

    def _write(self) -> None:
        while True:
            self._file.add(json.dumps(progress(self._run)) + "\n")
            gevent.sleep(_PERIOD_S)

    def _failed(self, error: OSError) -> None:
        logger.warning("--progress-file: %s; the run goes on without it", error)
        self._greenlet.kill(block=False)


def progress(run: MasterRun) -> dict[str, Any]:
    """Return the current line of the progress file."""
    measure = run.phases.window("measure")
    measured_s = None if measure is None else (now_ns() - measure.start_ns) / NS_PER_S
    return {
        "phase": run.phases.now(),
        "elapsed_s": round(run.phases.elapsed_s(), 3),
        "measured_s": None if measured_s is None or measured_s < 0 else round(measured_s, 3),
        "turns_begun": sum(tally.turns_begun for key, tally in run.inbox.totals.tallies.items() if key[0] == "measure"),
        "in_flight": run.roster.in_flight,
    }


def snapshot(run: MasterRun) -> Snapshot:
    lines = [] if run.scraping is None else list(run.scraping.latest.values())
    servers = ServersWindow([LiveWindow([(0.0, line.get("gauges") or {})]) for line in lines])
    return Snapshot(
        phase=run.phases.now() if run.windows and run.windows[0].start_ns <= now_ns() else None,
        elapsed_s=run.phases.elapsed_s(),
        left_s=left_s(run),
        goal=_goal(run),
        in_flight=run.roster.in_flight,
        failed=run.recorder.recent.failed,
        recent=run.recorder.recent.figures(run.phases.elapsed_s()),
        at_most=run.phases.now() == "drain" or (run.phases.now() == "warmup" and run.spec.scenario.phases.adaptive),
        steady="steady" if run.steadiness.now else None,
        kv_cache_usage=server_figures.KV_CACHE_USAGE.number(servers),
        waiting=server_figures.WAITING.number(servers),
        scraped=run.scraping is not None,
        replicas=max((line.get("replicas", 1) for line in lines), default=1),
        lost=tuple(member.name for member in run.roster.gone),
        measurement=measurement_so_far(run),
    )


def counts_so_far(run: MasterRun) -> SoFar | None:
    """Return the counts of the measure phase so far, before it those of the first phase; None before the load."""
    measure = run.phases.window("measure")
    window = measure if measure is not None and measure.start_ns <= now_ns() else next(iter(run.windows), None)
    if window is None:
        return None
    end_ns = now_ns() if window.end_ns is None else min(now_ns(), window.end_ns)
    window_s = max(0.0, (end_ns - window.start_ns) / NS_PER_S)
    return SoFar(run.inbox.totals.tallies, run.inbox.totals.health, window.phase, window_s, run.spec.scenario.gates)


def measurement_so_far(run: MasterRun) -> validity.SoFar | None:
    """Return what the measurement would be if the run ended now; None before the measure phase."""
    counts = counts_so_far(run)
    if counts is None or counts.phase != "measure":
        return None
    workers = [member.ended() for member in run.roster.members]
    facts = phase_evidence.client_facts(counts.health, workers, run.left_out_texts)
    return run.inbox.measured.verdict(counts.health, counts.window_s, facts)


def gates_so_far(run: MasterRun) -> list[GateResult]:
    counts = counts_so_far(run) if run.spec.scenario.gates else None
    if counts is None:
        return []
    rows = tables.gates_so_far(counts, counts.results())
    return [
        GateResult(gate=row["gate"], value=row["value"], passed=row["passed"])
        for row in rows
        if row["value"] is not None
    ]


def left_s(run: MasterRun) -> float | None:
    """Return the time to the planned end of the measure phase; in a drain, to its time limit. None if unknown."""
    if run.phases.now() == "drain":
        start_ns = run.windows[-1].start_ns
        return max(0.0, run.spec.scenario.phases.drain_s - (now_ns() - start_ns) / NS_PER_S)
    measure = run.phases.window("measure")
    end_ns = None if measure is None else measure.end_ns
    if run.phases.now() == "warmup" and end_ns is None and run.spec.scenario.phases.adaptive:
        end_ns = run.windows[0].start_ns + round(run.spec.scenario.phases.warmup_s * NS_PER_S)
    return None if end_ns is None else max(0.0, (end_ns - now_ns()) / NS_PER_S)


def _goal(run: MasterRun) -> str | None:
    """Return the progress of a run that ends by count; None if it ends by time."""
    phases = run.spec.scenario.phases
    tallies = [tally for key, tally in run.inbox.totals.tallies.items() if key[0] == "measure"]
    if phases.sessions is not None:
        return f"{sum(tally.sessions_planned for tally in tallies)} of {phases.sessions} sessions begun"
    if phases.turns is not None:
        return f"{sum(tally.turns_begun for tally in tallies)} of {phases.turns} turns begun"
    return None
