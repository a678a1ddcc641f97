"""A run directory as data frames on one clock: seconds since the start of the run (the clock anchor of the master).

Times of workers are converted to the master's monotonic clock by the offsets of the manifest, and to wall time by the master's
anchor; scrapes and marks have wall times of the master's machine. Directories of killed runs are read as far as possible; `notes`
lists missing data.
"""

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from inferload import document_shapes, json_text, rundir
from inferload.errors import UsageError
from inferload.measure.columns import turn_columns, values_by_turn
from inferload.measure.turn_columns import SCHEMA
from inferload.scrapes_file import read_scrapes
from inferload.server_metrics.series import ServerSeries, by_target
from inferload.turns_file import check_values, foreign_files

from . import vllm_log
from .vllm_log import VllmLog

NS_PER_S = 1_000_000_000

LONGEST_S = 31 * 86_400.0  # of a run: the timeline has a row for each second

INSTANTS = ("planned", "sent", "written", "first_event", "first", "first_visible", "last", "closed")
MEASURES = (
    "lag_ms",
    "connect_ms",
    "upload_ms",
    "ttft_ms",
    "first_event_ms",
    "ttft_planned_ms",
    "e2e_ms",
    "e2e_planned_ms",
)
UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase in seconds since the start of the run; `end_s` is None if the run ended before the phase."""

    phase: str
    start_s: float
    end_s: float | None


@dataclass(frozen=True, slots=True)
class Events:
    """Output events of all turns in time order: time, tokens (NaN: unknown), preceding gap.

    `gap_ms` is NaN for the first event of a turn and for events of unsuccessful turns. `turn`: row of the turn.
    """

    at_s: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.float64]
    gap_ms: npt.NDArray[np.float64]
    turn: npt.NDArray[np.int32]

    def between(self, start_s: float, end_s: float) -> "Events":
        """Return the events of the half-open window; views, not copies."""
        low, high = np.searchsorted(self.at_s, (start_s, end_s))
        return self.where(slice(low, high))

    def where(self, chosen: slice | npt.NDArray[np.bool_]) -> "Events":
        """Return the events of a slice or mask."""
        return Events(self.at_s[chosen], self.tokens[chosen], self.gap_ms[chosen], self.turn[chosen])


@dataclass(frozen=True, slots=True)
class RunFrames:
    """Frames of one run. `turns`: one row per turn with INSTANTS as `<name>_s` and MEASURES; `users`: t_s, users."""

    path: Path
    manifest: dict[str, Any]
    summary: dict[str, Any] | None
    start_wall_ns: int
    phases: tuple[PhaseSpan, ...]
    turns: pd.DataFrame
    events: Events
    servers: Mapping[str, ServerSeries]
    users: pd.DataFrame
    marks: list[dict[str, Any]]
    notes: tuple[str, ...]
    log: VllmLog | None = None

    def since_start_s(self, wall_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Convert wall times of the master's machine to seconds since the start of the run."""
        return (wall_ns - self.start_wall_ns) / NS_PER_S

    @property
    def end_s(self) -> float:
        """Time of the last known phase end, scrape or turn."""
        ends = [span.end_s for span in self.phases if span.end_s is not None]
        ends += [float(server.wall_ns[-1] - self.start_wall_ns) / NS_PER_S for server in self.servers.values()]
        if len(self.turns):
            ends.append(float(self.turns["closed_s"].max()))
        elif len(self.users):
            ends.append(float(self.users["t_s"].max()) + 1.0)
        return max(ends, default=0.0)

    @property
    def turns_until_s(self) -> float | None:
        """Time up to which the turns of all workers were written in an incomplete run; None if complete."""
        if self.summary is not None or not len(self.turns):
            return None
        return float(self.turns.groupby("worker")["closed_s"].max().min())


