"""Sides of a comparison from run directories and result files of other clients, and their names: `[NAME=]PATH`, `FILE:N`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.arrow import pa, pc
from inferload.base.errors import UsageError, instead_of_file
from inferload.base.status_lines import progress
from inferload.figures.pages.metric_names import PROCESS_START
from inferload.figures.turn_figures import TPOT
from inferload.results.documents import typed_documents
from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.search_document import SearchDocument
from inferload.results.documents.summary_document import Results, Summary
from inferload.results.open_run import OpenRun
from inferload.results.prices import Prices
from inferload.results.summary_notes import notes_on_energy, notes_on_tokens
from inferload.scenario.overrides import ADDED_LATER, flat
from inferload.scenario.schema import tasks

from ..charts.load import FIGURES, TPOT_MEDIAN
from ..data.figures import HIGHEST_LOAD, steady_value_of, value_of
from ..data.manifest import arrivals_of, recorded_prices, scenario_of, slo_of
from ..data.ran import per_turn, ran
from ..interop import imported
from ..interop.result import Imported
from . import served
from .sides import ARMS, NAMES, WARMING, LoadFigures, Run, Side

_MOST_DIGITS = 9  # of the number of a result in a file
UNREADABLE = "not readable"
PROGRAM = "locustfile"  # setting: the program of a run, and the name by which --allow accepts another one
_NO_SETTINGS = ("name", "seed", "gates", "slo", "server")  # keys that may differ between comparable runs


def read_side(path: Path, label: str | None = None, names: tuple[str, ...] = NAMES) -> Side:
    """Read a run directory, a folder of them or of a search, or a result file of another client; UsageError for all else."""
    cut_off: list[str] = []
    unknown: Sequence[str] = ()
    file, number = numbered(path)
    if file.is_file():
        runs = _imported_runs(file, imported.read(file), number)
    elif (path / rundir.MANIFEST).is_file():
        runs = [read_run(OpenRun(path), names)]
        if runs[0].arm == WARMING:
            raise UsageError(f"{path}: warmed the cache for the run after it, and is not counted; name that run")
    elif (path / rundir.SEARCH).is_file():
        runs = [_searched(path)]
    else:
        folders = [folder for folder in sorted(path.glob("[!.]*")) if (folder / rundir.MANIFEST).is_file()]
        cut_off = [folder.name for folder in folders if not (folder / rundir.SUMMARY).is_file()]
        whole = [OpenRun(folder) for folder in folders if folder.name not in cut_off]
        runs = [read_run(run, names) for run in progress.of(whole, f"reading {path}", len(whole))]
        found = imported.read_folder(path, texts=not folders)
        runs += [run for file, results in found.by_file.items() for run in _imported_runs(file, results)]
        unknown = found.left_out
    if not runs:
        problem = "no run directory, and contains none" if path.is_dir() else "no such file or directory"
        remedy = "name a run directory, a folder of them, or another client's result file"
        raise UsageError(f"{path}: {problem}; {instead_of_file(path, remedy)}")
    counted = sorted((run for run in runs if run.arm != WARMING), key=lambda run: run.started_at)
    if not counted:
        raise UsageError(
            f"{path}: contains only runs that warmed a cache, which are not counted; name the runs after them"
        )
    of_file = counted[0].label if number is not None else path.stem
    left_out = {
        "no summary": cut_off,
        "warmed the cache, not counted": [run.label for run in runs if run.arm == WARMING],
        "no result of a client, or that of another file": unknown,
    }
    return Side(
        label or (of_file if file.is_file() else path_label(path)),
        tuple(counted),
        tuple(f"{reason}: {', '.join(names_of)}" for reason, names_of in left_out.items() if names_of),
        path,
    )


def named_side(argument: str, names: tuple[str, ...]) -> Side:
    label, path = named_path(argument)
    return read_side(path, label, names)


def read_run(opened: OpenRun, names: tuple[str, ...] = NAMES) -> Run:
    """Read a run directory; UsageError without a summary."""
    path, manifest = opened.path, opened.manifest
    if not (path / rundir.SUMMARY).is_file():
        raise UsageError(f"{path}: no {rundir.SUMMARY}: the run ended before it was written; leave this run out")
    summary = opened.summary
    turns = summary.turns
    measured = turns.by_phase.get("measure", turns)
    return Run(
        path=path,
        label=path_label(path),
        figures={name: value_of(name, summary) for name in names},
        seed=manifest.seed,
        start=_server_start(opened),
        level=summary.verdict.measurement,
        reasons=tuple(reason.text for reason in summary.verdict.deciding),
        settings=_settings(manifest),
        slo=slo_of(manifest),
        server=_server(manifest),
        output_tokens=per_turn(measured.output_tokens, measured.output_tokens_from),
        input_tokens=per_turn(measured.input_tokens, measured.input_tokens_from),
        # vLLM reports cached tokens only if there are any.
        cached_tokens=per_turn(measured.cached_tokens, measured.input_tokens_from),
        prices=recorded_prices(manifest, path),
        started_at=manifest.started_at,
        notes=tuple(
            f"{path_label(path)}: {note}" for note in (*notes_on_tokens(TPOT.key, turns), *notes_on_energy(summary))
        ),
        lasted_s=_lasted_s(manifest),
        ran=ran(manifest.load, summary),
        scenario=manifest.scenario.name,
        loads=_loads(manifest, summary),
        arm=summary.cache.arm or ARMS[0],
        summary=summary,
        **served.fields_of(summary, summary),
    )


def _searched(path: Path) -> Run:
    """Return a search as a run whose only figure is the highest load that holds its SLO; UsageError for a plain sweep of loads."""
    document = typed_documents.read(path / rundir.SEARCH, SearchDocument)
    if document.answer is None:
        raise UsageError(f"{path}: a sweep of loads, without an answer; name a run directory below {path}/points")
    made = [OpenRun(path / name) for point in document.points for name in point.runs]
    manifests = [run.manifest for run in made if run.has(rundir.MANIFEST)]
    return Run(
        path=path,
        label=path_label(path),
        figures={HIGHEST_LOAD.name: document.answer.holds},
        level="valid",
        settings={"slo": document.slo, "unit": document.unit, "scenario": document.scenario.digest},
        server=_server(manifests[0]) if manifests else {},
        started_at=document.made_at,
        notes=(f"{path_label(path)}: {document.answer.text}",),
        scenario=document.scenario.name,
        points=tuple(read_run(run) for run in made if run.has(rundir.SUMMARY)),
    )


def _server(manifest: Manifest) -> dict[str, Any]:
    return {
        "model": manifest.model,
        "engine": manifest.engine,
        "variant": None if manifest.variant is None else typed_documents.document_of(manifest.variant),
        "stands for": " and ".join(manifest.stand_ins) or None,
        "target": manifest.target,
        **({"clock": manifest.clock} if manifest.clock != "real" else {}),
        "machine": manifest.machine,
        "inferload": manifest.versions.get("inferload"),
    }


def _lasted_s(manifest: Manifest) -> float | None:
    """Time from the run's clock anchor to the end of its last phase; None if the manifest lacks either."""
    ends_ns = [phase.end_wall_ns for phase in manifest.phases]
    known_ns = [end_ns for end_ns in ends_ns if end_ns is not None]
    if manifest.anchor is None or not known_ns or None in ends_ns:
        return None
    return (max(known_ns) - manifest.anchor.wall_ns) / 1e9


