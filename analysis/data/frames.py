"""A run directory as data frames on one clock: seconds since the start of the run (the clock anchor of the master).

Times of workers are converted to the master's monotonic clock by the offsets of the manifest, and to wall time by the master's
anchor; scrapes and marks have wall times of the master's machine. Directories of killed runs are read as far as possible; `notes`
lists missing data.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from inferload.base import rundir
from inferload.base.errors import UsageError, instead_of_file
from inferload.base.rundir import Mark
from inferload.figures.pages import metric_names as names
from inferload.results.documents import typed_documents
from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.summary_document import OtherRequests, Summary
from inferload.results.documents.typed_documents import Document
from inferload.results.open_run import OpenRun
from inferload.servers.roles import Role
from inferload.servers.series import ServerSeries, by_target
from inferload.turns.open_files import TurnFile

from . import locust_history, turn_files, vllm_log
from .frame import Frame, concat
from .turn_files import ClockedFile
from .turn_frames import (
    COLUMNS,
    EVENT_COLUMNS,
    NEEDED,
    NS_PER_S,
    Events,
    empty_turns,
    in_time_order,
    sources,
    turn_events,
    turn_frame,
    workers_of,
)
from .vllm_log import VllmLog

LONGEST_S = 31 * 86_400.0  # of a run: the timeline has a row for each second

UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase in seconds since the start of the run; `end_s` is None if the run ended before the phase."""

    phase: str
    start_s: float
    end_s: float | None


@dataclass(frozen=True, slots=True)
class Sample:
    """The part of a large run that its frames hold: 1 in `every` of `units`. `files`: of all turns.

    `scale`: all turns over those of the sample.
    """

    every: int
    units: str
    scale: float
    files: tuple[ClockedFile, ...]
    workers: Frame  # `RunFrames.workers` of all turns

    @classmethod
    def of(cls, every: int, turns: Frame, files: Sequence[ClockedFile]) -> "Sample":
        """Read what is needed of all turns. `turns`: of the sample."""
        of_tasks = {str(session).startswith(turn_files.SESSION_OF_TASKS) for session in turns["session_id"]}
        units = "turns" if False not in of_tasks else "sessions, and turns of tasks" if True in of_tasks else "sessions"
        scale = sum(each.file.turns for each in files) / max(1, len(turns))
        sample = cls(every, units, scale, tuple(files), Frame({}))
        return replace(sample, workers=workers_of(sample.batches("worker", "planned_s", "sent_s", "closed_s")))

    def batches(self, *columns: str) -> Iterator[Frame]:
        """Yield these columns of all turns, one row group at a time."""
        return (turn_frame(table, shift_ns, columns) for table, shift_ns in self.tables(columns) if len(table))

    def tables(self, columns: Iterable[str]) -> Iterator[tuple[pa.Table, int]]:
        """Yield the sources of these columns, one row group at a time, and the shift of their times."""
        for clocked in self.files:
            for table in clocked.tables(sources(columns)):
                yield table, clocked.shift_ns

    def __str__(self) -> str:
        return f"1 in {self.every} {self.units}"

    def note(self, turns: int) -> str:
        """Return which figures are of the sample. `turns`: of the sample."""
        return (
            f"the run has {sum(each.file.turns for each in self.files):,} turns: charts of turns, percentiles by second, the "
            f"latency breakdown and client figures of the diagnosis are from {self} ({turns:,} turns) and say so; "
            "all other numbers are of all turns"
        )


# Share and number of turns that the only server must have counted: scrapes can begin late and end early.
_ALL_COUNTED, _FEW_TURNS = 0.8, 5


@dataclass(frozen=True)
class Recorded:
    """Documents of a run directory. `marks`: events of the run; `others`: of imported results, which have no summary."""

    path: Path
    manifest: Manifest
    summary: Summary | None
    marks: tuple[Mark, ...] = ()
    others: OtherRequests | None = None


