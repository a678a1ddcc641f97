"""HTML page of several runs: the folder of a sweep, a folder of runs, or named runs."""

import os
from collections.abc import Sequence
from pathlib import Path

from inferload import rundir
from inferload.errors import UsageError

from ..charts.load import FIGURES
from ..comparison import sweep_folder
from ..comparison.compare import compare, table_rows
from ..comparison.page import Part, html, summary_line
from ..comparison.recommend import recommend
from ..comparison.recommend_text import section
from ..comparison.sides import NAMES, Run, Side, read_run
from ..data.figures import ALL, figure

PAGE = "index.html"
_NAMES = tuple(dict.fromkeys((*NAMES, *FIGURES)))


def runs_below(folder: Path) -> list[Path]:
    """Return the finished run directories in a folder; none for a run directory."""
    if (folder / rundir.MANIFEST).is_file() or not folder.is_dir():
        return []
    paths = sorted(path.parent for path in folder.glob(f"[!.]*/{rundir.SUMMARY}"))
    return [path for path in paths if (path / rundir.MANIFEST).is_file() and not path.is_symlink()]


def make_sweep(folder: Path) -> tuple[str, Path]:
    """Write the page of a sweep; return (verdict, index.html). UsageError without a finished run."""
    primary = figure(sweep_folder.primary(folder))
    parts = []
    for name, sides in sweep_folder.read(folder, tuple(dict.fromkeys((*_NAMES, primary.name)))).items():
        comparisons = tuple(compare(sides[0], other, primary, ALL) for other in sides[1:])
        advice = section(recommend(name, sides)) if comparisons else None
        rows = table_rows(comparisons) if comparisons else [(sides[0], None)]
        parts.append(Part(name, tuple(rows), comparisons, _links(sides, folder), advice))
    verdicts = [f"{part.name}: {summary_line(part.comparisons)}" for part in parts if part.comparisons]
    verdict = "; ".join(verdicts) or f"{folder.name}: only the baseline has runs"
    return verdict, _written(folder / PAGE, html(f"Sweep {folder.resolve().name}", verdict, parts))


def make_runs(run_dirs: Sequence[Path], folder: Path) -> tuple[str, Path]:
    """Write the page of runs; return (summary, index.html in the folder)."""
    parts = []
    by_scenario: dict[str, dict[str, list[Run]]] = {}
    for path in run_dirs:
        run = read_run(path, _NAMES)
        by_scenario.setdefault(run.scenario or "runs", {}).setdefault(_configuration(run), []).append(run)
    for name, by_label in by_scenario.items():
        sides = [Side(label, tuple(sorted(runs, key=lambda run: run.started_at))) for label, runs in by_label.items()]
        rows = [(side, sides[0] if index else None) for index, side in enumerate(sides)]
        parts.append(Part(name, tuple(rows), links=_links(sides, folder)))
    doubtful = sum(run.level != "valid" for part in parts for side in part.sides for run in side.runs)
    verdict = f"{len(run_dirs)} runs of {', '.join(by_scenario)}"
    if doubtful:
        verdict += f"; {doubtful} of them suspect or not valid: read their pages before you use the numbers"
    folder.mkdir(parents=True, exist_ok=True)
    return verdict, _written(folder / PAGE, html("Runs", verdict, parts))


def _configuration(run: Run) -> str:
    variant = run.server.get("variant")
    name = variant.get("name") if isinstance(variant, dict) else variant
    return str(name or f"{run.server.get('model') or 'a model'} on {run.server.get('engine') or 'a server'}")


def _links(sides: Sequence[Side], folder: Path) -> tuple[tuple[str, str], ...]:
    """Return names and relative paths of the existing reports of runs."""
    pages = [(f"{side.label} {run.label}", run.path / rundir.REPORT_HTML) for side in sides for run in side.runs]
    return tuple((name, Path(os.path.relpath(page, folder)).as_posix()) for name, page in pages if page.is_file())


def _written(path: Path, text: str) -> Path:
    try:
        rundir.write_text(path, text)
    except OSError as error:
        raise UsageError(f"page of {path.parent}: {error.strerror}; make the directory writable") from error
    return path
