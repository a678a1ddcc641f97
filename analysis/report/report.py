"""Makes a run's timeline.csv, report.md and report.html. The page is one file and needs no network to be read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from inferload import rundir
from inferload.errors import UsageError

from ..charts.charts import Pictures, pictures
from ..data import frames, timeline, vllm_log
from ..data.breakdown import PARTS
from ..data.data_quality import doubts
from ..data.frames import RunFrames
from ..data.partial_run import Notes
from ..diagnosis.diagnose import Diagnoses, causes, diagnose, json_text
from ..interop import locust_csv
from ..interop import vllm_bench as vllmbench
from ..pages import shell
from ..pages.tables import Table
from ..pages.terms import Terms
from . import log_table, reconcile, slowest
from .model import ReportModel, build
from .reconcile import Reconciled

NOTHING = Reconciled(pd.DataFrame(columns=["turn_id", "target", "total_ms", *PARTS, "server_ms"]), (), ())


@dataclass(frozen=True, slots=True)
class Report:
    """What was made, and the verdict that stands first in it."""

    verdict: str
    markdown: Path
    html: Path
    timeline: Path


@dataclass(frozen=True, slots=True)
class Wish:
    """Options of a report."""

    minute: int | None = None  # the minute whose turns are shown as lanes
    server_log: Path | None = None  # vLLM's log
    vllm_bench: Path | None = None  # file to write in the format of `vllm bench serve --save-result`


def make(run_dir: Path, wish: Wish = Wish()) -> Report:
    """Read a run directory and write its files into it; UsageError where it cannot be read or written."""
    run = frames.load(run_dir, wish.server_log)
    made = write(run, run_dir, wish)
    if wish.vllm_bench is not None:
        vllmbench.write(run, wish.vllm_bench)
    return made


def make_of_locust(prefix: Path, scrapes: Sequence[Path], out: Path | None, wish: Wish) -> Report:
    """A report of plain Locust's CSV files, into `out`, or PREFIX-report where that is None; UsageError as above."""
    run = locust_csv.load(prefix, scrapes)
    if wish.server_log is not None:
        run = replace(run, log=vllm_log.read(wish.server_log, run.start_wall_ns, run.end_s))
    found = locust_csv.prefix_of(prefix)
    folder = out or found.with_name(found.name + "-report")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror}; name a directory that can be made") from error
    table = locust_csv.table(prefix)
    return write(run, folder, wish, () if table is None else (table,))


def write(run: RunFrames, folder: Path, wish: Wish, tables: tuple[Table, ...] = ()) -> Report:
    """A run's files; UsageError where they cannot be written. `tables`: more of them, which stand first."""
    found = Notes((*run.notes, *doubts(run)))
    table = timeline.build(run)
    diagnoses = found.unless_damaged("what held it back", lambda: diagnose(run)) or Diagnoses()
    reconciled = found.unless_damaged("whether client and server agree", lambda: reconcile.reconcile(run)) or NOTHING
    more = (
        *(found.unless_damaged("where the time went", lambda: reconcile.tables(reconciled)) or ()),
        found.unless_damaged("the slowest turns", lambda: slowest.table(run)),
        log_table.table(run.log),
    )
    drawn = pictures(run, table, reconciled.parts, found, wish.minute)
    model = build(run.path, run.manifest, run.summary, found.all(), causes(diagnoses), marks=run.marks)
    model = replace(model, tables=(*tables, *model.tables, *(one for one in more if one is not None)))
    made = Report(model.verdict, folder / rundir.REPORT_MD, folder / rundir.REPORT_HTML, folder / rundir.TIMELINE)
    try:
        timeline.write(table, made.timeline)
        rundir.write_text(folder / rundir.DIAGNOSIS, json_text(diagnoses))
        rundir.write_text(folder / rundir.RECONCILE, reconcile.json_text(reconciled))
        rundir.write_text(made.markdown, markdown(model, run.marks))
        rundir.write_text(made.html, html(model, run.marks, drawn))
    except OSError as error:
        raise UsageError(f"report of {folder}: {error.strerror}; make the directory writable") from error
    return made


def markdown(model: ReportModel, marks: list[dict[str, Any]]) -> str:
    """The report as Markdown, tables only."""
    terms = Terms()
    for table in model.tables:
        for word in (*table.columns, *(row[0] for row in table.rows)):
            terms.link(word, table.key)
    return shell.markdown("report.md.j2", model=model, marks=marks, definitions=terms.defined())


def html(model: ReportModel, marks: list[dict[str, Any]], drawn: Pictures, plotly: str | None = None) -> str:
    """The report as one page. `plotly`: as of `shell.html`."""
    held = drawn.lanes
    lanes = None if held is None else {"columns": held.columns, "minutes": held.minutes, "end_s": held.end_s}
    chosen = None if held is None else held.chosen
    return shell.html("report.html.j2", drawn.drawn, plotly, model=model, marks=marks, lanes=lanes, chosen=chosen)
