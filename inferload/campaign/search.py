"""Points of a search: one run each, stored in the journal, and read back as windows of turns."""

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from inferload.base import clock, rundir
from inferload.base.errors import UsageError
from inferload.base.numbers import clock as elapsed
from inferload.base.numbers import short
from inferload.campaign import runner
from inferload.campaign.attainment import answer
from inferload.campaign.attainment import window as windows_of
from inferload.campaign.attainment.bracket import Settings, points_of
from inferload.campaign.attainment.point import Look
from inferload.campaign.attainment.slo import Condition
from inferload.campaign.attainment.text import going
from inferload.campaign.attainment.window import Window
from inferload.campaign.journal import Journal, RunEnded, RunRetried
from inferload.campaign.runner import RunConditions, Runner
from inferload.campaign.search_plan import SearchPlan, at, cache_text
from inferload.deploy.launcher.launch import tail
from inferload.results.documents import typed_documents
from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.search_document import SearchDocument, SearchedScenario, Why
from inferload.results.documents.summary_document import Summary
from inferload.results.open_run import OpenRun
from inferload.results.summary_notes import notes_on_tokens
from inferload.results.verdict.outcome import wrong_canaries
from inferload.scenario.files import catalog
from inferload.scenario.scenario import Scenario

POINTS = "points"
_END_S = 20.0  # for a run that is stopped
# Reasons for an invalid measurement that the server causes: these turns count as failed.
_SERVERS = ("unfinished_drain", "no_turns")
_PATIENCE_S = 180.0  # for a run beside its phases
_TAIL_BYTES = 1024  # of a progress file, with its last line


@dataclass(frozen=True, slots=True)
class PointRunner:
    """Runs of a search. `tiers`: settings of each SLO, with common times. `show`: displays progress; None without a terminal."""

    folder: Path
    plan: SearchPlan
    scenario: Scenario
    tiers: Sequence[Settings]
    journal: Journal
    show: Callable[[str], None] | None = None

    def earlier(self) -> list[Sequence[Look]]:
        """Looks of a resumed search, of each run one for each tier. UsageError if runs had different servers."""
        for entry in self.journal.runs:
            if difference := self._other_server(entry.folder):
                raise UsageError(f"{self.folder}: {difference}; start a new search")
        return list(map(self._looks, self.journal.runs))

    def look(self, load: float, number: int) -> Sequence[Look]:
        """Make a run at a load, and return the look of each tier; UsageError if the first is refused, or the server another one."""
        name = f"{POINTS}/{number + 1:02}"
        run_dir = self.folder / name
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        file = run_dir.with_suffix(".yaml")
        origin = str(catalog.resolve(self.plan.scenario))
        file.write_text(at(self.scenario, origin, self.plan, load, self.plan.seed + number), encoding="utf-8")
        progress = run_dir.with_suffix(".progress")
        progress.unlink(missing_ok=True)
        own = {"on_invalid": "warn", "on_stop": "pass", "no_report": True, "progress_file": str(progress.absolute())}
        argv = runner.command(str(file), self.plan.host, run_dir, self.plan.options | own, self.plan.extra)
        poll = None if self.show is None else self._poll(load, number, progress)
        limit_s = self.plan.warmup_s + self.plan.window_s + self.scenario.phases.drain_s + _PATIENCE_S
        passes = 1 if self.scenario.cache.arm == "cold" else 2  # one more warms the cache
        conditions = RunConditions(passes * limit_s, _END_S, poll)
        entry = Runner(self.folder, self.journal).run(name, argv, conditions, level=load)
        if entry.exit_code == runner.USAGE and number == 0:
            self.journal.remove()
            raise UsageError(f"the first point could not be made: {entry.cause}")
        if difference := self._other_server(name):
            self.journal.write(RunRetried(folder=name))
            raise UsageError(
                f"{self.folder}: {difference}; start that server again and continue with --resume {self.folder}, "
                "or start a new search"
            )
        return self._looks(entry)

    def _other_server(self, name: str) -> str:
        """Difference of the server of a run from that of the first run; empty if there is none, or one is unknown."""
        server = _manifest(self.folder / name)
        for entry in self.journal.runs:
            first = _manifest(self.folder / entry.folder)
            if server is not None and first is not None:
                difference = _difference(server, first)
                return difference and f"{name}: {difference} in {entry.folder}"
        return ""

    def _looks(self, entry: RunEnded) -> Sequence[Look]:
        return [self._look(entry, settings) for settings in self.tiers]

    def _look(self, entry: RunEnded, settings: Settings) -> Look:
        run_dir, cause, fault = self.folder / entry.folder, entry.cause, None
        windows: tuple[Window, ...] = ()
        remarks: tuple[str, ...] = ()
        if cause is None:
            try:
                summary = typed_documents.read(run_dir / rundir.SUMMARY, Summary)
                fault = _client_fault(summary)
                if fault is None:
                    windows = (window(run_dir, settings.conditions, summary.sessions.dropped or 0),)
                    remarks = remarks_of(summary, settings.conditions)
            except UsageError as error:
                cause = str(error)
        return Look(
            level=entry.level,
            windows=windows,
            # The budget is time of the run's clock: a rehearsal has as many runs as the search that it is one of.
            spent_s=settings.look_s if self.plan.options.get("clock") == "virtual" else entry.took_s,
            invalid=fault is not None,
            cause=cause or fault,
            runs=(entry.folder,),
            remarks=remarks,
        )

    def _poll(self, load: float, number: int, progress: Path) -> Callable[[], None]:
        show, spent_s = self.show, sum(entry.took_s for entry in self.journal.runs)
        began_ns = clock.now_ns()
        assert show is not None
        rates, budget = self.plan.rates, "" if self.plan.rates else f" of {elapsed(self.plan.budget_s)}"
        most = len(rates) if rates else f"about {max(number + 1, int(self.plan.budget_s / self.tiers[0].look_s))}"

        def poll() -> None:
            used_s = spent_s + (clock.now_ns() - began_ns) / clock.NS_PER_S
            state = going(latest(progress), self.plan.warmup_s, self.plan.window_s)
            show(
                f"{number + 1} of {most}, {elapsed(used_s)}{budget}  {short(load)} {self.scenario.arrivals.unit}: {state}"
            )

        return poll


