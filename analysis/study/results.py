"""Figures of the runs of a study: read from run directories, kept in results.json."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.numbers import plural
from inferload.results.documents import typed_documents
from inferload.results.documents.summary_document import Results, Summary
from inferload.results.study import STUDY, StudyPlan
from inferload.scenario.files import catalog, typed_yaml

from ..comparison.sides import Run, read_run
from ..data.figures import value_of

FORMAT = 1


class StudyRun(Struct, frozen=True, kw_only=True):
    """A run, or one step of its load. `level`: verdict of the measurement; `values`: by figure, None if unknown."""

    part: str
    variant: str
    scenario: str
    pair: int
    load: float | None = None
    level: str = "not judged"
    reasons: list[str] = []
    values: dict[str, float | None] = {}


class StudyResults(Struct, frozen=True, kw_only=True):
    """results.json. `server`: engine with its version and model; `stands_for`: of the simulator, None for other engines."""

    format: int = FORMAT
    started_at: str = ""
    server: str = ""
    stands_for: str | None = None
    machine: str = ""
    inferload: str = ""
    runs: list[StudyRun] = []


def read_plan(folder: Path) -> StudyPlan:
    """Read the plan of a study. Raise UsageError if it is invalid."""
    path = folder / STUDY
    return typed_yaml.from_text(catalog.read(path, "study ", "name the folder of a study"), str(path), StudyPlan)


def read_results(path: Path) -> StudyResults:
    """Read stored results. Raise UsageError if they are invalid."""
    return typed_documents.read(path, StudyResults)


def collect(plan: StudyPlan, folder: Path) -> StudyResults:
    """Read the finished runs of a study. Raise UsageError without any."""
    found: list[StudyRun] = []
    first: Run | None = None
    for part, planned in plan.parts.items():
        names = tuple(dict.fromkeys(name for table in plan.tables if table.part == part for name in table.figures))
        for scenario in planned.scenarios:
            for variant in planned.variants:
                for path in sorted((folder / part / scenario / variant).glob("[0-9]*")):
                    if not (path / rundir.SUMMARY).is_file():
                        continue
                    run = read_run(path, names)
                    first = first or run
                    found += _runs(run, part, scenario, variant, names)
    if first is None:
        raise UsageError(f"{folder}: no finished run; continue with: inferload study --resume {folder}")
    summary = typed_documents.read(first.path / rundir.SUMMARY, Summary)
    return StudyResults(
        started_at=first.started_at,
        server=" ".join(filter(None, (str(first.server.get("engine")), summary.run.versions.get("server")))),
        stands_for=first.server.get("stands for"),
        machine=_machine(first),
        inferload=str(first.server.get("inferload")),
        runs=found,
    )


def _runs(run: Run, part: str, scenario: str, variant: str, names: tuple[str, ...]) -> list[StudyRun]:
    """Return a run, and one for each step of its load."""
    pair = int(run.path.name.partition("-")[0])
    whole = StudyRun(
        part=part,
        variant=variant,
        scenario=scenario,
        pair=pair,
        level=run.level,
        reasons=list(run.reasons),
        values=dict(run.figures),
    )
    steps = typed_documents.read(run.path / rundir.SUMMARY, Summary).steps
    return [
        whole,
        *(
            StudyRun(
                part=part,
                variant=variant,
                scenario=scenario,
                pair=pair,
                load=step.sessions_per_s if step.users is None else float(step.users),
                level=run.level,
                values={name: value_of(name, Results.of_part(step)) for name in names},
            )
            for step in steps
        ),
    ]


def _machine(run: Run) -> str:
    machine = run.server.get("machine") or {}
    cpus = machine.get("cpus")
    return ", ".join(filter(None, (str(machine.get("system") or ""), cpus and plural(int(cpus), "CPU"))))
