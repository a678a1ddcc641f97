"""HTML page of several runs: the folder of a sweep, a folder of runs, or named runs."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from inferload.base import rundir
from inferload.base.errors import UsageError, explained
from inferload.base.numbers import plural, short
from inferload.base.status_lines import progress
from inferload.results.open_run import OpenRun

from ..charts.load import FIGURES
from ..comparison import sweep_folder
from ..comparison.arms import between_arms, by_arm, compare_arms
from ..comparison.comparable import CACHE_ARM, configuration, value_text
from ..comparison.compare import Comparison, compare, table_rows
from ..comparison.output.page import Part, html, summary_line
from ..comparison.read_sides import path_label, read_run
from ..comparison.sides import NAMES, WARMING, Run, Side, TableRow
from ..data.figures import ALL, DEFAULT_PRIMARY, figure
from ..pages.texts import Name, tr

PAGE = "index.html"
_LOAD = ("arrivals.", "phases.")  # settings of load and duration
_NAMES = tuple(dict.fromkeys((*NAMES, *FIGURES)))


def runs_below(folder: Path) -> list[Path]:
    """Return the finished run directories in a folder; none for a run directory."""
    if (folder / rundir.MANIFEST).is_file() or not folder.is_dir():
        return []
    paths = sorted(path.parent for path in folder.glob(f"[!.]*/{rundir.SUMMARY}"))
    return [path for path in paths if (path / rundir.MANIFEST).is_file() and not path.is_symlink()]


def make_sweep(folder: Path) -> tuple[str, Path]:
    """Write the page of a sweep; return (verdict, index.html). UsageError without a finished run of the baseline."""
    primary, required = sweep_folder.primary(folder), sweep_folder.required(folder)
    parts = []
    for name, sides in sweep_folder.read(folder, tuple(dict.fromkeys((*_NAMES, primary.name)))).items():
        comparisons = tuple(replace(compare(sides[0], other, primary, ALL), required=required) for other in sides[1:])
        rows = table_rows(comparisons) if comparisons else [(sides[0], None)]
        parts.append(Part(name, tuple(rows), comparisons, _links(sides, folder)))
    parts = _with_arms(parts)
    verdicts = [f"{part.name}{tr(': ')}{summary_line(part.comparisons)}" for part in parts if part.comparisons]
    verdicts = verdicts or [tr(f"{path_label(folder)}: only the baseline has runs")]
    verdict = Name(tr("; ").join(filter(None, [*verdicts, tr(sweep_folder.left_out(folder))])))
    return verdict, _written(folder / PAGE, html(f"Sweep {folder.resolve().name}", verdict, parts))


def _with_arms(parts: Sequence[Part]) -> list[Part]:
    """Add the comparisons of warm with cold runs to the last part of each scenario."""
    of_scenario: dict[str, list[Part]] = {}
    for part in parts:
        of_scenario.setdefault(part.sides[0].runs[0].scenario, []).append(part)
    found = []
    for several in of_scenario.values():
        arms = between_arms([comparison for part in several for comparison in part.comparisons])
        found += [*several[:-1], replace(several[-1], arms=tuple(arms))]
    return found


def make_runs(opened: Sequence[OpenRun], folder: Path) -> tuple[str, Path]:
    """Write the page of runs; return (summary, index.html in the folder)."""
    parts = []
    by_scenario: dict[str, dict[str, list[Run]]] = {}
    read = (read_run(each, _NAMES) for each in progress.of(opened, f"reading {folder}", len(opened)))
    runs = [run for run in read if run.arm != WARMING]
    if not runs:
        raise UsageError(f"{folder}: contains only runs that warmed a cache, which are not counted")
    for run in runs:
        by_scenario.setdefault(run.scenario or "runs", {}).setdefault(_configuration(run), []).append(run)
    for name, by_label in by_scenario.items():
        sides = [
            Side(label, tuple(sorted(members, key=lambda run: run.started_at))) for label, members in by_label.items()
        ]
        curves = tuple(part for side in sides for part in _split(side, lambda key: not key.startswith(_LOAD)))
        parts.append(Part(name, _rows(sides), links=_links(sides, folder), curves=curves, arms=_arms(sides)))
    doubtful = sum(run.level != "valid" for run in runs)
    verdict = f"{plural(len(runs), 'run')} of {', '.join(by_scenario)}"
    if len(opened) > len(runs):
        verdict += f"; left out: {plural(len(opened) - len(runs), 'run')} that warmed a cache"
    if doubtful:
        verdict += f"; {doubtful} of them suspect or not valid: read their pages before you use the numbers"
    return verdict, _written(folder / PAGE, html("Runs", verdict, parts))


def _configuration(run: Run) -> str:
    variant = run.server.get("variant")
    name = variant.get("name") if isinstance(variant, dict) else variant
    return str(name or f"{run.server.get('model') or 'a model'} on {run.server.get('engine') or 'a server'}")


def _rows(sides: Sequence[Side]) -> tuple[TableRow, ...]:
    """Return a row for each setting of a configuration.

    Rows have changes, over pairs of runs, only if each configuration has a single setting: a mean over several loads depends on
    the choice of the loads.
    """
    by_setting = [_split(side) for side in sides]
    if len(sides) > 1 and all(len(parts) == 1 for parts in by_setting):
        comparisons = [compare(sides[0], side, figure(DEFAULT_PRIMARY), ALL) for side in sides[1:]]
        if all(comparison.pairs for comparison in comparisons):
            return tuple(table_rows(comparisons))
    return tuple((part, None) for parts in by_setting for part in parts)


def _arms(sides: Sequence[Side]) -> tuple[Comparison, ...]:
    """Compare the warm runs with the cold ones of each configuration, at each of its settings."""
    parts = [part for side in sides for part in _split(side, lambda key: key != CACHE_ARM)]
    return tuple(comparison for part in parts for comparison in compare_arms(by_arm([part])))


def _properties(run: Run) -> dict[str, str]:
    """Return all settings that runs of one mean share."""
    return {**{key: value_text(value) for key, value in run.settings.items()}, **configuration(run)}


def _split(side: Side, splits: Callable[[str], bool] = lambda key: True) -> list[Side]:
    """Split a side by the properties of its runs whose keys `splits` chooses; the label of a part has the load, or what differs."""
    of_runs = [(run, {key: value for key, value in _properties(run).items() if splits(key)}) for run in side.runs]
    keys = sorted({key for _, values in of_runs for key in values})
    differing = [key for key in keys if len({values.get(key) for _, values in of_runs}) > 1]
    if not differing:
        return [side]
    parts: dict[str, list[Run]] = {}
    for run, values in of_runs:
        label = ", ".join(f"{key} {values.get(key, 'not set')}" for key in differing)
        parts.setdefault(label, []).append(run)
    # Runs of a part have equal settings, so one load.
    loads = [_load(runs[0]) for runs in parts.values()]
    if all(key.startswith(_LOAD) for key in differing) and all(loads) and len(set(loads)) == len(loads):
        parts = {_load(runs[0]): runs for runs in sorted(parts.values(), key=lambda runs: runs[0].loads[0].load)}
    return [Side(f"{side.label}, {label}", tuple(runs)) for label, runs in parts.items()]


def _load(run: Run) -> str:
    """Return the load of a run, or the range of its steps; empty if unknown."""
    loads = [level.load for level in run.loads]
    if not loads:
        return ""
    to = "" if min(loads) == max(loads) else f" to {short(max(loads))}"
    return f"{short(min(loads))}{to} {run.loads[0].unit}"


def _links(sides: Sequence[Side], folder: Path) -> tuple[tuple[str, str], ...]:
    """Return names and relative URLs of the existing reports of runs."""
    pages = [(f"{side.label} {run.label}", run.path / rundir.REPORT_HTML) for side in sides for run in side.runs]
    return tuple(
        (name, quote(Path(os.path.relpath(page, folder)).as_posix())) for name, page in pages if page.is_file()
    )


def _written(path: Path, text: str) -> Path:
    with explained(f"page of {path.parent}", "name a directory that can be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        rundir.write_text(path, text)
    return path
