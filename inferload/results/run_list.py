"""List of the run directories in a folder, with the key figures of their summaries."""

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from inferload.base import rundir
from inferload.base.clock import NS_PER_S
from inferload.base.errors import UsageError
from inferload.base.escaping import encodable
from inferload.base.numbers import duration, number, short
from inferload.figures.rate_figures import OUTPUT
from inferload.figures.turn_figures import ITL, TTFT
from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.summary_document import Summary
from inferload.results.open_run import OpenRun
from inferload.scenario.files.yaml_text import data_of
from inferload.scenario.schema import tasks

LONGEST = 200  # runs; a page of more would be slow
_UNKNOWN = "-"
_DIGITS = 12  # of a digest


class ListedRun(Struct, frozen=True):
    """One run directory. `state`: of its outcome, `incomplete` without a summary, `unreadable` if a document is damaged.

    `load`, `measured`: as text; `-` if not known. `server`: its addresses, model, and variant or engine.

    `figures`: as text, in the order of `FIGURES`; `~` marks a percentile with fewer than 10 samples beyond it. `values`: the
    same as numbers. `notes`: of the summary, and the marks of `inferload mark`.
    """

    name: str
    started_at: str
    scenario: str
    program: str
    load: str
    measured: str
    server: tuple[str, ...]
    state: str
    headline: str
    invalid: bool  # measurement: its figures are marked
    figures: tuple[str, ...]
    values: tuple[float | None, ...]
    notes: tuple[str, ...]

    def value(self, figure: str) -> float | None:
        """Return a figure by its title in `FIGURES`; None if it is not known."""
        return self.values[FIGURES.index(figure)]

    @property
    def series(self) -> str:
        """Return the runs that a trend may join: those of one scenario and, unless it is part of inferload, one program."""
        return " ".join(filter(None, (self.scenario, self.program)))

    @property
    def words(self) -> str:
        """Return all texts of the entry in lower case, for a search."""
        known = (self.name, self.started_at, self.series, self.load, self.state, self.headline)
        texts = (*known, *self.server, *self.notes)
        return " ".join(texts).casefold()


_LATENCIES = tuple((TTFT, q) for q in ("p50", "p95", "p99")) + tuple((ITL, q) for q in ("p50", "p99"))
FIGURES = (*(f"{figure.title} {q}, {figure.unit}" for figure, q in _LATENCIES), "output tok/s", "failed turns")


def run_dirs(folder: Path) -> list[Path]:
    """Return the run directories in a folder, the newest first: real directories with a manifest, no links."""
    try:
        paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError:
        return []
    dated = [(_written_ns(path / rundir.MANIFEST), path) for path in paths if path.is_dir() and not path.is_symlink()]
    return [path for written_ns, path in sorted(dated, reverse=True) if written_ns]


def name_of(path: Path) -> str:
    """Return the name of a run directory in the list: bytes of it that are no text are escaped."""
    return encodable(path.name)


def named(folder: Path, name: str) -> Path | None:
    """Return the run directory of a name; None if the folder has no such run. The name is compared, never opened."""
    return next((path for path in run_dirs(folder) if name_of(path) == name), None)


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
        return version, listed(OpenRun(path))


def listed(run: OpenRun) -> ListedRun:
    """Return the entry of a run directory; damaged documents give an entry without figures."""
    manifest, summary, marks = Manifest(), None, []
    state, headline = "incomplete", "no summary: the run is under way, or was killed"
    try:
        manifest, marks = run.manifest, run.marks
        if run.has(rundir.SUMMARY):
            summary = run.summary
            state, headline = summary.outcome.state, summary.outcome.headline
    except UsageError as damage:
        state, headline = "unreadable", encodable(str(damage))
    by_hand = [f"at {number(mark.t_s)} s: {mark.text}" for mark in marks if mark.kind == "mark"]
    figures, values = _figures(summary)
    return ListedRun(
        name=name_of(run.path),
        started_at=manifest.started_at,
        scenario=manifest.scenario.name,
        program=_program(manifest, run.path.name),
        load=_UNKNOWN if manifest.load is None else manifest.load.users_or_rate,
        measured=_measured(manifest),
        server=_server(manifest),
        state=state,
        headline=headline,
        invalid=summary is not None and summary.not_valid,
        figures=figures,
        values=values,
        notes=(*by_hand, *(() if summary is None else summary.notes)),
    )


def _measured(manifest: Manifest) -> str:
    """Return the length of the measure phase."""
    phase = next((phase for phase in manifest.phases if phase.phase == "measure"), None)
    if phase is None or phase.start_wall_ns is None or phase.end_wall_ns is None:
        return _UNKNOWN
    return duration((phase.end_wall_ns - phase.start_wall_ns) / NS_PER_S)


def _server(manifest: Manifest) -> tuple[str, ...]:
    """Return the addresses, the model, and the variant or else the engine; what is not known, or named before, is left out."""
    urls = [target.url for target in manifest.targets] or [manifest.target or ""]
    address = urls[0] if len(urls) == 1 else f"{urls[0]} and {len(urls) - 1} more"
    names = (address.removeprefix("http://"), manifest.model, manifest.deployed.name or manifest.engine)
    return tuple(dict.fromkeys(filter(None, names)))


def _program(manifest: Manifest, name: str) -> str:
    """Return the begin of the program's digest; empty if only the scenario, or code of inferload, determines the turns.

    `name`: of the run, which joins no other one if its program is unknown.
    """
    program, unknown = manifest.program, f"of unknown program ({name})"
    if program is None:
        return unknown if _reacts(manifest.scenario.text) else ""
    if program.bundled:
        return ""
    return unknown if program.digest is None else program.digest[:_DIGITS]


def _reacts(text: str) -> bool:
    """Return True if code of a program determines the turns of a scenario."""
    document = data_of(text)
    return isinstance(document, Mapping) and tasks.reacts(document.get("workload"))


def _figures(summary: Summary | None) -> tuple[tuple[str, ...], tuple[float | None, ...]]:
    if summary is None:
        return (_UNKNOWN,) * len(FIGURES), (None,) * len(FIGURES)
    blocks = [(summary.latency_of(figure.key), q) for figure, q in _LATENCIES]
    others = (summary.rates.get(OUTPUT.key), summary.turns.whole_run.failed)
    values = (*(block.statistic(q) for block, q in blocks), *others)
    marks = [" ~" if block.is_marked(q) else "" for block, q in blocks] + [""] * len(others)
    texts = (_UNKNOWN if value is None else short(value) + mark for value, mark in zip(values, marks, strict=True))
    return tuple(texts), values


def _written_ns(path: Path) -> int:
    """Return the time of the last change of a regular file; 0 without one."""
    try:
        return path.lstat().st_mtime_ns if rundir.is_plain(path) else 0
    except OSError:
        return 0