def load(run_dir: Path, server_log: Path | None = None) -> RunFrames:
    """Read a run directory; UsageError if it is none. `server_log`: vLLM's log."""
    if not run_dir.is_dir():
        raise UsageError(f"run directory {run_dir}: not found; name one that a run wrote")
    notes: list[str] = []
    manifest = _document(run_dir / rundir.MANIFEST, notes) or {}
    summary = _document(run_dir / rundir.SUMMARY, notes)
    tables = _turn_tables(run_dir, manifest.get("id"), notes)
    marks = _marks(run_dir / rundir.MARKS, notes)
    servers = _servers(run_dir, notes)
    start_wall_ns = _start(manifest, marks, tables, servers)
    if start_wall_ns is None:
        raise UsageError(f"run directory {run_dir}: contains no data of a run; name one that a run wrote")
    if not servers:
        notes.append("no server metrics were scraped")
    workers = _distinct([_on_run_clock(table, manifest, start_wall_ns, notes) for table in tables])
    del tables
    run = RunFrames(
        path=run_dir,
        manifest=manifest,
        summary=summary,
        start_wall_ns=start_wall_ns,
        phases=_phases(manifest, start_wall_ns),
        turns=_turns(workers),
        events=_events(workers),
        servers=servers,
        users=_users(run_dir / rundir.LOCUST_HISTORY, start_wall_ns, notes),
        marks=[mark | {"t_s": (mark["wall_ns"] - start_wall_ns) / NS_PER_S} for mark in marks],
        notes=tuple(dict.fromkeys(notes)),
    )
    if run.end_s > LONGEST_S:
        raise UsageError(
            f"run directory {run_dir}: ends {run.end_s:.3g} s after its start; is a time in its files wrong?"
        )
    return run if server_log is None else replace(run, log=vllm_log.read(server_log, start_wall_ns, run.end_s))


def empty_turns() -> tuple[pd.DataFrame, Events]:
    """Return the frames of a run without turn records."""
    empty = np.array([], dtype=np.float64)
    return _turns([]), Events(empty, empty, empty, np.array([], dtype=np.int32))


def _document(path: Path, notes: list[str]) -> dict[str, Any] | None:
    if not _readable(path, notes):
        notes.append(f"{path.name} is missing: the run ended before it was written")
        return None
    try:
        return _shaped(path.name, rundir.read_object(path), notes)
    except UsageError:
        notes.append(f"{path.name} cannot be read: the run ended while it was written")
        return None