@dataclass(frozen=True, kw_only=True)
class RunFrames(Recorded):
    """Frames of one run. `turns`: one row per turn with INSTANTS as `<name>_s` and PER_TURN; `events`: in time order.

    `users`: t_s, users. `sample`: the turns that `turns` and `events` hold; None: all. `batches`, `event_batches` and `workers`
    are of all turns in any case.
    """

    start_wall_ns: int
    phases: tuple[PhaseSpan, ...]
    turns: Frame
    events: Events
    servers: Mapping[str, ServerSeries]
    users: Frame
    notes: tuple[str, ...]
    log: VllmLog | None = None
    sample: Sample | None = None

    def batches(self, *columns: str) -> Iterator[Frame]:
        """Yield frames of all turns, none of them empty: one with all columns if they are in memory, else many with these."""
        if self.sample is not None:
            yield from self.sample.batches(*columns)
        elif len(self.turns):
            yield self.turns

    def event_batches(self) -> Iterator[Events]:
        """Yield the events of all turns, in no order of time, as many at once as a cache of the processor holds."""
        if self.sample is None:
            yield from self.events.pieces()
        else:
            yield from (turn_events(table, shift_ns) for table, shift_ns in self.sample.tables(EVENT_COLUMNS))

    @cached_property
    def workers(self) -> Frame:
        """First and last planned time, last end and longest turn of each worker; empty without turns."""
        return workers_of([self.turns]) if self.sample is None else self.sample.workers

    @property
    def marked(self) -> str:
        """Sentence for a chart or table of the frames; empty if these hold all turns."""
        return "" if self.sample is None else f"From {self.sample}. "

    @property
    def inference_servers(self) -> frozenset[str]:
        """Targets whose pages are of inference servers, not of GPU exporters or of what forwards requests.

        Without any, those of front ends that publish the requests in flight.
        """
        running = [server for server in self.servers.values() if names.RUNNING in server.metrics]
        engines = [server for server in running if not server.in_front]
        return frozenset(server.target for server in engines or running)

    def answers_for(self, server: ServerSeries) -> bool:
        """Return True if the turns of a server are known: they were sent to its own address, or it alone counted all."""
        return server.target in self.sent_to or (len(self.inference_servers) < 2 and self._counted_all(server))

    def _counted_all(self, server: ServerSeries) -> bool:
        """Return False for one of several replicas: it counted clearly fewer requests than the run sent turns."""
        counted = server.grown(names.FINISHED)
        if self.summary is None or counted is None or not len(counted):
            return True
        return bool(counted[-1] >= _ALL_COUNTED * self.summary.turns.whole_run.ok - _FEW_TURNS)

    @property
    def sent_to(self) -> frozenset[str]:
        """Addresses that turns were sent to."""
        return frozenset(self.turns.texts("target")) - {None}

    def since_start_s(self, wall_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Convert wall times of the master's machine to seconds since the start of the run."""
        return (wall_ns - self.start_wall_ns) / NS_PER_S

    @property
    def end_s(self) -> float:
        """Time of the last known phase end, scrape or turn."""
        ends = [span.end_s for span in self.phases if span.end_s is not None]
        ends += [float(server.wall_ns[-1] - self.start_wall_ns) / NS_PER_S for server in self.servers.values()]
        workers = self.workers
        if len(workers):
            ends.append(float(np.fmax.reduce(workers["end_s"])))
        elif len(self.users):
            ends.append(float(np.fmax.reduce(self.users["t_s"])) + 1.0)
        return max(ends, default=0.0)

    @property
    def turns_until_s(self) -> float | None:
        """Time up to which the turns of all workers were written in an incomplete run; None if complete."""
        workers = self.workers
        return None if self.summary is not None or not len(workers) else float(np.fmin.reduce(workers["end_s"]))


def load(opened: OpenRun, server_log: Path | None = None, *, whole: bool = False) -> RunFrames:
    """Read a run directory; UsageError if it is none. `server_log`: vLLM's log. `whole`: all turns of a large run too."""
    run_dir, notes = opened.path, list[str]()
    if not run_dir.is_dir():
        remedy = instead_of_file(run_dir, "name one that a run wrote")
        raise UsageError(f"run directory {run_dir}: not found; {remedy}")
    manifest = _document(opened, rundir.MANIFEST, Manifest, notes) or Manifest()
    summary = _document(opened, rundir.SUMMARY, Summary, notes)
    _note_irregular(run_dir / rundir.TURNS, notes)
    found = turn_files.found(opened.turns, NEEDED, notes)
    marks = list(rundir.marks_of(_text(run_dir / rundir.MARKS, notes)))
    servers = _servers(opened, manifest.roles, notes)
    start_wall_ns = _start(manifest, marks, found, servers)
    if start_wall_ns is None:
        raise UsageError(f"run directory {run_dir}: contains no data of a run; name one that a run wrote")
    if not servers:
        notes.append("no server metrics were scraped")
    every = 1 if whole else turn_files.sampled_every(found)
    clocked = [turn_files.on_run_clock(file, manifest, start_wall_ns, notes) for file in found]
    turns, events, files = _turns(clocked, every, notes)
    sample = Sample.of(every, turns, files) if every > 1 else None
    if sample is not None:
        notes.append(sample.note(len(turns)))
    run = RunFrames(
        path=run_dir,
        manifest=manifest,
        summary=summary,
        start_wall_ns=start_wall_ns,
        phases=_phases(manifest, start_wall_ns),
        turns=turns,
        events=events,
        servers=servers,
        users=locust_history.users(_text(run_dir / rundir.LOCUST_HISTORY, notes), start_wall_ns),
        marks=tuple(msgspec.structs.replace(mark, t_s=(mark.wall_ns - start_wall_ns) / NS_PER_S) for mark in marks),
        sample=sample,
        notes=tuple(dict.fromkeys(notes)),
    )
    if run.end_s > LONGEST_S:
        raise UsageError(
            f"run directory {run_dir}: ends {run.end_s:.3g} s after its start; is a time in its files wrong?"
        )
    return run if server_log is None else replace(run, log=vllm_log.read(server_log, start_wall_ns, run.end_s))


def _turns(files: Iterable[ClockedFile], every: int, notes: list[str]) -> tuple[Frame, Events, list[ClockedFile]]:
    """Return the turns of 1 in `every` sessions, their events, and the files that can be read.

    A crash between the merge of a worker's parts and their removal leaves turns in two files: a part in a file that was read is
    left out.
    """
    frames, events, readable, merged = list[Frame](), list[Events](), list[ClockedFile](), set[str]()
    for clocked in files:
        if clocked.file.path.name in merged:
            continue
        try:
            own = _read(clocked, every, sum(map(len, frames)))
        except UsageError:
            notes.append(turn_files.unreadable(clocked.file.path))
            continue
        merged |= turn_files.parts_of(clocked.file)
        readable.append(clocked)
        frames += [frame for frame, _ in own]
        events += [of_frame for _, of_frame in own]
        del own[:]  # they take half of the memory
    if not readable:
        notes.append("no turn records are in the run directory")
    turns = concat(frames) if frames else empty_turns()
    frames.clear()
    pa.default_memory_pool().release_unused()  # the C library keeps what they took
    return turns, in_time_order(events), readable


def _read(clocked: ClockedFile, every: int, first_row: int) -> list[tuple[Frame, Events]]:
    """Return the turns of each row group of a file, and their events. `first_row`: of the file in the frame of the run."""
    parts = []
    for table in filter(len, clocked.tables(COLUMNS, every)):
        parts.append((turn_frame(table, clocked.shift_ns), turn_events(table, clocked.shift_ns, first_row)))
        first_row += len(table)
    return parts


def _document(run: OpenRun, name: str, kind: type[Document], notes: list[str]) -> Document | None:
    """Return a document without the parts that are damaged, with a note for each; None if a required part is."""
    path = run.path / name
    if not _readable(path, notes):
        notes.append(f"{path.name} is missing: the run ended before it was written")
        return None
    try:
        document = run.object(name)
    except UsageError as error:
        notes.append(f"{path.name} cannot be read: {str(error).removeprefix(f'{path}: ')}")
        return None
    problems = typed_documents.faults(document, kind)
    notes += [f"{path.name}: {key} is left out ({problem})" for key, problem in problems.items()]
    try:
        return typed_documents.typed({key: value for key, value in document.items() if key not in problems}, kind)
    except msgspec.ValidationError as error:
        notes.append(f"{path.name} is left out ({typed_documents.in_words(error)})")
        return None


def _readable(path: Path, notes: list[str]) -> bool:
    """Return True for a regular file; add a note for a link, pipe or device."""
    if rundir.is_plain(path):
        return True
    if path.is_symlink() or path.exists():
        notes.append(f"{path.name} is not a regular file and is not read")
    return False


def _text(path: Path, notes: list[str]) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if _readable(path, notes) else ""


_NOT_READ = ("_bucket", "_created")


def _servers(run: OpenRun, roles: Mapping[str, Role], notes: list[str]) -> dict[str, ServerSeries]:
    """All series of all servers except histogram buckets, which are not used here."""
    unreadable: list[str] = []
    _note_irregular(run.path / rundir.SERVER_METRICS, notes)
    try:
        servers = by_target(run.scrapes(unreadable), without=_NOT_READ, known=roles)
    except ValueError:  # labels that are no JSON object
        notes.append(f"{rundir.SERVER_METRICS} has unreadable labels and is left out")
        servers = {}
    notes += [f"{rundir.SERVER_METRICS}/{name} cannot be read to its end; the rest is left out" for name in unreadable]
    return servers


def _note_irregular(folder: Path, notes: list[str]) -> None:
    """Add notes on Parquet file names that are links, pipes or devices."""
    odd = sorted(path.name for path in folder.glob("*.parquet") if not rundir.is_plain(path))
    notes += [f"{folder.name}/{name} is not a regular file and is left out" for name in odd]


def _start(
    manifest: Manifest, marks: list[Mark], files: Iterable[TurnFile], servers: Mapping[str, ServerSeries]
) -> int | None:
    """Wall time of the master's anchor; without a manifest the earliest known time."""
    if manifest.anchor is not None:
        return manifest.anchor.wall_ns
    of_servers = (int(server.wall_ns[0]) for server in servers.values())
    known = (*(mark.wall_ns for mark in marks), *of_servers, *(file.anchor.wall_ns for file in files))
    return min(known, default=None)


def _phases(manifest: Manifest, start_wall_ns: int) -> tuple[PhaseSpan, ...]:
    def since_s(wall_ns: int | None) -> float | None:
        return None if wall_ns is None else (wall_ns - start_wall_ns) / NS_PER_S

    return tuple(
        PhaseSpan(phase.phase, start_s, since_s(phase.end_wall_ns))
        for phase in manifest.phases
        if (start_s := since_s(phase.start_wall_ns)) is not None and phase.phase
    )
