"""Pages of a search: search.md and search.html, from search.json."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from inferload.base import rundir
from inferload.base.errors import explained
from inferload.base.numbers import NOT_KNOWN, NOT_MEASURED, duration, number, percent, plural, short
from inferload.figures.figure import Head
from inferload.figures.rate_figures import GOODPUT, TURNS
from inferload.figures.table import Cell, Table
from inferload.results.documents import typed_documents
from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.search_document import ConditionResult, Point, SearchDocument
from inferload.results.open_run import OpenRun

from ..charts import load
from ..charts.chart import Picture
from ..charts.load import FIGURES
from ..comparison.output.page import curve
from ..comparison.read_sides import read_run
from ..comparison.sides import Side
from ..pages import shell
from . import search_charts
from .first_screen import FirstScreen, of_run

_POINTS = (
    "Turns: those that ended well in the window. Goodput: those that met all limits. A load holds or breaks the SLO if the "
    "whole interval does; intervals use the effective number of independent turns."
)
Runs = Mapping[str, OpenRun]
_UNSTEADY = ("overloaded", "invalid", "failed")
_WORDS = {"invalid": "not valid", "failed": "run failed"}


def make_search(folder: Path) -> tuple[str, Path, Path]:
    """Write the pages; return (answer, search.md, search.html). UsageError if they cannot be written."""
    document = typed_documents.read(folder / rundir.SEARCH, SearchDocument)
    runs = {name: OpenRun(folder / name) for point in document.points for name in point.runs}
    text, page = folder / "search.md", folder / "search.html"
    with explained(f"page of {folder}", "make the directory writable"):
        rundir.write_text(text, markdown(document, runs))
        rundir.write_text(page, html(document, runs))
    return headline(document), text, page


def headline(document: SearchDocument) -> str:
    if document.answer is None:
        return f"Sweep of {document.scenario.name} at {len(document.points)} loads, against {document.slo}"
    if document.tiers:
        return "; ".join(f"{each.tier}: {each.answer.text}" for each in document.every if each.answer is not None)
    return document.answer.text[:1].upper() + document.answer.text[1:]


def markdown(document: SearchDocument, runs: Runs = MappingProxyType({})) -> str:
    """Render the page as Markdown, without charts. `runs`: of the points, by their names there."""
    return shell.markdown("search.md.j2", **_model(document), simulated=_first_screen(document, runs).simulated)


def html(document: SearchDocument, runs: Runs = MappingProxyType({}), plotly: str | None = None) -> str:
    """Render the page as HTML. `runs`: as in `markdown`; `plotly`: as in `shell.html`."""
    context = {**_model(document), "first": _first_screen(document, runs)}
    drawn = (search_charts.picture(document), _throughput(document, runs))
    return shell.html("search.html.j2", [chart for chart in drawn if chart is not None], plotly, **context)


def _first_screen(document: SearchDocument, runs: Runs) -> FirstScreen:
    """Return server and figures of the highest load that holds the SLO, else of the lowest; the cause is that of the load above."""
    points = sorted(document.points, key=lambda point: point.level)
    held = [point for point in points if point.verdict == "holds"]
    shown = held[-1] if held else points[0] if points else None
    above = [point for point in points if shown is not None and point.level > shown.level] or points
    run = None if shown is None else _last_of(shown, runs, rundir.MANIFEST, rundir.SUMMARY)
    manifest, summary = (Manifest(target=document.target), None) if run is None else (run.manifest, run.summary)
    causes = (_cause(point, document, runs) for point in above)
    screen = of_run(manifest, summary, None, next(filter(None, causes), ""))
    levels = [short(point.level) for point in points]
    tested = f"{levels[0]} to {levels[-1]} {document.unit}, {plural(len(levels), 'load')}" if levels else NOT_KNOWN
    if summary is not None and shown is not None:
        tested += f"; the figures are at {short(shown.level)}"
    facts = tuple((name, tested if name == "Load" else value) for name, value in screen.facts)
    return replace(screen, facts=facts, failed=())


def _last_of(point: Point, runs: Runs, *files: str) -> OpenRun | None:
    """Return the last run of a point; None without it, or without one of these files."""
    run = runs.get(point.runs[-1]) if point.runs else None
    return run if run is not None and all(map(run.has, files)) else None


def _cause(point: Point, document: SearchDocument, runs: Runs) -> str:
    """Return the diagnosis of a point, else why it was not measured; empty without either."""
    run = _last_of(point, runs, rundir.DIAGNOSIS)
    diagnosis = None if run is None else run.object(rundir.DIAGNOSIS).get("brief")
    cause = diagnosis or next(iter(point.causes), "")
    return cause and f"At {short(point.level)} {document.unit}: {cause}"


def _throughput(document: SearchDocument, runs: Runs) -> Picture | None:
    """Return the chart of throughput against latency of the points in steady state; None without their run directories."""
    steady = [
        runs[name] for point in document.points if point.verdict not in _UNSTEADY for name in point.runs if name in runs
    ]
    complete = [run for run in steady if run.has(rundir.MANIFEST) and run.has(rundir.SUMMARY)]
    if not complete:
        return None
    drawn = curve(Side("", tuple(read_run(run, FIGURES) for run in complete)))
    return load.picture([drawn], _limits(document), "load")


def _limits(document: SearchDocument) -> dict[str, float]:
    conditions = [condition for point in document.points for condition in point.conditions]
    return {entry.label.partition("(")[2].rstrip(")"): entry.limit for entry in conditions if "(" in entry.label}


def _model(document: SearchDocument) -> dict[str, Any]:
    spent, answer = document.spent, document.answer
    answers = [(each.tier, each.answer) for each in document.every if each.answer is not None]
    notes = [
        f"{short(point.level)} {document.unit}: {note}"
        for point in document.points
        for note in (*point.causes, *point.remarks)
    ]
    facts = [
        *((f"SLO {each.tier}".rstrip(), each.slo) for each in document.every),
        ("scenario", document.scenario.name),
        ("server", document.target),
        ("each point", f"{duration(document.warmup_s)} warm-up, {duration(document.window_s)} measured"),
        ("cache", document.cache),
        ("points", f"{spent.looks} runs at {spent.loads} loads"),
        ("time", duration(spent.used_s) + (f" of {duration(spent.budget_s)}" if spent.budget_s else "")),
        ("seed", NOT_KNOWN if document.seed is None else str(document.seed)),
        *((f"ended because {tier}".rstrip(), each.ended_text) for tier, each in answers),
    ]
    if answer is not None:
        facts.append(("error", f"the two decided loads are wrong in at most {percent(1 - answer.level)} of searches"))
    return {
        "title": f"{'Search' if answer else 'Sweep'}: {document.scenario.name}",
        "headline": headline(document),
        "level": "valid" if all(each.resolved for _, each in answers) else "suspect",
        "facts": facts,
        "notes": notes,
        "points": _points(document),
        "tiers": [_points(each) for each in document.tiers],
    }


def _points(document: SearchDocument) -> Table:
    """Return the table of the points of one tier."""
    labels = list(dict.fromkeys(entry.label for point in document.points for entry in point.conditions))
    rates = (TURNS.head(), GOODPUT.head())
    columns: tuple[str | Head, ...] = (Head(document.unit, "load"), "verdict", *labels, *rates, "measured", "run")
    key, title = (f"points-{document.tier}", f"Points: {document.tier}") if document.tier else ("points", "Points")
    return Table(key, title, columns, [_row(point, labels) for point in document.points], _POINTS)


def _row(point: Point, labels: list[str]) -> tuple[Cell, ...]:
    by_label = {entry.label: entry for entry in point.conditions}
    return (
        short(point.level),
        _WORDS.get(point.verdict, point.verdict),
        *(_condition(by_label.get(label), point) for label in labels),
        point.turns_per_s,
        point.goodput_turns_per_s,
        duration(point.measured_s),
        ", ".join(run.rpartition("/")[2] for run in point.runs),
    )


def _condition(entry: ConditionResult | None, point: Point) -> Cell:
    if entry is None:
        return "no steady value" if point.verdict == "overloaded" else None
    if not entry.values:
        return NOT_MEASURED
    figure = "above all samples" if entry.figure is None else number(entry.figure)
    if entry.share is not None:
        text = f"{figure}; {percent(entry.value)} within ({percent(entry.low)} to {percent(entry.high)})"
    else:
        interval = "no interval yet" if entry.high is None else f"{number(entry.low)} to {number(entry.high)}"
        text = f"{figure} ({interval})"
    return text + point.beside(entry)