def write_document(
    folder: Path, plan: SearchPlan, scenario: Scenario, looks: Sequence[Sequence[Look]], ended: Sequence[Why]
) -> SearchDocument:
    """Write search.json and return it. `looks`: of each run, one for each tier. `ended`: of each tier; empty for a plain sweep."""
    tiers = []
    for number, settings in enumerate(plan.of_tiers(scenario)):
        points, why = points_of(settings, [look[number] for look in looks]), ended[number] if ended else None
        found = answer.document(settings, points, why, scenario.arrivals.unit)
        tiers.append(replace(found, tier=[*plan.tiers, ""][number]))
    document = replace(
        tiers[0],
        tiers=tuple(tiers[1:]),
        scenario=SearchedScenario(name=scenario.name, digest=scenario.digest, file=plan.scenario),
        target=plan.host,
        seed=plan.seed,
        window_s=plan.window_s,
        warmup_s=plan.warmup_s,
        cache=cache_text(scenario),
        made_at=clock.calendar_now().isoformat(timespec="seconds"),
    )
    rundir.write_json(folder / rundir.SEARCH, typed_documents.document_of(document))
    return document


def _manifest(run_dir: Path) -> Manifest | None:
    """Manifest of a run; None without one that names its model, as of a run that failed at its start."""
    try:
        manifest = typed_documents.read(run_dir / rundir.MANIFEST, Manifest)
    except UsageError:
        return None
    return None if manifest.model is None else manifest


def _difference(run: Manifest, first: Manifest) -> str:
    """First difference of the servers of two runs; empty without one. An engine that is unknown does not differ."""
    if run.model != first.model:
        return f"model {run.model}, but {first.model}"
    if run.engine != first.engine and "unknown" not in (run.engine, first.engine):
        return f"engine {run.engine}, but {first.engine}"
    if run.deployed.name != first.deployed.name:
        return f"variant {run.deployed.name or 'unknown'}, but {first.deployed.name or 'unknown'}"
    return "" if run.deployed.argv == first.deployed.argv else "server arguments differ from those"


def window(run_dir: Path, conditions: tuple[Condition, ...], dropped: int = 0) -> Window:
    """Measure phase of a run with `dropped` sessions; UsageError if it is missing or not complete."""
    run = OpenRun(run_dir)
    manifest = run.manifest
    measure, anchor = next((phase for phase in manifest.phases if phase.phase == "measure"), None), manifest.anchor
    if measure is None or measure.start_wall_ns is None or measure.end_wall_ns is None:
        raise UsageError(f"{run_dir}: ended before its measure phase")
    turns = run.turns.table(windows_of.columns(conditions))
    counted = sum(worker.turns or 0 for worker in manifest.workers)
    if turns.num_rows < max(1, counted):
        raise UsageError(
            f"{run_dir}: {turns.num_rows} of {counted} turn records are in the run directory; see turn_records in its summary.json"
        )
    if anchor is None or anchor.mono_ns is None:
        raise UsageError(f"{run_dir}: run.json has no anchor of the clocks; the file is damaged")
    window_s = (measure.end_wall_ns - measure.start_wall_ns) / clock.NS_PER_S
    ahead_ns = anchor.wall_ns - anchor.mono_ns - measure.start_wall_ns
    offsets = {worker.name: worker.clock_offset_ns or 0 for worker in manifest.workers}
    shifts = {name: start.mono_ns - offsets.get(name, 0) + ahead_ns for name, start in run.turns.anchors.items()}
    return windows_of.of_turns(turns, shifts, window_s, conditions, dropped)


def _client_fault(summary: Summary) -> str | None:
    """Reason of an invalid measurement, unless the server caused it; None if the measurement is usable."""
    worst = [reason for reason in summary.verdict.deciding if reason.level == "invalid"]
    return next((reason.text for reason in worst if reason.code not in _SERVERS), None)


def remarks_of(summary: Summary, conditions: Sequence[Condition] = ()) -> tuple[str, ...]:
    """Wrong canary answers, reasons of a suspect measurement, with remedies, and notes on the figures of the conditions."""
    notes = [note for limit in conditions for note in notes_on_tokens(limit.measure, summary.turns)]
    wrong = filter(None, [wrong_canaries(summary, summary.verdict.gates)])
    return (*wrong, *(reason.text for reason in summary.verdict.deciding), *dict.fromkeys(notes))


def latest(progress: Path) -> dict[str, Any] | None:
    """Last whole line of a progress file; None before the first."""
    for line in reversed(tail(progress, _TAIL_BYTES).splitlines()):
        with contextlib.suppress(ValueError):
            entry: dict[str, Any] = json.loads(line)
            return entry
    return None
