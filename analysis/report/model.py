"""Contents of a report: texts and tables from run.json and summary.json, without layout.

All numbers come from summary.json. The report of a run without a summary is marked as incomplete and contains the figures of the
timeline only.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from inferload.base.numbers import NOT_KNOWN, duration, percent
from inferload.base.rundir import Mark
from inferload.figures.figure import Head
from inferload.figures.rate_figures import GOODPUT, OUTPUT
from inferload.figures.table import Cell, Table
from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.summary_document import Results, Run, Summary, Turns
from inferload.results.documents.typed_documents import document_of
from inferload.results.documents.verdict_document import Reason
from inferload.results.prices import UNPRICED, Prices, per_million, prompt_price_share
from inferload.results.tables.run_tables import run_tables
from inferload.results.verdict.outcome import proven_overload
from inferload.scenario.scenario import from_text
from inferload.workload.plan.load_text import LoadText, load_text

from ..data.figures import COST
from ..data.frames import Recorded
from ..data.manifest import recorded_prices, with_gpus
from ..data.partial_run import Notes
from ..diagnosis.advice import Cause
from ..interop.locust_csv import LIMITATION
from ..pages.wording import is_simulated
from .first_screen import FirstScreen, of_run

_LEVELS = {
    "valid": "The measurement is valid",
    "suspect": "The measurement is suspect: read the reasons before you use the numbers",
    "invalid": "",  # the headline says it
}
_CAUTIONS = {"invalid": "measurement not valid", "suspect": "measurement suspect", "incomplete": "run incomplete"}
_NO_TURNS = Turns(sent=0, ok=0, failed=0, unfinished=0)
INCOMPLETE = (
    "The run is incomplete: it ended before its summary was written, or the file is damaged: no verdict, no result"
)


@dataclass(frozen=True, slots=True)
class ReportModel:
    """Contents of a report. `level`: valid, suspect, invalid, incomplete or foreign; `state`: of the outcome, else the level."""

    title: str
    level: str
    state: str
    headline: str  # of the outcome
    verdict: str
    caution: str  # mark beside all numbers; empty for a valid measurement
    first: FirstScreen
    reasons: tuple[Reason, ...]  # of the verdict
    remarks: tuple[str, ...]  # without effect on the verdict
    causes: tuple[Cause, ...]
    load: LoadText | None  # in the words of `inferload plan`
    facts: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    manifest: str

    @property
    def announced(self) -> str:
        """Verdict of a text, after what a simulated server stands for."""
        return f"{self.first.simulated} {self.verdict}".lstrip()

    def table(self, key: str) -> Table | None:
        return next((table for table in self.tables if table.key == key), None)


def build(
    recorded: Recorded,
    notes: Sequence[str] = (),
    causes: Sequence[Cause] = (),
    *,
    cause: str = "",
    prices: Prices = UNPRICED,
) -> ReportModel:
    """Build the model of a run.

    `notes`: data that could not be read; `cause`: in a sentence; `prices`: override those of the run.
    """
    path, manifest, summary, others = recorded.path, recorded.manifest, recorded.summary, recorded.others
    run = manifest.run if summary is None else manifest.known_of(summary.run)
    level = _level(summary) if others is None else "foreign"
    server = "the simulator" if is_simulated(run.engine) else run.engine or "an unknown engine"
    name = run.scenario or path.name
    title = f"{name} on {server}" if others is None else f"{name}, by Locust"
    unreadable = Notes(tuple(notes))
    readable = unreadable.unless_damaged
    outcome = None if summary is None or level in ("incomplete", "foreign") else summary.outcome
    headline = LIMITATION if others is not None else INCOMPLETE if outcome is None else outcome.headline
    shown = summary if others is None else Results(turns=_NO_TURNS, other_requests=others)
    load = readable("the load", lambda: recorded_load(manifest, recorded.marks))
    state = level if outcome is None else outcome.state
    explains = state == "failed" or (summary is not None and bool(proven_overload(summary)))
    parts: dict[str, Any] = {
        "facts": readable("the configuration", lambda: _facts(run, manifest, summary)) or (),
        "load": load,
        "first": readable("the headline figures", lambda: of_run(manifest, shown, load, cause, explains=explains))
        or of_run(Manifest(), None, load, cause),
        "tables": () if summary is None else _tables(path, manifest, summary, prices, unreadable),
    }
    reasons = [] if summary is None else summary.verdict.reasons
    sentences = [f"{headline}."]
    said = state == level or f"measurement {level}" in headline or outcome is None
    sentences += [f"{text}." for text in [_LEVELS.get(level)] if text and not said]
    return ReportModel(
        title=title,
        level=level,
        state=state.replace(" ", "-"),
        headline=headline,
        verdict=" ".join(sentences),
        caution=_CAUTIONS.get(level) or ("stopped early" if state == "stopped early" else ""),
        reasons=tuple(reason for reason in reasons if reason.decides),
        remarks=_remarks(manifest, reasons, unreadable.all()),
        causes=tuple(causes),
        manifest=""
        if others is not None or manifest == Manifest()
        else json.dumps(document_of(manifest), indent=1, ensure_ascii=False),
        **parts,
    )


def _tables(path: Path, manifest: Manifest, summary: Summary, prices: Prices, notes: Notes) -> tuple[Table, ...]:
    tables = run_tables(summary)
    return notes.unless_damaged("the prices", lambda: _with_cost(tables, manifest, summary, path, prices)) or tables


def _with_cost(
    tables: Sequence[Table], manifest: Manifest, summary: Summary, path: Path, given: Prices
) -> tuple[Table, ...]:
    """Return the tables with the costs of output tokens, good turns and prompts, as far as prices are known.

    `given`: prices that override those of the run at `path`. UsageError for invalid prices of the run.
    """
    variant = None if manifest.variant is None else {"hardware": {"gpus": manifest.variant.gpus}}
    prices = with_gpus(given.over(recorded_prices(manifest, path)), variant)
    share = prompt_price_share(prices, summary.turns.input_tokens, summary.turns.cached_tokens)
    found: list[tuple[Head, Cell]] = [
        (Head(COST.title, COST.name), per_million(prices, summary.rates.get(OUTPUT.key))),
        (Head("Cost of a million good turns", COST.name), per_million(prices, summary.rates.get(GOODPUT.key))),
        (Head("Price of prompts, of uncached ones"), None if share is None else percent(share)),
    ]
    rows = [row for row in found if row[1] is not None]
    return tuple(replace(table, rows=[*table.rows, *rows]) if table.key == "business" else table for table in tables)


def recorded_load(manifest: Manifest, marks: Sequence[Mark]) -> LoadText | None:
    """Return the recorded load of a run; of a run that was killed, the load of its scenario."""
    text = manifest.scenario.text
    if manifest.load is not None or not text:
        return manifest.load
    return load_text(from_text(text, "run.json"), marks)


def _level(summary: Summary | None) -> str:
    level = "incomplete" if summary is None else summary.verdict.measurement
    return level if level in _LEVELS else "incomplete"


def _remarks(manifest: Manifest, reasons: Sequence[Reason], unreadable: Sequence[str]) -> tuple[str, ...]:
    """Return the lines without effect on the verdict."""
    without_effect = [reason for reason in reasons if not reason.decides]
    lines = [f"{each.text} ({each.code}, {each.phase}, no effect on the verdict)" for each in without_effect]
    insecure = "The server's certificate was not checked (--insecure)." if manifest.insecure else ""
    return tuple(filter(None, [*lines, *unreadable, insecure]))


def _facts(run: Run, manifest: Manifest, summary: Summary | None) -> tuple[tuple[str, str], ...]:
    phases = [
        f"{phase.phase} {duration((phase.end_wall_ns - phase.start_wall_ns) / 1e9)}"
        for phase in manifest.phases
        if phase.end_wall_ns is not None and phase.start_wall_ns is not None
    ]
    variant = "" if manifest.variant is None else f"variant {manifest.variant.name or 'without a name'}"
    hosts = f"on {', '.join(manifest.hosts)}" if manifest.hosts else ""
    origins = {"records": "the records of all turns (exact)", "sketches": "sketches (within 0.25 %)"}
    exactness = () if summary is None else (origins.get(summary.percentiles_from or ""), summary.turn_records.why)
    facts = [
        ("Scenario", _joined(run.scenario, f"digest {run.digest[:12]}" if run.digest else "")),
        *_program(manifest),
        ("Target", _joined(run.target)),
        ("Model", _joined(run.model)),
        ("Engine", _joined(run.engine, variant)),
        ("Seed", _joined(run.seed)),
        ("Started", _joined(run.started_at)),
        ("Phases", ", ".join(phases) or NOT_KNOWN),
        ("Measured window", duration(None if summary is None else summary.window_s)),
        ("Workers", _joined(len(manifest.workers) or None, hosts)),
        ("Stopped by", _joined(manifest.stop_reason)),
        ("Percentiles from", _joined(*exactness)),
        ("Versions", _joined(*(f"{name} {version}" for name, version in run.versions.items()))),
        ("Run", _joined(run.id)),
    ]  # fmt: skip
    return tuple(facts)


def _program(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the row of the program; none if it is part of inferload, or not recorded."""
    program = manifest.program
    if program is None or program.bundled:
        return []
    return [("Locustfile", _joined(program.name, f"digest {program.digest[:12]}" if program.digest else NOT_KNOWN))]


def _joined(*parts: object) -> str:
    return ", ".join(str(part) for part in parts if part not in (None, "")) or NOT_KNOWN
