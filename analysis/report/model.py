"""Contents of a report: texts and tables from run.json and summary.json, without layout.

All numbers come from summary.json. The report of a run without a summary is marked as incomplete and contains the figures of the
timeline only.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferload.base.numbers import NOT_KNOWN, duration
from inferload.figures.table import Table
from inferload.results.run_tables import run_tables
from inferload.results.summary_document import Results, Summary, Turns, Verdict
from inferload.workload.plan.load_text import LoadText, recorded_load

from ..data.partial_run import Notes
from ..diagnosis.advice import Cause
from ..pages.wording import is_simulated
from .first_screen import FirstScreen, known, of_run

_LEVELS = {
    "valid": "The measurement is valid",
    "suspect": "The measurement is suspect: read the reasons before you use the numbers",
    "invalid": "THE MEASUREMENT IS NOT VALID: these numbers do not describe the server",
}
_NO_TURNS = Turns(sent=0, ok=0, failed=0, unfinished=0)
INCOMPLETE = "The run is incomplete: it ended before its summary was written, so it has neither verdict nor result"


@dataclass(frozen=True, slots=True)
class VerdictReason:
    """Reason why a measurement is suspect or invalid."""

    code: str
    phase: str
    text: str

    @property
    def decides(self) -> bool:
        """True if the verdict depends on it: only reasons of the measure phase do."""
        return self.phase == "measure"

    @property
    def remark(self) -> str:
        """Text with its phase and code."""
        return f"{self.text} ({self.code}, {self.phase}, no effect on the verdict)"


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
    reasons: tuple[VerdictReason, ...]  # of the verdict
    remarks: tuple[str, ...]  # without effect on the verdict
    causes: tuple[Cause, ...]
    load: LoadText | None  # in the words of `inferload plan`
    facts: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    manifest: str

    @property
    def announced(self) -> str:
        """Verdict of a text, after the mark that a page has as a badge."""
        return f"Simulator, not a real server. {self.verdict}" if self.first.simulated else self.verdict

    def table(self, key: str) -> Table | None:
        """Return the table of a key."""
        return next((table for table in self.tables if table.key == key), None)


def build(
    path: Path,
    manifest: Mapping[str, Any],
    summary: Summary | None,
    notes: Sequence[str] = (),
    causes: Sequence[Cause] = (),
    *,
    cause: str = "",
    marks: Sequence[Mapping[str, Any]] = (),
) -> ReportModel:
    """Build the model of a run directory. `notes`: data that could not be read; `cause`: in a sentence;
    `marks`: events of the run.
    """
    run = _run(manifest) | ({} if summary is None else known(summary.run))
    limitation = manifest.get("only")  # of imported results, which have no summary
    level = "foreign" if limitation else _level(summary)
    name = run.get("scenario") or path.name
    engine = run.get("engine")
    simulated = is_simulated(engine)
    title = f"{name} on {'the simulator' if simulated else engine or 'an unknown engine'}"
    if limitation:
        title = f"{name}, by Locust"
    unreadable = Notes(tuple(notes))

    readable = unreadable.unless_damaged
    outcome = None if summary is None or level in ("incomplete", "foreign") else summary.outcome
    headline = str(limitation) if limitation else INCOMPLETE if outcome is None else outcome.headline
    shown = Results(turns=_NO_TURNS, other_requests=manifest["requests"]) if limitation else summary
    load = readable("the load", lambda: recorded_load(manifest, marks))
    parts: dict[str, Any] = {
        "facts": readable("the configuration", lambda: _facts(run, manifest, summary)) or (),
        "load": load,
        "first": readable("the headline figures", lambda: of_run(manifest, shown, load, cause))
        or of_run({}, None, load, cause),
        "tables": () if summary is None else run_tables(summary),
    }
    reasons = () if summary is None else _reasons(summary.verdict)
    state = level if limitation or outcome is None else outcome.state
    sentences = [f"{headline}."]
    sentences += [f"{_LEVELS[level]}."] if level in _LEVELS and outcome is not None else []
    return ReportModel(
        title=title,
        level=level,
        state=state.replace(" ", "-"),
        headline=headline,
        verdict=" ".join(sentences),
        caution=_caution(level) or ("stopped early" if state == "stopped early" else ""),
        reasons=tuple(reason for reason in reasons if reason.decides),
        remarks=_remarks(manifest, reasons, unreadable.all(), parts["first"]),
        causes=tuple(causes),
        manifest=json.dumps(manifest, indent=1, ensure_ascii=False) if manifest and not limitation else "",
        **parts,
    )


def _run(manifest: Mapping[str, Any]) -> dict[str, Any]:
    scenario = manifest.get("scenario") or {}
    keys = ("id", "seed", "target", "model", "engine", "started_at", "versions")
    return {key: manifest.get(key) for key in keys} | {
        "scenario": scenario.get("name"),
        "digest": scenario.get("digest"),
    }


def _level(summary: Summary | None) -> str:
    level = "incomplete" if summary is None else summary.verdict.measurement
    return level if level in _LEVELS else "incomplete"


def _caution(level: str) -> str:
    return {
        "invalid": "measurement not valid",
        "suspect": "measurement suspect",
        "incomplete": "run incomplete",
    }.get(level, "")


def _remarks(
    manifest: Mapping[str, Any], reasons: Sequence[VerdictReason], unreadable: Sequence[str], first: FirstScreen
) -> tuple[str, ...]:
    """Return the lines without effect on the verdict."""
    lines = [*(reason.remark for reason in reasons if not reason.decides), *unreadable, first.simulated]
    if manifest.get("insecure"):
        lines.append("The server's certificate was not checked (--insecure).")
    return tuple(filter(None, lines))


def _reasons(verdict: Verdict) -> tuple[VerdictReason, ...]:
    return tuple(VerdictReason(reason.code, reason.phase, reason.text) for reason in verdict.reasons)


def _facts(run: Mapping[str, Any], manifest: Mapping[str, Any], summary: Summary | None) -> tuple[tuple[str, str], ...]:
    workers = manifest.get("workers")
    hosts = manifest.get("hosts") or ()
    phases = [
        f"{entry['phase']} {duration((entry['end_wall_ns'] - entry['start_wall_ns']) / 1e9)}"
        for entry in manifest.get("phases") or ()
        if entry.get("end_wall_ns") is not None and entry.get("start_wall_ns") is not None
    ]
    versions = run.get("versions") or {}
    origins = {"records": "the records of all turns (exact)", "sketches": "sketches (within 0.25 %)"}
    origin = None if summary is None else origins.get(summary.percentiles_from or "")
    missing = None if summary is None else summary.turn_records.why
    facts = [
        ("Scenario", _joined(run.get("scenario"), _digest(run.get("digest")))),
        ("Target", _text(run.get("target"))),
        ("Model", _text(run.get("model"))),
        ("Engine", _joined(run.get("engine"), manifest.get("variant") and f"variant {_variant_name(manifest['variant'])}")),
        ("Seed", _text(run.get("seed"))),
        ("Started", _text(run.get("started_at"))),
        ("Phases", ", ".join(phases) or NOT_KNOWN),
        ("Measured window", duration(None if summary is None else summary.window_s)),
        ("Workers", _joined(len(workers) if workers is not None else None, _hosts(hosts))),
        ("Stopped by", _text(manifest.get("stop_reason"))),
        ("Percentiles from", _joined(origin, missing)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items()) or NOT_KNOWN),
        ("Run", _text(run.get("id"))),
    ]  # fmt: skip
    return tuple(facts)


def _text(value: object) -> str:
    return NOT_KNOWN if value is None or value == "" else str(value)


def _joined(*parts: object) -> str:
    return ", ".join(str(part) for part in parts if part not in (None, "")) or NOT_KNOWN


def _digest(digest: object) -> str:
    return f"digest {str(digest)[:12]}" if digest else ""


def _variant_name(variant: object) -> str:
    if not isinstance(variant, Mapping):
        return str(variant)
    return str(variant.get("name") or "without a name")


def _hosts(hosts: object) -> str:
    """Host names, from strings or from records with a name."""
    entries = list(hosts.values()) if isinstance(hosts, Mapping) else list(hosts) if isinstance(hosts, Sequence) else []
    names = [str(host.get("name") or host.get("host")) if isinstance(host, Mapping) else str(host) for host in entries]
    return f"on {', '.join(dict.fromkeys(names))}" if names else ""