def _shaped(name: str, document: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Remove parts with a value of unexpected type, with a note each."""
    problems = document_shapes.faults(name, document)
    notes += [f"{name}: {key} is left out ({problem})" for key, problem in problems.items()]
    return {key: value for key, value in document.items() if key not in problems}


def _readable(path: Path, notes: list[str]) -> bool:
    """Return True for a regular file; add a note for a link, pipe or device."""
    if rundir.is_plain(path):
        return True
    if path.is_symlink() or path.exists():
        notes.append(f"{path.name} is not a regular file and is not read")
    return False


def _marks(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Complete marks; the last line of a killed run may be truncated."""
    marks = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if _readable(path, notes) else ():
        try:
            mark = json_text.parse(line)
            msgspec.convert(mark, document_shapes.Mark)
        except ValueError:
            continue
        marks.append(mark)
    return marks


def _servers(run_dir: Path, notes: list[str]) -> dict[str, ServerSeries]:
    """All series of all servers except histogram buckets, which are not used here."""
    unreadable: list[str] = []
    _note_irregular(run_dir / rundir.SERVER_METRICS, notes)
    try:
        servers = by_target(read_scrapes(run_dir, without=_NOT_READ, unreadable=unreadable))
    except ValueError:  # labels that are no JSON object
        notes.append(f"{rundir.SERVER_METRICS} has unreadable labels and is left out")
        servers = {}
    notes += [f"{rundir.SERVER_METRICS}/{name} cannot be read and is left out" for name in unreadable]
    return servers


def _note_irregular(folder: Path, notes: list[str]) -> None:
    """Add notes on Parquet file names that are links, pipes or devices."""
    odd = sorted(path.name for path in folder.glob("*.parquet") if not rundir.is_plain(path))
    notes += [f"{folder.name}/{name} is not a regular file and is left out" for name in odd]


def _as_turns(table: pa.Table) -> pa.Table:
    """Cast a table to the types of a turn file; ValueError if its columns or clock anchors do not fit."""
    stamps = [_stamp(table, b"anchor_wall_ns"), _stamp(table, b"anchor_mono_ns")]
    if any(abs(stamp) >= 1 << 63 for stamp in stamps):
        raise ValueError(f"anchors {stamps} are out of range")
    (table.schema.metadata or {}).get(b"worker", b"").decode()
    for index, field in enumerate(table.schema):
        expected = SCHEMA.field(field.name).type if field.name in SCHEMA.names else field.type
        if field.type != expected:
            table = table.set_column(index, field.name, table[field.name].cast(expected))
    check_values(table)
    return table


def _turn_tables(run_dir: Path, run_id: object, notes: list[str]) -> list[pa.Table]:
    """One table per file with its metadata; incomplete files and files of other runs are left out with a note."""
    tables = []
    _note_irregular(run_dir / rundir.TURNS, notes)
    paths = rundir.plain_files(run_dir / rundir.TURNS, "*.parquet")
    foreign = foreign_files(paths, run_id if isinstance(run_id, str) else None)
    for path in paths:
        if path in foreign:
            notes.append(f"{rundir.TURNS}/{path.name} {foreign[path]}, and is left out")
            continue
        try:
            table = _as_turns(pq.read_table(path))
        except (pa.ArrowException, OSError, ValueError, LookupError):
            notes.append(f"{rundir.TURNS}/{path.name} cannot be read and is left out")
            continue
        missing = [name for name in _NEEDED if name not in table.column_names]
        if missing:
            notes.append(
                f"{rundir.TURNS}/{path.name} lacks {', '.join(missing)} and is left out: another version wrote it"
            )
        else:
            tables.append(table)
    if not tables:
        notes.append("no turn records are in the run directory")
    return tables


def _start(
    manifest: Mapping[str, Any],
    marks: list[dict[str, Any]],
    tables: Iterable[pa.Table],
    servers: Mapping[str, ServerSeries],
) -> int | None:
    """Wall time of the master's anchor; without a manifest the earliest known time."""
    anchor = manifest.get("anchor") or {}
    if anchor:
        return int(anchor["wall_ns"])
    known = [int(mark["wall_ns"]) for mark in marks]
    known += [int(server.wall_ns[0]) for server in servers.values()]
    known += [_stamp(table, b"anchor_wall_ns") for table in tables]
    return min(known, default=None)


def _stamp(table: pa.Table, key: bytes) -> int:
    return int((table.schema.metadata or {}).get(key, b"0"))


@dataclass(frozen=True, slots=True)
class _WorkerTurns:
    """Turns of a worker, and the shift of its times to nanoseconds since the start of the run."""

    table: pa.Table
    shift_ns: int


def _on_run_clock(table: pa.Table, manifest: Mapping[str, Any], start_wall_ns: int, notes: list[str]) -> _WorkerTurns:
    worker = (table.schema.metadata or {}).get(b"worker", b"").decode()
    anchor = manifest.get("anchor") or {}
    entries = [entry for entry in manifest.get("workers") or () if isinstance(entry, Mapping)]
    offsets = {entry.get("name"): entry.get("clock_offset_ns") for entry in entries}
    offset_ns = offsets.get(worker)
    if not all(isinstance(known, int) for known in (offset_ns, anchor.get("mono_ns"), anchor.get("wall_ns"))):
        notes.append(f"the clock offset of worker {worker or 'of unknown name'} is not known: its wall clock was used")
        return _WorkerTurns(table, _stamp(table, b"anchor_wall_ns") - start_wall_ns)
    on_master_ns = _stamp(table, b"anchor_mono_ns") - int(offset_ns or 0)
    return _WorkerTurns(table, on_master_ns - int(anchor["mono_ns"]) + int(anchor["wall_ns"]) - start_wall_ns)


_LISTS = ("event_ns", "event_tokens")
_NEEDED = (
    *(f"{name}_ns" for name in INSTANTS),
    *_LISTS,
    *("turn_id", "session_id", "turn_index", "worker", "class", "phase", "failure", "finish_reason", "output_tokens"),
)
_NOT_READ = ("_bucket", "_created")


def _turns(workers: list[_WorkerTurns]) -> pd.DataFrame:
    frames = [_turn_frame(worker) for worker in workers]
    if frames:
        return pd.concat(frames, ignore_index=True)
    columns = [*(f"{name}_s" for name in INSTANTS), *MEASURES]
    return pd.DataFrame({name: pd.Series(dtype=float) for name in columns} | {"failure": pd.Series(dtype=object)})


def _turn_frame(worker: _WorkerTurns) -> pd.DataFrame:
    table = worker.table
    frame: pd.DataFrame = table.drop_columns([name for name in _LISTS if name in table.column_names]).to_pandas()
    for name in INSTANTS:
        frame[f"{name}_s"] = (frame.pop(f"{name}_ns").astype(float) + worker.shift_ns) / NS_PER_S
    frame["ok"] = frame["failure"].isna()
    return frame.assign(**turn_columns(table, MEASURES))


def _distinct(workers: list[_WorkerTurns]) -> list[_WorkerTurns]:
    """Remove duplicate turns: a crash between the merge of a worker's parts and their removal leaves turns in two files."""
    keys_so_far: set[tuple[str, str]] = set()
    distinct = []
    for worker in workers:
        keys = zip(worker.table["worker"].to_pylist(), worker.table["turn_id"].to_pylist(), strict=True)
        rows = []
        for row, key in enumerate(keys):
            if key not in keys_so_far:
                keys_so_far.add(key)
                rows.append(row)
        whole = len(rows) == len(worker.table)
        distinct.append(
            worker if whole else _WorkerTurns(worker.table.take(pa.array(rows, pa.int64())), worker.shift_ns)
        )
    return distinct


def _events(workers: list[_WorkerTurns]) -> Events:
    """Events of all files in time order, copied into preallocated arrays: 10 million events take 80 MB per column."""
    counts = [_event_count(worker.table) for worker in workers]
    total = sum(counts)
    at_s, tokens, gap_ms = (np.empty(total, dtype=np.float64) for _ in range(3))
    turn = np.empty(total, dtype=np.int32)
    start, first_row = 0, 0
    for worker, count in zip(workers, counts, strict=True):
        part = slice(start, start + count)
        at_s[part], tokens[part], gap_ms[part], rows = _file_events(worker)
        turn[part] = rows + first_row
        start, first_row = start + count, first_row + len(worker.table)
    order = np.argsort(at_s, kind="stable")
    return Events(at_s[order], tokens[order], gap_ms[order], turn[order])


def _event_count(table: pa.Table) -> int:
    return int(pc.sum(pc.list_value_length(table["event_ns"])).as_py() or 0)


def _file_events(
    worker: _WorkerTurns,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Times in s, tokens, gaps in ms and turns (rows of the file) of the events of one file."""
    table = worker.table
    lists = table["event_ns"].combine_chunks()
    counts = np.asarray(lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    turn = np.repeat(np.arange(len(counts)), counts)
    offset_ns = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    sent_ns = table["sent_ns"].fill_null(0).to_numpy()
    gap_ms = np.full(len(turn), np.nan)
    gap_ms[np.diff(turn, prepend=-1) == 0], _ = values_by_turn(table, "itl_ms")
    gap_ms[~table["failure"].is_null().to_numpy()[turn]] = np.nan
    at_s = (sent_ns[turn] + offset_ns + worker.shift_ns) / NS_PER_S
    return at_s, _event_tokens(table, counts, turn), gap_ms, turn


def _event_tokens(
    table: pa.Table, counts: npt.NDArray[np.int64], turn: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Tokens of each event: as reported, else the tokens of the turn in equal whole shares, else NaN."""
    output = table["output_tokens"].cast(pa.float64()).to_numpy()[turn]
    index, of = np.arange(len(turn)) - np.repeat(np.cumsum(counts) - counts, counts), counts[turn]
    tokens: npt.NDArray[np.float64] = np.floor(output * (index + 1) / of) - np.floor(output * index / of)
    lists = table["event_tokens"].combine_chunks()
    lengths = np.asarray(lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    reported = (lengths == counts) & lists.is_valid().to_numpy(zero_copy_only=False)
    selected = lists if reported.all() else lists.filter(pa.array(reported))
    flat = selected.flatten().cast(pa.float64()).to_numpy(zero_copy_only=False)
    tokens[reported[turn]] = flat
    return tokens


def _phases(manifest: Mapping[str, Any], start_wall_ns: int) -> tuple[PhaseSpan, ...]:
    def since_s(wall_ns: Any) -> float | None:
        return (wall_ns - start_wall_ns) / NS_PER_S if isinstance(wall_ns, int) else None

    spans = []
    for entry in manifest.get("phases") or ():
        if not isinstance(entry, Mapping):
            continue
        start_s = since_s(entry.get("start_wall_ns"))
        if start_s is not None and entry.get("phase"):
            spans.append(PhaseSpan(str(entry["phase"]), start_s, since_s(entry.get("end_wall_ns"))))
    return tuple(spans)


def _users(path: Path, start_wall_ns: int, notes: list[str]) -> pd.DataFrame:
    """Locust's user count by second; a truncated last line is ignored."""
    empty = pd.DataFrame({"t_s": pd.Series(dtype=float), "users": pd.Series(dtype=float)})
    if not _readable(path, notes):
        return empty
    text = path.read_text(encoding="utf-8", errors="replace")
    whole = text[: text.rfind("\n") + 1]  # without a truncated last line
    try:
        history = pd.read_csv(io.StringIO(whole), usecols=_HISTORY.__contains__, on_bad_lines="skip")
    except ValueError:  # no columns
        return empty
    if not {"Timestamp", "User Count", "Name"} <= set(history):
        return empty
    others = _others(history, start_wall_ns)
    history = history[history["Name"] == "Aggregated"]
    stamps, counts = (pd.to_numeric(history[name], errors="coerce") for name in ("Timestamp", "User Count"))
    users = pd.DataFrame({"t_s": stamps - start_wall_ns / NS_PER_S, "users": counts}).astype(float)
    users = users.dropna().reset_index(drop=True)
    return users if others is None else users.merge(others, on="t_s", how="left")


_HISTORY = ["Timestamp", "User Count", "Type", "Name", "Total Request Count", "Total Failure Count"]
OTHERS = {"other_rps": "Total Request Count", "other_failures": "Total Failure Count"}


def _others(history: pd.DataFrame, start_wall_ns: int) -> pd.DataFrame | None:
    """Running totals of requests other than turns; None without any."""
    if set(_HISTORY) - set(history):
        return None
    rows = history[(history["Name"] != "Aggregated") & ~history["Type"].isin(["TURN", "TTFT", "ITL"])]
    rows = rows.drop_duplicates(["Timestamp", "Type", "Name"], keep="last")  # two snapshots in one second
    totals = rows[["Timestamp", *OTHERS.values()]].apply(pd.to_numeric, errors="coerce").dropna()
    totals = totals.groupby("Timestamp").sum()
    if totals.empty:
        return None
    frame = pd.DataFrame({"t_s": totals.index - start_wall_ns / NS_PER_S})
    return frame.assign(**{name: totals[column].to_numpy() for name, column in OTHERS.items()})
