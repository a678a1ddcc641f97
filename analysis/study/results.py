"""Figures of the runs of a study: read from run directories, kept in results.json."""

from itertools import product
from pathlib import Path

from msgspec import Struct, json
from msgspec.structs import replace

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.escaping import own_command
from inferload.base.numbers import plural
from inferload.campaign.sweep.study import Study
from inferload.results.documents import typed_documents
from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.summary_document import Results, Summary

from ..data.figures import is_unsteady, value_of
from ..data.ran import Ran, ran

FORMAT = 1


class StudyRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run, or one step of its load. `level`: verdict of the measurement, `reasons`: its reasons by code.

    `values`: by figure, None if unknown; `unsteady`: percentiles among them with fewer than 10 samples beyond. `ran`: load of a
    whole run; None: not recorded by an earlier version.
    """

    part: str
    variant: str
    scenario: str
    pair: int
    load: float | None = None
    level: str = "not judged"
    reasons: dict[str, str] = {}
    values: dict[str, float | None] = {}
    unsteady: list[str] = []
    ran: Ran | None = None


class StudyResults(Struct, frozen=True, kw_only=True):
    """results.json. `server`: engine with its version; `stands_for`: of the simulator, None for other engines."""

    format: int = FORMAT
    started_at: str = ""
    server: str = ""
    stands_for: str | None = None
    machine: str = ""
    inferload: str = ""
    runs: list[StudyRun] = []


def encoded(results: StudyResults) -> bytes:
    """Return results.json, with a line per run: a repeated run changes one line."""
    head = json.encode(replace(results, runs=[])).removesuffix(b"]}")
    return b"%b\n%b\n]}\n" % (head, b",\n".join(map(json.encode, results.runs)))


def read_results(path: Path) -> StudyResults:
    """Read stored results. Raise UsageError if they are invalid."""
    return typed_documents.read(path, StudyResults)


def collect(plan: Study, folder: Path) -> StudyResults:
    """Read the finished runs of a study, without second cache arms. Raise UsageError without any."""
    found: list[StudyRun] = []
    manifests: list[Manifest] = []
    for part, planned in plan.parts.items():
        names = tuple(dict.fromkeys(name for table in plan.tables if table.part == part for name in table.figures))
        for scenario, variant in product(planned.scenario_names, planned.labels):
            for path in sorted((folder / part / scenario / variant).glob("[0-9]*")):
                if path.name.isdecimal() and (path / rundir.SUMMARY).is_file():
                    place = StudyRun(part=part, variant=variant, scenario=scenario, pair=int(path.name))
                    summary = typed_documents.read(path / rundir.SUMMARY, Summary)
                    manifests.append(typed_documents.read(path / rundir.MANIFEST, Manifest))
                    whole, *steps = _runs(summary, place, names)
                    found += [replace(whole, ran=ran(manifests[-1].load, summary)), *steps]
    if not manifests:
        raise UsageError(f"{folder}: no finished run; continue with: {own_command('study', '--resume', folder)}")
    first, versions = manifests[0], manifests[0].versions
    stand_ins = dict.fromkeys(name for manifest in manifests for name in manifest.stand_ins)
    return StudyResults(
        started_at=first.started_at,
        server=_server(first),
        stands_for=" and ".join(stand_ins) or None,
        machine=_machine(first),
        inferload=versions.get("inferload") or "",
        runs=found,
    )


def _runs(summary: Summary, place: StudyRun, names: tuple[str, ...]) -> list[StudyRun]:
    """Return a run, and one for each step of its load. `place`: its part, variant, scenario and pair."""
    run = replace(
        place,
        level=summary.verdict.measurement,
        reasons={reason.code: reason.text for reason in summary.verdict.deciding},
    )
    blocks: list[tuple[float | None, Results]] = [(None, summary)]
    blocks += [
        (step.sessions_per_s if step.users is None else float(step.users), Results.of_part(step))
        for step in summary.steps
    ]
    return [
        replace(
            run,
            load=load,
            values={name: value_of(name, part) for name in names},
            unsteady=[name for name in names if is_unsteady(name, part)],
        )
        for load, part in blocks
    ]


def _server(manifest: Manifest) -> str:
    """Return the engine with its version, which may be a part of its name."""
    engine, version = manifest.engine or "", manifest.versions.get("server") or ""
    return engine if version in engine else f"{engine} {version}".strip()


def _machine(manifest: Manifest) -> str:
    system, cpus = manifest.machine.get("system"), manifest.machine.get("cpus")
    return ", ".join(filter(None, (str(system or ""), plural(int(cpus), "CPU") if cpus else "")))
