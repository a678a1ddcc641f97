"""A sweep's folder: `<scenario>/<variant>/<pair>`, and the file that says which variant is the baseline and what decides."""

from pathlib import Path
from typing import Any

from inferload.errors import UsageError
from inferload.scenario.files import catalog

from ..data.figures import DEFAULT_PRIMARY
from .sides import NAMES, Side, read_side

_PLAN = "sweep.yaml"


def is_sweep(folder: Path) -> bool:
    """Whether `inferload sweep` made it."""
    return (folder / _PLAN).is_file()


def primary(folder: Path) -> str:
    """The figure that decides."""
    return str(_plan(folder).get("primary") or DEFAULT_PRIMARY)


def read(folder: Path, names: tuple[str, ...] = NAMES) -> dict[str, list[Side]]:
    """The sides of each scenario, the baseline first; UsageError where no run is finished."""
    baseline = str(_plan(folder).get("baseline") or "")
    found: dict[str, list[Side]] = {}
    for scenario in sorted(path for path in folder.iterdir() if path.is_dir() and path.name != "comparison"):
        variants = sorted(path for path in scenario.iterdir() if any(path.glob("[0-9]*/summary.json")))
        variants.sort(key=lambda path: path.name != baseline.rpartition(":")[2])
        if variants:
            found[scenario.name] = [read_side(path, None, names) for path in variants]
    if not found:
        raise UsageError(f"{folder}: holds no finished runs; inferload sweep --resume {folder} goes on with it")
    return found


def _plan(folder: Path) -> dict[str, Any]:
    found = catalog.data(folder / _PLAN, "", "name a sweep's folder")
    return found if isinstance(found, dict) else {}