def _loads(manifest: Manifest, summary: Summary) -> tuple[LoadFigures, ...]:
    """Figures at the load of a run, or of each of its steps; empty for a load without a single number."""
    arrivals = arrivals_of(manifest)
    blocks: list[tuple[Results, object, object]] = [
        (Results.of_part(step), step.users, step.sessions_per_s) for step in summary.steps
    ] or [(summary, arrivals.get("users"), arrivals.get("sessions_per_s"))]
    return tuple(
        LoadFigures(float(load), unit, {name: steady_value_of(name, part) for name in (*FIGURES, TPOT_MEDIAN)})
        for part, users, sessions_per_s in blocks
        for load, unit in ((users, "users"), (sessions_per_s, "sessions/s"))
        if isinstance(load, int | float)
    )


def _settings(manifest: Manifest) -> dict[str, Any]:
    """Return the flat scenario without keys that may differ, and the program, unless it is of inferload and only runs this."""
    document = {key: value for key, value in scenario_of(manifest).items() if key not in _NO_SETTINGS}
    settings = settings_of_load(dict(flat(document)))
    program = manifest.program
    if program is None or (program.bundled and not reacts(settings)):
        return settings
    named = "of inferload" if program.bundled else f"{program.name} ({(program.digest or '')[:16] or UNREADABLE})"
    return settings | {PROGRAM: named}


