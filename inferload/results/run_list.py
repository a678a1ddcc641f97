"""List of the run directories in a folder, with the key figures of their summaries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.numbers import short
from inferload.figures.rate_figures import OUTPUT
from inferload.figures.turn_figures import ITL, TTFT
from inferload.results import document_shapes
from inferload.results.summary import is_marked
from inferload.results.verdict import outcome

LONGEST = 200  # runs; a page of more would be slow
_UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One run directory. `state`: of its outcome, `incomplete` without a summary, `unreadable` if a document is damaged.

    `figures`: as text, in the order of `FIGURES`; `~` marks a percentile with fewer than 10 samples beyond it. `values`: the
    same as numbers. `notes`: of the summary.
    """

    name: str
    started_at: str
    scenario: str
    server: str
    state: str
    headline: str
    invalid: bool  # measurement: its figures are marked
    figures: tuple[str, ...]
    values: tuple[float | None, ...]
    notes: tuple[str, ...]

    def value(self, figure: str) -> float | None:
        """Return a figure by its title in `FIGURES`; None if it is not known."""
        return self.values[list(FIGURES).index(figure)]

    @property
    def words(self) -> str:
        """Return all texts of the entry in lower case, for a search."""
        texts = (self.name, self.started_at, self.scenario, self.server, self.state, self.headline, *self.notes)
        return " ".join(texts).casefold()


FIGURES: Mapping[str, tuple[str, ...]] = {
    "TTFT p50, ms": ("latency", TTFT.key, "p50"),
    "TTFT p95, ms": ("latency", TTFT.key, "p95"),
    "TTFT p99, ms": ("latency", TTFT.key, "p99"),
    "ITL p50, ms": ("latency", ITL.key, "p50"),
    "ITL p99, ms": ("latency", ITL.key, "p99"),
    "output tok/s": ("rates", OUTPUT.key),
    "failed turns": ("turns", "by_phase", "all", "failed"),
}


def run_dirs(folder: Path) -> list[Path]:
    """Return the run directories in a folder, the newest first: real directories with a manifest, no links."""
    try:
        paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError:
        return []
    dated = [(_written_ns(path / rundir.MANIFEST), path) for path in paths if path.is_dir() and not path.is_symlink()]
    return [path for written_ns, path in sorted(dated, reverse=True) if written_ns]


def named(folder: Path, name: str) -> Path | None:
    """Return the run directory of a name; None if the folder has no such run. The name is compared, never opened."""
    return next((path for path in run_dirs(folder) if path.name == name), None)


class RunList:
    """Runs of a folder; a summary is read again only if its file has changed. `pause`: called between files."""

    def __init__(self, folder: Path, pause: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self._pause = pause
        self._known: dict[Path, tuple[object, ListedRun]] = {}

    def read(self) -> tuple[list[ListedRun], int]:
        """Return the newest runs, and the number of older ones that are left out."""
        paths = run_dirs(self.folder)
        shown = paths[:LONGEST]
        self._known = {path: self._entry(path) for path in shown}
        return [run for _, run in self._known.values()], len(paths) - len(shown)

    def _entry(self, path: Path) -> tuple[object, ListedRun]:
        version = tuple(_written_ns(path / name) for name in (rundir.MANIFEST, rundir.SUMMARY))
        known = self._known.get(path)
        if known is not None and known[0] == version:
            return known
        self._pause()
        return version, listed(path)


def listed(path: Path) -> ListedRun:
    """Read the entry of a run directory; damaged documents give an entry without figures."""
    manifest, error = _document(path / rundir.MANIFEST)
    has_summary = rundir.is_plain(path / rundir.SUMMARY)
    summary, damage = _document(path / rundir.SUMMARY) if has_summary else ({}, None)
    state, headline = "incomplete", "no summary: the run is under way, or was killed"
    if error or damage:
        state, headline = "unreadable", error or damage or ""
    elif has_summary:
        state, headline = _outcome(summary)
    engine, model = (str(manifest.get(key) or "unknown") for key in ("engine", "model"))
    return ListedRun(
        name=path.name,
        started_at=str(manifest.get("started_at") or ""),
        scenario=str(_at(manifest, "scenario", "name") or ""),
        server=model if model == engine else f"{model} ({engine})",
        state=state,
        headline=headline,
        invalid=_at(summary, "verdict", "measurement") == "invalid",
        figures=tuple(_figure(summary, keys) for keys in FIGURES.values()),
        values=tuple(_value(summary, keys) for keys in FIGURES.values()),
        notes=tuple(str(note) for note in notes) if isinstance(notes := summary.get("notes"), list) else (),
    )


def _outcome(summary: Mapping[str, Any]) -> tuple[str, str]:
    try:
        judged = outcome.of_summary(summary)
    except (KeyError, TypeError, ValueError, AttributeError):
        return "unreadable", f"{rundir.SUMMARY}: no verdict"
    return judged.state, judged.headline


def _figure(summary: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    block, name = _at(summary, *keys[:-1]), keys[-1]
    value = _value(summary, keys)
    if value is None:
        return _UNKNOWN
    counted = isinstance(block.get("count"), int)
    return short(value) + (" ~" if counted and is_marked(block, name) else "")


def _value(summary: Mapping[str, Any], keys: tuple[str, ...]) -> float | None:
    value = _at(summary, *keys)
    return value if isinstance(value, int | float) else None


def _at(document: Any, *keys: str) -> Any:
    """Return the value at a path of keys; None if the path does not exist."""
    for key in keys:
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document


def _document(path: Path) -> tuple[dict[str, Any], str | None]:
    """Return a document and None, or an empty one and the error."""
    try:
        return document_shapes.read(path), None
    except UsageError as error:
        return {}, str(error)


def _written_ns(path: Path) -> int:
    """Return the time of the last change of a regular file; 0 without one."""
    try:
        return path.lstat().st_mtime_ns if rundir.is_plain(path) else 0
    except OSError:
        return 0
