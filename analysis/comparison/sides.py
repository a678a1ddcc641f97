"""Sides of a comparison: runs of a configuration, from run directories or result files of other clients."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, fsum, log
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.arrow import pa, pc
from inferload.base.errors import UsageError
from inferload.base.numbers import plural
from inferload.figures.metric_names import PROCESS_START
from inferload.results.cost import UNPRICED, Prices
from inferload.results.documents import typed_documents
from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.summary_document import Results, Summary
from inferload.results.open_run import OpenRun
from inferload.results.statistics.not_served import NotServed, of_counts, total
from inferload.scenario.overrides import ADDED_LATER
from inferload.scenario.schema import tasks

from ..charts.load import FIGURES
from ..data.figures import ALL, steady_value_of, value_of
from ..data.manifest import arrivals_of, scenario_of, slo_of
from ..data.recorded_prices import recorded_prices, with_gpus
from ..interop import imported
from ..interop.result import Imported
from . import served
from .side_names import named_path, numbered, path_label

NAMES = tuple(figure.name for figure in ALL)
ARMS = ("cold", "warm")  # counted arms of a prefix cache, in the order of their runs
WARMING = "warming"
_ONLY = "workload.only"
UNREADABLE = "not readable"
PROGRAM = "locustfile"  # setting: the program of a run, and the name by which --allow accepts another one
_NO_SETTINGS = ("name", "seed", "gates", "slo", "server")  # keys that may differ between comparable runs


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """Figures at one load, by gate name; None if samples are too few."""

    load: float
    unit: str  # users, or sessions/s
    figures: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Run:
    """Figures and settings of a run. `settings`: must be equal on both sides; `server`: may differ.

    `seed`: of the schedule; None: unknown, paired by order. `start`: identity of the server start.
    """

    path: Path
    label: str
    figures: Mapping[str, float | None]
    seed: int | None = None
    start: str | None = None
    level: str = "not judged"  # valid | suspect | invalid | not judged (other clients)
    reasons: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    slo: Mapping[str, float] = field(default_factory=dict)  # limits by measure
    output_tokens: float | None = None  # mean over the turns that reported it
    input_tokens: float | None = None
    cached_tokens: float | None = None  # mean over the turns that reported input tokens
    prices: Prices = UNPRICED
    window_s: float | None = None  # of the measure phase
    concurrency: float | None = None  # limit on concurrent requests, if any
    started_at: str = ""
    lasted_s: float | None = None  # from started_at to the end of the drain
    notes: tuple[str, ...] = ()
    scenario: str = ""
    ok_and_sent: tuple[int, int] | None = None  # successful turns, sent turns
    failed: int | None = None  # of the turns sent
    unfinished: int | None = None  # of the turns sent
    dropped: int | None = None  # sessions that were not started because max_in_flight was reached
    loads: tuple[LoadFigures, ...] = ()  # the run, or each step of its load
    arm: str = "cold"  # of the prefix cache: cold, warm, or warming (not counted)
    collapsed: str = ""  # how the server did not serve the load (`served`); empty if it did
    summary: Summary | None = None  # None: of another client
    counts_hold: bool = True  # False: the measurement is invalid for a reason that is not the server's own

    @property
    def not_served(self) -> NotServed | None:
        """Turns that failed, did not end or were dropped, among the planned ones; None if unknown."""
        if self.ok_and_sent is None:
            return None
        return of_counts(self.ok_and_sent, self.dropped, self.failed, self.unfinished)

    @property
    def given_up(self) -> bool:
        """True if the run was overloaded or stopped by abort_on, whatever the share of its turns that were not served."""
        return served.is_given_up(self.collapsed)

    def value(self, name: str) -> float | None:
        """Return a figure by name; None if unknown."""
        return self.figures.get(name)


@dataclass(frozen=True, slots=True)
class Side:
    """Runs of one configuration in the order of their starts.

    `left_out`: run directories and files that are not in `runs`, with the reason. `part_of`: label of the side of which this one
    has a single cache arm; empty: it is a whole side.
    """

    label: str
    runs: tuple[Run, ...]
    left_out: tuple[str, ...] = ()
    path: Path = Path()
    part_of: str = ""

    @property
    def heading(self) -> str:
        """Label, marked if all runs are invalid."""
        return f"{self.label} (not valid)" if all(run.level == "invalid" for run in self.runs) else self.label

    @property
    def counted(self) -> Sequence[Run]:
        """Runs of the means: the valid and suspect ones, or all if all are invalid."""
        return [run for run in self.runs if run.level != "invalid"] or self.runs

    @property
    def served(self) -> Sequence[Run]:
        """Runs whose turns not served and overload are the server's: also invalid ones, if the server itself made them invalid."""
        return [run for run in self.runs if run.counts_hold]

    @property
    def has_collapsed(self) -> bool:
        """True if the server did not serve the load in more than half of the runs: one of ten may seem overloaded by chance."""
        return 2 * sum(bool(run.collapsed) for run in self.served) > len(self.served)

    @property
    def runs_given_up(self) -> tuple[int, int]:
        """Runs that were overloaded or stopped, and all runs whose counts are the server's."""
        return sum(run.given_up for run in self.served), len(self.served)

    @property
    def collapsed(self) -> str:
        """How the load was not served, with the number of runs; empty if it was served in all runs."""
        found = Counter(run.collapsed for run in self.served if run.collapsed)
        return ", ".join(f"{how} in {count} of {plural(len(self.served), 'run')}" for how, count in found.items())

    @property
    def not_served(self) -> NotServed | None:
        """Turns not served and planned turns of all runs whose counts are the server's; None if unknown for a run."""
        known = [run.not_served for run in self.served if run.not_served is not None]
        if not known or len(known) < len(self.served):
            return None
        return NotServed(
            count=sum(each.count for each in known),
            planned=sum(each.planned for each in known),
            failed=total(each.failed for each in known),
            unfinished=total(each.unfinished for each in known),
            dropped=total(each.dropped for each in known),
        )

    @property
    def ok_and_sent(self) -> tuple[int, int] | None:
        """Successful and sent turns of all runs; None if unknown for a run."""
        known = [run.ok_and_sent for run in self.runs if run.ok_and_sent is not None]
        if not known or len(known) < len(self.runs):
            return None
        return sum(ok for ok, _ in known), sum(sent for _, sent in known)

    def mean(self, name: str) -> float | None:
        """Return the mean over the counted runs (`mean_over_runs`); None if a run has no value."""
        return mean_over_runs([run.value(name) for run in self.counted])