def settings_of_load(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without the keys that change no load: runs and baseline files of earlier versions lack them."""
    return {key: value for key, value in settings.items() if key not in ADDED_LATER}


def reacts(settings: Mapping[str, Any]) -> bool:
    """Return True if Python code of the program determines the turns, so that the scenario alone does not."""
    return tasks.reacts({key: settings.get(f"workload.{key}") for key in ("kind", "classes")})


def _server_start(run: OpenRun) -> str | None:
    """Return the start times of the servers from their metrics; None if not published."""
    unreadable: list[str] = []
    started = set()
    for table in run.scrapes(unreadable):
        of_starts = table.filter(pc.equal(table["metric"].cast(pa.string()), PROCESS_START))
        started |= {(str(row["target"]), round(row["value"], 1)) for row in of_starts.to_pylist()}
    if unreadable or not started:
        return None
    manifest = run.manifest
    # All servers on virtual clocks start at one time: the variant's record has the seed of the start.
    own = manifest.variant if manifest.clock == "virtual" else None
    known = [] if own is None else [f"{own.name}, {own.started_at}"]
    return "; ".join([*(f"{target} at {value}" for target, value in sorted(started)), *known])


def _imported_runs(path: Path, results: Sequence[Imported], number: int | None = None) -> list[Run]:
    if number is not None and not 1 <= number <= len(results):
        raise UsageError(f"{path}:{number}: the file has the results 1 to {len(results)}; name one of them")
    if number is None and imported.are_configurations(results):
        raise UsageError(f"{path}: {len(results)} configurations, which are no repeats; name one as {path}:1")
    return [
        Run(
            path=path,
            label=result.label or (path.stem if len(results) == 1 else f"{path.stem}:{position}"),
            figures=result.figures,
            seed=result.seed,
            settings=result.settings,
            server={"model": result.model, "client": result.client},
            output_tokens=result.output_tokens,
            input_tokens=result.input_tokens,
            concurrency=result.concurrency,
            prices=Prices(gpus=result.gpus),
            started_at=result.started_at,
            notes=result.notes,
            ok_and_sent=result.ok_and_sent,
            failed=result.failed_requests,
            collapsed=served.mostly_not_served(result.not_served),
        )
        for position, result in enumerate(results, 1)
        if number in (None, position)
    ]


def numbered(path: Path) -> tuple[Path, int | None]:
    """Split `FILE:N` into the file and the number of a result in it, from 1; an existing path may contain a colon."""
    name, colon, number = path.name.rpartition(":")
    if path.exists() or not colon or not number.isascii() or not number.isdecimal() or len(number) > _MOST_DIGITS:
        return path, None
    return path.with_name(name), int(number)


def expanded(argument: str) -> list[str]:
    """Return a side for each row of a table or block of a text without a number; the side itself of all else."""
    label, path = named_path(argument)
    if label is not None or not path.is_file() or path.suffix in (".json", ".jsonl"):  # of clients: large, and repeats
        return [argument]
    try:
        results = imported.read(path)
    except UsageError:  # another kind of file, such as a baseline
        return [argument]
    numbered = [f"{path}:{number}" for number in range(1, len(results) + 1)]
    return numbered if imported.are_configurations(results) else [argument]


def path_label(path: Path) -> str:
    """Return the name of a path; for `.` the name of the working directory."""
    return path.name or path.resolve().name


def named_path(argument: str) -> tuple[str | None, Path]:
    """Split `[NAME=]PATH` into the name, if any, and the path; an existing path may contain an equals sign.

    UsageError without a path: an empty one would be the working directory.
    """
    label, sign, rest = argument.partition("=")
    if not (rest if sign else argument):
        raise UsageError(f"side {argument!r}: no path; write it as NAME=FOLDER")
    return (label, Path(rest)) if sign and not Path(argument).exists() else (None, Path(argument))
