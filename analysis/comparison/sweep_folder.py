"""Folder of a sweep: runs in `<scenario>/<variant>/<pair>`, baseline and primary figure in sweep.yaml."""

from pathlib import Path
from typing import Any

from inferload.errors import UsageError
from inferload.scenario.files import catalog

from ..data.figures import DEFAULT_PRIMARY
from .sides import NAMES, Side, read_side

_PLAN = "sweep.yaml"


def is_sweep(folder: Path) -> bool:
    """Return True for a folder written by `inferload sweep`."""
    return (folder / _PLAN).is_file()


def primary(folder: Path) -> str:
    """Return the name of the primary figure."""
    return str(_plan(folder).get("primary") or DEFAULT_PRIMARY)


def read(folder: Path, names: tuple[str, ...] = NAMES) -> dict[str, list[Side]]:
    """Read the sides by scenario, the baseline first; UsageError without a finished run."""
    baseline = str(_plan(folder).get("baseline") or "")
    by_scenario: dict[str, list[Side]] = {}
    for scenario in sorted(path for path in folder.iterdir() if path.is_dir() and path.name != "comparison"):
        variants = sorted(path for path in scenario.iterdir() if any(path.glob("[0-9]*/summary.json")))
        variants.sort(key=lambda path: path.name != baseline.rpartition(":")[2])
        if variants:
            by_scenario[scenario.name] = [read_side(path, None, names) for path in variants]
    if not by_scenario:
        raise UsageError(f"{folder}: contains no finished runs; continue with inferload sweep --resume {folder}")
    return by_scenario


def _plan(folder: Path) -> dict[str, Any]:
    document = catalog.data(folder / _PLAN, "", "name a sweep's folder")
    return document if isinstance(document, dict) else {}
