"""Folder of a sweep: runs in `<scenario>/<variant>/<pair>`, baseline and primary figure in sweep.yaml."""

from pathlib import Path
from typing import Any

from inferload.deploy.variants.variant import label

from inferload.base.errors import UsageError
from inferload.base.escaping import own_command
from inferload.campaign.sweep.definition import PLAN
from inferload.figures.limits.gate import Gate
from inferload.scenario.files import catalog

from ..data.figures import Term, figure, primary_of
from . import requirements
from .arms import by_arm
from .read_sides import read_side
from .sides import NAMES, Side


def is_sweep(folder: Path) -> bool:
    """Return True for a folder written by `inferload sweep`."""
    return (folder / PLAN).is_file()


def primary(folder: Path) -> Term:
    named = _plan(folder).get("primary")
    return figure(str(named)) if named else primary_of(required(folder))


def required(folder: Path) -> tuple[Gate, ...]:
    """Return the requirements on the best sides; none: the gates that all runs have."""
    return requirements.parse(map(str, _plan(folder).get("require") or ()))


def read(folder: Path, names: tuple[str, ...] = NAMES) -> dict[str, list[Side]]:
    """Read the sides by scenario and cache arm, the baseline first; UsageError without a finished run of the baseline.

    Scenarios without a finished run of the baseline are left out (`left_out`).
    """
    variants, baseline = _variants(folder), _baseline(folder)
    by_scenario: dict[str, list[Side]] = {}
    for scenario, paths in variants.items():
        if paths[0].name == baseline:
            parts = by_arm([read_side(path, None, names) for path in paths])
            by_scenario |= {
                scenario if len(parts) == 1 else f"{scenario}, {part[0].runs[0].arm}": part for part in parts
            }
    if not by_scenario:
        missing = f"finished run of the baseline {baseline}" if variants else "finished runs"
        raise UsageError(f"{folder}: contains no {missing}; continue with: {own_command('sweep', '--resume', folder)}")
    return by_scenario


def left_out(folder: Path) -> str:
    """Return a note on the scenarios without a finished run of the baseline; empty without any."""
    baseline = _baseline(folder)
    scenarios = [scenario for scenario, paths in _variants(folder).items() if paths[0].name != baseline]
    return f"left out, no finished run of the baseline {baseline}: {', '.join(scenarios)}" if scenarios else ""


def _baseline(folder: Path) -> str:
    """Return the name of the baseline, which is that of its folders."""
    return label(str(_plan(folder).get("baseline") or ""))


def _variants(folder: Path) -> dict[str, list[Path]]:
    """Return the folders of the variants with a finished run, by scenario, the baseline first."""
    baseline = _baseline(folder)
    variants = {}
    for scenario in sorted(path for path in folder.iterdir() if path.is_dir() and path.name != "comparison"):
        paths = [path for path in scenario.iterdir() if any(path.glob("[0-9]*/summary.json"))]
        if paths:
            variants[scenario.name] = sorted(paths, key=lambda path: (path.name != baseline, path.name))
    return variants


def _plan(folder: Path) -> dict[str, Any]:
    document = catalog.data(folder / PLAN, "", "name a sweep's folder")
    return document if isinstance(document, dict) else {}