# Side in a table, and the side that its changes refer to; None: no changes, as for a baseline.
TableRow = tuple[Side, Side | None]


def complete_mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None for no values, or if a value is None."""
    known = [value for value in values if value is not None]
    return fsum(known) / len(known) if known and len(known) == len(values) else None


def mean_over_runs(values: Sequence[float | None]) -> float | None:
    """Return the geometric mean of a figure over runs; the arithmetic one if a value is not above 0. None as `complete_mean`.

    The ratio of two geometric means is the mean ratio of the pairs, so that the values of two sides and their change agree.
    """
    known = [value for value in values if value is not None and value > 0]
    if not known or len(known) < len(values):
        return complete_mean(values)
    return known[0] if len(set(known)) == 1 else exp(fsum(map(log, known)) / len(known))


def priced(side: Side, overrides: Prices) -> Side:
    """Return the side with prices that override those of its runs."""
    return replace(
        side,
        runs=tuple(
            replace(run, prices=with_gpus(overrides.over(run.prices), run.server.get("variant"))) for run in side.runs
        ),
    )


def of_class(side: Side, name: str, names: tuple[str, ...] = NAMES) -> Side:
    """Return the side with the figures of one class of turns; UsageError if one of its runs has no such class."""
    return replace(side, runs=tuple(_of_class(run, name, names) for run in side.runs))


def _of_class(run: Run, name: str, names: tuple[str, ...]) -> Run:
    """Return a run with the figures of a class, without those known for all classes together only."""
    if run.summary is None:
        raise UsageError(f"--class {name}: {run.path} has no classes; name run directories")
    classes = run.summary.by_class
    if name not in classes:
        raise UsageError(f"--class {name}: no such class in {run.path}; it has {', '.join(classes) or 'none'}")
    results = Results.of_part(classes[name])
    return replace(
        run,
        figures={figure: value_of(figure, results) for figure in names},
        settings={key: value for key, value in run.settings.items() if key != _ONLY},
        server={**run.server, "only class": run.settings.get(_ONLY)},
        output_tokens=None,
        input_tokens=None,
        cached_tokens=None,
        prices=UNPRICED,
        **served.fields_of(run.summary, results),
        loads=(),
    )


def read_side(path: Path, label: str | None = None, names: tuple[str, ...] = NAMES) -> Side:
    """Read a run directory, a folder of run directories, or a result file of another client; UsageError if none of these."""
    cut_off: list[str] = []
    unknown: Sequence[str] = ()
    file, number = numbered(path)
    if file.is_file():
        runs = _read_imported(file, number)
    elif (path / rundir.MANIFEST).is_file():
        runs = [read_run(OpenRun(path), names)]
        if runs[0].arm == WARMING:
            raise UsageError(f"{path}: warmed the cache for the run after it, and is not counted; name that run")
    else:
        folders = [folder for folder in sorted(path.glob("[!.]*")) if (folder / rundir.MANIFEST).is_file()]
        cut_off = [folder.name for folder in folders if not (folder / rundir.SUMMARY).is_file()]
        runs = [read_run(OpenRun(folder), names) for folder in folders if folder.name not in cut_off]
        found = imported.read_folder(path, texts=not folders)
        runs += [run for file, results in found.by_file.items() for run in _imported_runs(file, results)]
        unknown = found.left_out
    if not runs:
        problem = "no run directory, and contains none" if path.is_dir() else "no such file or directory"
        raise UsageError(f"{path}: {problem}; name a run directory, a folder of them, or another client's result file")
    counted = sorted((run for run in runs if run.arm != WARMING), key=lambda run: run.started_at)
    if not counted:
        raise UsageError(
            f"{path}: contains only runs that warmed a cache, which are not counted; name the runs after them"
        )
    of_file = counted[0].label if number is not None else path.stem
    left_out = {
        "no summary": cut_off,
        "warmed the cache, not counted": [run.label for run in runs if run.arm == WARMING],
        "no result of a client": unknown,
    }
    return Side(
        label or (of_file if file.is_file() else path_label(path)),
        tuple(counted),
        tuple(f"{reason}: {', '.join(names_of)}" for reason, names_of in left_out.items() if names_of),
        path,
    )


def named_side(argument: str, names: tuple[str, ...]) -> Side:
    """Read the side of `[NAME=]PATH`."""
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
        server={
            "model": manifest.model,
            "engine": manifest.engine,
            "variant": None if manifest.variant is None else typed_documents.document_of(manifest.variant),
            "stands for": " and ".join(manifest.stand_ins) or None,
            "target": manifest.target,
            **({"clock": manifest.clock} if manifest.clock != "real" else {}),
            "machine": manifest.machine,
            "inferload": manifest.versions.get("inferload"),
        },
        output_tokens=_per_turn(measured.output_tokens, measured.output_tokens_from),
        input_tokens=_per_turn(measured.input_tokens, measured.input_tokens_from),
        # vLLM reports cached tokens only if there are any.
        cached_tokens=_per_turn(measured.cached_tokens, measured.input_tokens_from),
        prices=recorded_prices(manifest, path),
        window_s=summary.window_s,
        started_at=manifest.started_at,
        lasted_s=_lasted_s(manifest),
        scenario=manifest.scenario.name,
        loads=_loads(manifest, summary),
        arm=summary.cache.arm or ARMS[0],
        summary=summary,
        **served.fields_of(summary, summary),
    )


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
        LoadFigures(float(load), unit, {name: steady_value_of(name, part) for name in FIGURES})
        for part, users, sessions_per_s in blocks
        for load, unit in ((users, "users"), (sessions_per_s, "sessions/s"))
        if isinstance(load, int | float)
    )


def _per_turn(total: int | None, reported: int | None) -> float | None:
    """Return the mean over the turns that reported a count, failed ones included."""
    return total / reported if total is not None and reported else None


def _settings(manifest: Manifest) -> dict[str, Any]:
    """Flatten the scenario, without keys that may differ between comparable runs, and add the program."""
    document = {key: value for key, value in scenario_of(manifest).items() if key not in _NO_SETTINGS}
    settings = settings_of_load(dict(_flat(document)))
    program = _program_text(manifest, reacting=reacts(settings))
    return settings if program is None else settings | {PROGRAM: program}


def settings_of_load(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without the keys that change no load: runs and baseline files of earlier versions lack them."""
    return {key: value for key, value in settings.items() if key not in ADDED_LATER}


