"""Makes a run's timeline.csv, report.md and report.html. The page is one file and needs no network to be read."""

import base64
import gzip
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from inferload import rundir
from inferload.errors import UsageError

from . import charts, frames, reconciletext, timeline
from .diagnosis.diagnose import causes, diagnose, json_text
from .reconcilechecks import reconcile
from .reportmodel import ReportModel, build
from .wording import NOT_KNOWN


@dataclass(frozen=True, slots=True)
class Report:
    """What was made, and the verdict that stands first in it."""

    verdict: str
    markdown: Path
    html: Path
    timeline: Path


def make(run_dir: Path) -> Report:
    """Read a run directory and write its three files into it; UsageError where it cannot be read or written."""
    run = frames.load(run_dir)
    table = timeline.build(run)
    diagnoses = diagnose(run)
    model = build(run_dir, run.manifest, run.summary, run.notes, causes(diagnoses))
    reconciled = reconcile(run)
    model = replace(model, tables=model.tables + reconciletext.tables(reconciled))
    picture = charts.figure(table, tuple(run.servers), run.phases, list(run.marks))
    made = Report(model.verdict, run_dir / rundir.REPORT_MD, run_dir / rundir.REPORT_HTML, run_dir / rundir.TIMELINE)
    try:
        timeline.write(table, made.timeline)
        _write(run_dir / rundir.DIAGNOSIS, json_text(diagnoses))
        _write(run_dir / rundir.RECONCILE, reconciletext.json_text(reconciled))
        _write(made.markdown, markdown(model, run.marks))
        _write(made.html, html(model, run.marks, picture, packed(get_plotlyjs())))
    except OSError as error:
        raise UsageError(f"report of {run_dir}: {error.strerror}; make the directory writable") from error
    return made


def markdown(model: ReportModel, marks: list[dict[str, Any]]) -> str:
    """The report as Markdown, tables only."""
    environment = _environment(escape=False)
    environment.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    return environment.get_template("report.md.j2").render(model=model, marks=marks)


def html(model: ReportModel, marks: list[dict[str, Any]], picture: charts.Figure | None, plotly: str) -> str:
    """The report as one page. `plotly`: plotly.js as `packed` has it, which stands in the page."""
    return (
        _environment(escape=True)
        .get_template("report.html.j2")
        .render(
            model=model,
            marks=marks,
            figure=None if picture is None else _script_json(picture),
            plotly=Markup(plotly),
            defined={name for name, _, _ in model.definitions},
            unknown=NOT_KNOWN,
        )
    )


def packed(text: str) -> str:
    """A long text for a page, as base64 of gzip: a third of its size, and nothing in it can end its element."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _environment(escape: bool) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader(__package__ or "inferload.analysis", "."),
        autoescape=escape,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )


def _script_json(document: charts.Figure) -> Markup:
    """JSON that may stand in a script element: nothing in it can end the element."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
