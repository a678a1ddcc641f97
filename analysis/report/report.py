"""Report of a run: timeline.csv, report.md and report.html, which is self-contained."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.errors import explained
from inferload.base.rundir import Mark
from inferload.base.status_lines import progress
from inferload.figures.figure import Head
from inferload.figures.table import Table
from inferload.results.open_run import OpenRun
from inferload.results.prices import UNPRICED, Prices

from ..charts.charts import Pictures, pictures
from ..data import frames, timeline, vllm_log
from ..data.breakdown import parts
from ..data.data_quality import warnings
from ..data.frames import RunFrames
from ..data.partial_run import Notes
from ..data.turn_frames import empty_turns
from ..diagnosis.diagnose import Diagnoses, brief, causes, diagnose, json_text
from ..diagnosis.whole_run import recorded_until
from ..interop import locust_csv
from ..interop import vllm_bench as vllmbench
from ..pages import shell
from ..pages.terms import Terms
from . import reconcile, slowest
from .model import ReportModel, build
from .reconcile import Reconciled

EMPTY = Reconciled(parts(empty_turns()), (), ())


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Verdict and paths of a report."""

    verdict: str
    markdown: Path
    html: Path
    timeline: Path


@dataclass(frozen=True, slots=True)
class ReportOptions:
    minute: int | None = None  # minute of the chart of turns
    server_log: Path | None = None  # vLLM's log
    vllm_bench: Path | None = None  # file to write in the format of `vllm bench serve --save-result`
    prices: Prices = UNPRICED  # override those of the run


def make(opened: OpenRun, options: ReportOptions = ReportOptions()) -> ReportFiles:
    """Write the report of a run directory; UsageError if it cannot be read or written."""
    # vLLM's format has a list of all turns, which does not fit into little memory anyway.
    with progress.task(f"report of {opened.path}") as at:
        run = frames.load(opened, options.server_log, whole=options.vllm_bench is not None)
        at(0.2)  # this and the others: measured shares of the CPU time of a long run
        report = write(run, opened.path, options, at=at)
    if options.vllm_bench is not None:
        vllmbench.write(run, options.vllm_bench)
    opened.close()  # there may be hundreds of runs
    return report


def make_of_locust(prefix: Path, scrapes: Sequence[Path], out: Path | None, options: ReportOptions) -> ReportFiles:
    """Write the report of plain Locust's CSV files to `out` (default: PREFIX-report); UsageError as in `make`."""
    run = locust_csv.load(prefix, scrapes)
    if options.server_log is not None:
        run = replace(run, log=vllm_log.read(options.server_log, run.start_wall_ns, run.end_s))
    resolved = locust_csv.prefix_of(prefix)
    folder = out or resolved.with_name(resolved.name + "-report")
    with explained(f"--out {folder}", "name another directory"):
        folder.mkdir(parents=True, exist_ok=True)
    return write(run, folder, options, locust_csv.tables(prefix, run))


def write(
    run: RunFrames,
    folder: Path,
    options: ReportOptions,
    tables: tuple[Table, ...] = (),
    at: Callable[[float], None] = lambda _share: None,
) -> ReportFiles:
    """Write the files of a report; UsageError if they cannot be written. `tables`: placed before the others.

    `at`: called with the share that is done.
    """
    notes = Notes((*run.notes, *([] if run.summary is None else run.summary.notes), *warnings(run)))
    table = timeline.build(run)
    at(0.25)
    diagnoses = notes.unless_damaged("the diagnosis", lambda: diagnose(run, table)) or Diagnoses()
    at(0.8)
    reconciled = (
        notes.unless_damaged("the comparison of client and server counters", lambda: reconcile.reconcile(run)) or EMPTY
    )
    more = (
        *(notes.unless_damaged("the latency breakdown", lambda: reconcile.tables(reconciled)) or ()),
        notes.unless_damaged("the slowest turns", lambda: slowest.table(run)),
        vllm_log.table(run.log),
    )
    drawn = pictures(run, table, reconciled.parts, notes, options.minute)
    at(0.9)
    killed = run.summary is None and run.others is None
    until = notes.unless_damaged("the end of the records", lambda: recorded_until(run)) if killed else None
    cause = "; ".join(filter(None, [until, brief(diagnoses)]))
    model = build(run, notes.all(), causes(diagnoses), cause=cause, prices=options.prices)
    model = replace(model, tables=(*tables, *model.tables, *(table for table in more if table is not None)))
    report = ReportFiles(
        model.announced, folder / rundir.REPORT_MD, folder / rundir.REPORT_HTML, folder / rundir.TIMELINE
    )
    with explained(f"report of {folder}", "make the directory writable"):
        timeline.write(table, report.timeline)
        rundir.write_text(folder / rundir.DIAGNOSIS, json_text(diagnoses))
        rundir.write_text(folder / rundir.RECONCILE, reconcile.json_text(reconciled))
        rundir.write_text(report.markdown, markdown(model, run.marks))
        rundir.write_text(report.html, html(model, run.marks, drawn))
    return report


def markdown(model: ReportModel, marks: Sequence[Mark]) -> str:
    """Render the report as Markdown, without charts."""
    terms = Terms()
    for table in model.tables:
        for word in (*table.columns, *(row[0] for row in table.rows)):
            terms.link(word if isinstance(word, Head) else table.shown(word))
    return shell.markdown("report.md.j2", model=model, marks=marks, definitions=terms.defined())


def html(model: ReportModel, marks: Sequence[Mark], drawn: Pictures, plotly: str | None = None) -> str:
    """Render the report as HTML. `plotly`: as in `shell.html`."""
    context: dict[str, Any] = {"model": model, "marks": marks}
    if (lanes := drawn.lanes) is not None:
        shown = {"columns": lanes.columns, "minutes": lanes.minutes, "end_s": lanes.end_s}
        context |= {"lanes": shown, "chosen": lanes.chosen}
    return shell.html("report.html.j2", drawn.drawn, plotly, **context)
