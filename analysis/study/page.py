"""Pages of a study: index.md and index.html in its folder, or a page of docs/studies from stored results."""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from inferload.base import rundir
from inferload.base.errors import explained
from inferload.base.numbers import plural
from inferload.campaign.sweep import study
from inferload.campaign.sweep.study import RESULTS, STUDY, Study

from ..pages import shell
from ..pages.wording import is_simulated, simulated
from . import charts, tables
from .findings import Finding, finding, measured
from .results import StudyResults, collect, read_results


def is_study(folder: Path) -> bool:
    """Return True for a folder written by `inferload study`."""
    return (folder / STUDY).is_file()


def make_study(folder: Path) -> tuple[str, Path, Path]:
    """Write results.json and the pages; return (headline, index.md, index.html). UsageError without a finished run."""
    plan = study.read(folder / STUDY)
    results = collect(plan, folder)
    text, page = folder / "index.md", folder / "index.html"
    with explained(f"page of {folder}", "make the directory writable"):
        (folder / RESULTS).write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
        rundir.write_text(text, markdown(plan, results))
        rundir.write_text(page, html(plan, results))
    return headline(plan, results), text, page


def headline(plan: Study, results: StudyResults) -> str:
    """Return the answers to the claims in one line."""
    answers = [found.answer for found in _findings(plan, results)]
    counts = [f"{answer}: {answers.count(answer)}" for answer in dict.fromkeys(answers)]
    title = str(plan.title) if plan.title.en.endswith("?") else f"{plan.title}:"
    return "; ".join([f"{title} {plural(len(answers), 'claim')}", *counts]) if answers else str(plan.title)


def markdown(plan: Study, results: StudyResults) -> str:
    """Render the page as Markdown, without charts."""
    return shell.markdown("study.md.j2", **_model(plan, results))


def html(plan: Study, results: StudyResults, plotly: str | None = None) -> str:
    """Render the page as HTML, with links to the pages of its parts. `plotly`: as in `shell.html`."""
    drawn = [
        picture for table in plan.tables for picture in charts.pictures(table, measured(table, plan, results), plan)
    ]
    return shell.html("study.html.j2", drawn, plotly, headline=headline(plan, results), **_model(plan, results))


def _findings(plan: Study, results: StudyResults) -> list[Finding]:
    return [finding(claim, plan, results) for claim in plan.claims]


def _model(plan: Study, results: StudyResults) -> dict[str, Any]:
    found = _findings(plan, results)
    invalid = [run for run in results.runs if run.level == "invalid" and run.load is None]
    return {
        "plan": plan,
        "simulated": simulated([results.stands_for] if results.stands_for else [])
        if is_simulated(results.server)
        else "",
        "facts": tables.facts(plan, results),
        "findings": tables.findings(found) if found else None,
        "parts": [
            (
                name,
                str(part.title),
                [
                    shown
                    for table in plan.tables
                    if table.part == name
                    for shown in tables.of(table, measured(table, plan, results), plan)
                ],
            )
            for name, part in plan.parts.items()
        ],
        "left_out": list(plan.left_out.items()),
        "invalid": [
            f"{run.part}/{run.scenario}/{run.variant}/{run.pair}: {'; '.join(run.reasons.values())}" for run in invalid
        ],
    }


def main() -> None:
    """Write the page of stored studies, NAME.md beside NAME.yaml and NAME.json, after taking over the studies of --from."""
    parser = argparse.ArgumentParser(description=main.__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from", dest="source", type=Path, action="append", default=[], metavar="DIR")
    arguments = parser.parse_args()
    for source in arguments.source:
        plan = study.read(source / STUDY)
        store = arguments.folder / f"{plan.name}-{plan.engine}"
        store.with_suffix(".yaml").write_bytes((source / STUDY).read_bytes())
        store.with_suffix(".json").write_bytes((source / RESULTS).read_bytes())
    for path in sorted(arguments.folder.glob("*.json")):
        path.with_suffix(".md").write_text(stored(path), encoding="utf-8")


def stored(path: Path) -> str:
    """Return the page of stored results. `path`: NAME.json beside NAME.yaml."""
    return markdown(study.read(path.with_suffix(".yaml")), read_results(path))


if __name__ == "__main__":
    main()