def reacts(settings: Mapping[str, Any]) -> bool:
    """Return True if Python code of the program determines the turns, so that the scenario alone does not."""
    return tasks.reacts({key: settings.get(f"workload.{key}") for key in ("kind", "classes")})


def _program_text(manifest: Manifest, *, reacting: bool) -> str | None:
    """Return name and digest of a run's program; None if it is part of inferload and only runs the scenario, or not recorded.

    `reacting`: its code determines the turns.
    """
    program = manifest.program
    if program is None or (program.bundled and not reacting):
        return None
    return "of inferload" if program.bundled else f"{program.name} ({(program.digest or '')[:16] or UNREADABLE})"


def _flat(data: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    entries: list[tuple[str, Any]] = []
    for key, value in data.items():
        full = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping) and value:
            entries += _flat(value, full)
        else:
            entries.append((full, value))
    return entries


def _server_start(run: OpenRun) -> str | None:
    """Start times of the servers from their metrics; None if not published."""
    unreadable: list[str] = []
    started = set()
    for table in run.scrapes(unreadable):
        of_starts = table.filter(pc.equal(table["metric"].cast(pa.string()), PROCESS_START))
        started |= {(str(row["target"]), round(row["value"], 1)) for row in of_starts.to_pylist()}
    if unreadable or not started:
        return None
    return "; ".join(f"{target} at {value}" for target, value in sorted(started))


def _read_imported(path: Path, number: int | None = None) -> list[Run]:
    """Read the results of a file, or the one of a number."""
    return _imported_runs(path, imported.read(path), number)


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
            started_at=result.started_at,
            notes=result.notes,
            ok_and_sent=result.ok_and_sent,
            failed=result.failed_requests,
            collapsed=served.mostly_not_served(result.not_served),
        )
        for position, result in enumerate(results, 1)
        if number in (None, position)
    ]
