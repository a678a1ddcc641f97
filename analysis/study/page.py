"""Pages of a study: index.md and index.html in its folder, or a page of docs/studies from stored results."""

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.errors import explained
from inferload.base.numbers import plural
from inferload.campaign.sweep import study
from inferload.campaign.sweep.study import RESULTS, STUDY, Study
from inferload.figures import table
from inferload.figures.table import Table
from inferload.scenario import language
from inferload.scenario.schema.words import Words

from ..pages import shell, texts
from ..pages.texts import Name, tr
from ..pages.wording import is_simulated, simulated
from . import charts, tables
from .findings import Finding, finding
from .measured_rows import measured
from .results import StudyResults, collect, encoded, read_results

_IN_TWO_LINES, _SHOWN = 8, 16  # claims on a terminal
_BY_CONSTRUCTION = Words(
    en="On the simulator the model of the device holds by construction: hits of the prefix cache take no prefill, quantised "
    "weights and caches have fewer bytes, cards share arithmetic and reading less their communication. What follows from it "
    "for queues, batches and percentiles is simulated.",
    zh="在模拟器上，设备模型直接给定：命中前缀缓存的 token 不需要预填充，量化的权重和 KV 缓存字节更少，"
    "多卡分担计算与读取（扣除通信）。由此产生的排队、批处理和分位数才是模拟的结果。",
)


def is_study(folder: Path) -> bool:
    """Return True for a folder written by `inferload study`."""
    return (folder / STUDY).is_file()


def make_study(folder: Path, details: bool = False) -> tuple[object, ...]:
    """Write results.json and pages; return headline, findings, paths, with `details` after the tables. UsageError without a run."""
    plan = study.read(folder / STUDY)
    results = collect(plan, folder)
    text, page = folder / "index.md", folder / "index.html"
    with explained(f"page of {folder}", "make the directory writable"):
        (folder / RESULTS).write_bytes(encoded(results))
        rundir.write_text(text, markdown(plan, results))
        rundir.write_text(page, html(plan, results))
    shown = list(map(table.text, map(texts.table, _tables(plan, results, plan.parts)))) if details else []
    return (*(f"{each}\n" for each in shown), headline(plan, results), *summary(plan, results), text, page)


def _tables(plan: Study, results: StudyResults, parts: Collection[str]) -> list[Table]:
    chosen = [each for each in plan.tables if each.part in parts]
    return [shown for each in chosen for shown in tables.of(each, measured(each, plan, results), plan)]


def summary(plan: Study, results: StudyResults) -> list[str]:
    """Return finding, claim and figures of `_SHOWN` claims: a line each, or two if there are at most `_IN_TWO_LINES`.

    Claims on parts that the engine does not run are counted in the headline only.
    """
    found = [each for each in _findings(plan, results) if plan.table(each.claim.table).part not in plan.left_out]
    left_out = [tr(f"{len(found) - _SHOWN} more on the page")] if len(found) > _SHOWN else []
    between = "\n      " if len(found) <= _IN_TWO_LINES else tr("; ")
    return [
        tr(each.answer) + tr(": ") + between.join(filter(None, [str(each.claim.text), tables.figures_of(each)]))
        for each in found[:_SHOWN]
    ] + left_out


def headline(plan: Study, results: StudyResults) -> Name:
    """Return the answers to the claims in one line, in the language of the process."""
    answers = [found.answer for found in _findings(plan, results)]
    if not answers:
        return Name(str(plan.title))
    counts = [f"{tr(answer)}{tr(': ')}{answers.count(answer)}" for answer in dict.fromkeys(answers)]
    title = f"{plan.title} " if plan.title.en.endswith("?") else f"{plan.title}{tr(': ')}"
    return Name(tr("; ").join([title + tr(plural(len(answers), "claim")), *counts]))


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
    if is_simulated(results.server):
        plan = plan.model_copy(update={"notes": (*plan.notes, _BY_CONSTRUCTION)})
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
            (name, str(part.title), tables.loads(name, plan, results), _tables(plan, results, (name,)))
            for name, part in plan.parts.items()
        ],
        "left_out": list(plan.left_out.items()),
        "invalid": [
            f"{run.part}/{run.scenario}/{run.variant}/{run.pair}: {'; '.join(run.reasons.values())}" for run in invalid
        ],
    }


def main() -> None:
    """Write the pages of stored studies, NAME.md and zh/NAME.md beside NAME.yaml and NAME.json, after taking over --from."""
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
        for page, text in stored(path).items():
            page.parent.mkdir(exist_ok=True)
            page.write_text(text, encoding="utf-8")


def stored(path: Path) -> dict[Path, str]:
    """Return the pages of stored results, in English and in Chinese. `path`: NAME.json beside NAME.yaml."""
    plan, results = study.read(path.with_suffix(".yaml")), read_results(path)
    pages = {}
    for chosen, folder in zip(language.LANGUAGES, (path.parent, path.parent / "zh"), strict=True):
        with language.used(chosen):
            pages[folder / f"{path.stem}.md"] = markdown(plan, results)
    return pages


if __name__ == "__main__":
    main()
