"""A run directory as tidy frames on one clock: seconds since the run's start, which is the master's clock anchor.

Workers' instants are moved to the master's monotonic clock by the offsets that the manifest holds, and from there to the
wall by the master's anchor; scrapes and marks carry wall time of the master's machine already. A directory that a killed
run left behind is read as far as it goes, and `notes` says what is missing.
"""

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from inferload import rundir
from inferload.errors import UsageError
from inferload.measure.columns import turn_columns, values_by_turn
from inferload.scrapes_file import read_scrapes
from inferload.server_metrics.series import ServerSeries, by_target
from inferload.turns_file import SCHEMA, foreign_files

from . import vllm_log
from .vllm_log import ServerLog

NS_PER_S = 1_000_000_000

# Of which kind a manifest's and a summary's parts are.
_LISTED = ("phases", "workers", "steps", "servers")
_NAMED = (
    "anchor",
    "scenario",
    "versions",
    "run",
    "verdict",
    "turns",
    "sessions",
    "stalls",
    "rates",
    "latency",
    "client",
)
_NAMED_TOO = ("cache", "tasks", "by_class", "by_target", "by_model", "tokens_per_event")
_SHAPES: dict[str, type] = dict.fromkeys(_LISTED, list) | dict.fromkeys((*_NAMED, *_NAMED_TOO), dict)

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
    """One phase in seconds since the run's start; `end_s` is None where the run ended before the phase did."""

    phase: str
    start_s: float
    end_s: float | None


@dataclass(frozen=True, slots=True)
class Events:
    """Every output event of every turn, in the order of time: when, how many tokens (NaN: not known), the gap before it.

    `gap_ms` is NaN for a turn's first event and for every event of a turn that did not end well. `turn`: the turn's row.
    """

    at_s: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.float64]
    gap_ms: npt.NDArray[np.float64]
    turn: npt.NDArray[np.int32]

    def between(self, start_s: float, end_s: float) -> "Events":
        """Those of the half-open window; views, not copies."""
        low, high = np.searchsorted(self.at_s, (start_s, end_s))
        return self.where(slice(low, high))

    def where(self, chosen: slice | npt.NDArray[np.bool_]) -> "Events":
        """Those that are chosen, in their order."""
        return Events(self.at_s[chosen], self.tokens[chosen], self.gap_ms[chosen], self.turn[chosen])


@dataclass(frozen=True, slots=True)
class RunFrames:
    """The frames of one run. `turns`: one row per turn, INSTANTS as `<name>_s`, and MEASURES; `users`: t_s, users."""

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
    log: ServerLog | None = None

    def since_start_s(self, wall_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Wall instants of the master's machine as seconds since the run's start."""
        return (wall_ns - self.start_wall_ns) / NS_PER_S

    @property
    def end_s(self) -> float:
        """The last instant that anything is known of."""
        ends = [span.end_s for span in self.phases if span.end_s is not None]
        ends += [float(server.wall_ns[-1] - self.start_wall_ns) / NS_PER_S for server in self.servers.values()]
        if len(self.turns):
            ends.append(float(self.turns["closed_s"].max()))
        elif len(self.users):
            ends.append(float(self.users["t_s"].max()) + 1.0)
        return max(ends, default=0.0)

    @property
    def turns_until_s(self) -> float | None:
        """Until when each worker's turns were written, of a run that ended before its summary; None where all are there."""
        if self.summary is not None or not len(self.turns):
            return None
        return float(self.turns.groupby("worker")["closed_s"].max().min())


def load(run_dir: Path, server_log: Path | None = None) -> RunFrames:
    """Read a run directory; UsageError where it is none. `server_log`: vLLM's log, where it is at hand."""
    if not run_dir.is_dir():
        raise UsageError(f"run directory {run_dir}: not there; name one that a run wrote")
    notes: list[str] = []
    manifest = _document(run_dir / rundir.MANIFEST, notes) or {}
    summary = _document(run_dir / rundir.SUMMARY, notes)
    tables = _turn_tables(run_dir, manifest.get("id"), notes)
    marks = _marks(run_dir / rundir.MARKS, notes)
    servers = _servers(run_dir, notes)
    start_wall_ns = _start(manifest, marks, tables, servers)
    if start_wall_ns is None:
        raise UsageError(f"run directory {run_dir}: holds nothing of a run; name one that a run wrote")
    if not servers:
        notes.append("no server metrics were scraped")
    placed = _fresh([_placed(table, manifest, start_wall_ns, notes) for table in tables])
    del tables
    run = RunFrames(
        path=run_dir,
        manifest=manifest,
        summary=summary,
        start_wall_ns=start_wall_ns,
        phases=_phases(manifest, start_wall_ns),
        turns=_turns(placed),
        events=_events(placed),
        servers=servers,
        users=_users(run_dir / rundir.LOCUST_HISTORY, start_wall_ns, notes),
        marks=[mark | {"t_s": (mark["wall_ns"] - start_wall_ns) / NS_PER_S} for mark in marks],
        notes=tuple(dict.fromkeys(notes)),
    )
    return run if server_log is None else replace(run, log=vllm_log.read(server_log, start_wall_ns, run.end_s))


def nothing_of_turns() -> tuple[pd.DataFrame, Events]:
    """Frames of a run of which no turn is at hand."""
    nothing = np.array([], dtype=np.float64)
    return _turns([]), Events(nothing, nothing, nothing, np.array([], dtype=np.int32))


def _document(path: Path, notes: list[str]) -> dict[str, Any] | None:
    if not _at_hand(path, notes):
        notes.append(f"{path.name} is missing: the run ended before it was written")
        return None
    try:
        return _shaped(path.name, rundir.read_json(path), notes)
    except UsageError:
        notes.append(f"{path.name} cannot be read: the run ended while it was written")
        return None


def _shaped(name: str, document: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """The document without those of its parts that are not of the kind that a run writes, which are said by their keys."""
    kept = {}
    for key, value in document.items():
        wanted = _SHAPES.get(key)
        if wanted is None or value is None or isinstance(value, wanted):
            kept[key] = value
        else:
            notes.append(f"{name}: {key} is no {'list' if wanted is list else 'object'} and is left out")
    return kept


def _at_hand(path: Path, notes: list[str]) -> bool:
    """Whether a file of the run can be read; a link, a pipe or a device in its place is noted."""
    if rundir.is_plain(path):
        return True
    if path.is_symlink() or path.exists():
        notes.append(f"{path.name} is not a regular file and is not read")
    return False


def _marks(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """The marks that are whole; a kill may have cut the last line."""
    marks = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if _at_hand(path, notes) else ():
        try:
            mark = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(mark, dict) and _is_instant(mark.get("wall_ns")):
            marks.append(mark)
    return marks


def _is_instant(value: object) -> bool:
    """Whether a value can be nanoseconds since the epoch: a 64-bit integer."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _servers(run_dir: Path, notes: list[str]) -> dict[str, ServerSeries]:
    """Every series of every server but the buckets of histograms, whose sums and counts are enough here."""
    unreadable: list[str] = []
    _note_irregular(run_dir / rundir.SERVER_METRICS, notes)
    try:
        servers = by_target(read_scrapes(run_dir, without=_NOT_READ, unreadable=unreadable))
    except (ValueError, TypeError, AttributeError):  # labels that are no JSON object
        notes.append(f"{rundir.SERVER_METRICS} holds labels that cannot be read and is left out")
        servers = {}
    notes += [f"{rundir.SERVER_METRICS}/{name} cannot be read and is left out" for name in unreadable]
    return servers


def _note_irregular(folder: Path, notes: list[str]) -> None:
    """Note what has the name of a Parquet file and is a link, a pipe or a device: it is not read."""
    odd = sorted(path.name for path in folder.glob("*.parquet") if not rundir.is_plain(path))
    notes += [f"{folder.name}/{name} is not a regular file and is left out" for name in odd]


def _as_turns(table: pa.Table) -> pa.Table:
    """The table with the types of a turn file; ValueError where its columns or its clock's stamps cannot have them."""
    stamps = [_stamp(table, b"anchor_wall_ns"), _stamp(table, b"anchor_mono_ns")]
    if any(abs(stamp) >= 1 << 63 for stamp in stamps):
        raise ValueError(f"anchors {stamps} are out of range")
    (table.schema.metadata or {}).get(b"worker", b"").decode()
    for place, field in enumerate(table.schema):
        wanted = SCHEMA.field(field.name).type if field.name in SCHEMA.names else field.type
        if field.type != wanted:
            table = table.set_column(place, field.name, table[field.name].cast(wanted))
    return table


def _turn_tables(run_dir: Path, run_id: object, notes: list[str]) -> list[pa.Table]:
    """One table per file, its metadata with it; a file that is not whole, or not of this run, is left out and said."""
    tables = []
    _note_irregular(run_dir / rundir.TURNS, notes)
    paths = rundir.plain_files(run_dir / rundir.TURNS, "*.parquet")
    strange = foreign_files(paths, run_id if isinstance(run_id, str) else None)
    for path in paths:
        if path in strange:
            notes.append(f"{rundir.TURNS}/{path.name} {strange[path]}, and is left out")
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
    """The master's anchor; of a run without a manifest the earliest thing that is known of it."""
    anchor = manifest.get("anchor") or {}
    if isinstance(anchor.get("wall_ns"), int):
        return int(anchor["wall_ns"])
    known = [int(mark["wall_ns"]) for mark in marks]
    known += [int(server.wall_ns[0]) for server in servers.values()]
    known += [_stamp(table, b"anchor_wall_ns") for table in tables]
    return min(known, default=None)


def _stamp(table: pa.Table, key: bytes) -> int:
    return int((table.schema.metadata or {}).get(key, b"0"))


@dataclass(frozen=True, slots=True)
class _Placed:
    """A worker's turns, and what to add to its instants to have nanoseconds since the run's start."""

    table: pa.Table
    shift_ns: int


def _placed(table: pa.Table, manifest: Mapping[str, Any], start_wall_ns: int, notes: list[str]) -> _Placed:
    worker = (table.schema.metadata or {}).get(b"worker", b"").decode()
    anchor = manifest.get("anchor") or {}
    entries = [entry for entry in manifest.get("workers") or () if isinstance(entry, Mapping)]
    offsets = {entry.get("name"): entry.get("clock_offset_ns") for entry in entries}
    offset_ns = offsets.get(worker)
    if not all(isinstance(known, int) for known in (offset_ns, anchor.get("mono_ns"), anchor.get("wall_ns"))):
        notes.append(
            f"the clock offset of worker {worker or 'of unknown name'} is not known: its own wall clock was used"
        )
        return _Placed(table, _stamp(table, b"anchor_wall_ns") - start_wall_ns)
    on_master_ns = _stamp(table, b"anchor_mono_ns") - int(offset_ns or 0)
    return _Placed(table, on_master_ns - int(anchor["mono_ns"]) + int(anchor["wall_ns"]) - start_wall_ns)


_LISTS = ("event_ns", "event_tokens")
_NEEDED = (
    *(f"{name}_ns" for name in INSTANTS),
    *_LISTS,
    *("turn_id", "session_id", "turn_index", "worker", "class", "phase", "failure", "finish_reason", "output_tokens"),
)
_NOT_READ = ("_bucket", "_created")


def _turns(placed: list[_Placed]) -> pd.DataFrame:
    frames = [_turn_frame(each) for each in placed]
    if frames:
        return pd.concat(frames, ignore_index=True)
    columns = [*(f"{name}_s" for name in INSTANTS), *MEASURES]
    return pd.DataFrame({name: pd.Series(dtype=float) for name in columns} | {"failure": pd.Series(dtype=object)})


def _turn_frame(placed: _Placed) -> pd.DataFrame:
    table = placed.table
    frame: pd.DataFrame = table.drop_columns([name for name in _LISTS if name in table.column_names]).to_pandas()
    for name in INSTANTS:
        frame[f"{name}_s"] = (frame.pop(f"{name}_ns").astype(float) + placed.shift_ns) / NS_PER_S
    frame["ok"] = frame["failure"].isna()
    return frame.assign(**turn_columns(table, MEASURES))


def _fresh(placed: list[_Placed]) -> list[_Placed]:
    """Each turn once: a crash between the join of a worker's parts and their removal leaves a turn in two files."""
    seen: set[tuple[str, str]] = set()
    fresh = []
    for each in placed:
        keys = zip(each.table["worker"].to_pylist(), each.table["turn_id"].to_pylist(), strict=True)
        rows = []
        for row, key in enumerate(keys):
            if key not in seen:
                seen.add(key)
                rows.append(row)
        whole = len(rows) == len(each.table)
        fresh.append(each if whole else _Placed(each.table.take(pa.array(rows, pa.int64())), each.shift_ns))
    return fresh


def _events(placed: list[_Placed]) -> Events:
    """All files' events by time. Each file's arrays go into the whole at once: 10 million events are 80 MB a column."""
    counts = [_event_count(each.table) for each in placed]
    total = sum(counts)
    at_s, tokens, gap_ms = (np.empty(total, dtype=np.float64) for _ in range(3))
    turn = np.empty(total, dtype=np.int32)
    start, first_row = 0, 0
    for each, count in zip(placed, counts, strict=True):
        part = slice(start, start + count)
        at_s[part], tokens[part], gap_ms[part], rows = _file_events(each)
        turn[part] = rows + first_row
        start, first_row = start + count, first_row + len(each.table)
    order = np.argsort(at_s, kind="stable")
    return Events(at_s[order], tokens[order], gap_ms[order], turn[order])


def _event_count(table: pa.Table) -> int:
    return int(pc.sum(pc.list_value_length(table["event_ns"])).as_py() or 0)


def _file_events(
    placed: _Placed,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Instants in s, tokens, gaps in ms and turns (rows of the file) of one file's events."""
    table = placed.table
    lists = table["event_ns"].combine_chunks()
    counts = np.asarray(lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    turn = np.repeat(np.arange(len(counts)), counts)
    offset_ns = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    sent_ns = table["sent_ns"].fill_null(0).to_numpy()
    gap_ms = np.full(len(turn), np.nan)
    gap_ms[np.diff(turn, prepend=-1) == 0], _ = values_by_turn(table, "itl_ms")
    gap_ms[~table["failure"].is_null().to_numpy()[turn]] = np.nan
    at_s = (sent_ns[turn] + offset_ns + placed.shift_ns) / NS_PER_S
    return at_s, _event_tokens(table, counts, turn), gap_ms, turn


def _event_tokens(
    table: pa.Table, counts: npt.NDArray[np.int64], turn: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Tokens of each event: as the server said, else the turn's tokens shared evenly in whole numbers, else NaN."""
    output = table["output_tokens"].cast(pa.float64()).to_numpy()[turn]
    place, of = np.arange(len(turn)) - np.repeat(np.cumsum(counts) - counts, counts), counts[turn]
    tokens: npt.NDArray[np.float64] = np.floor(output * (place + 1) / of) - np.floor(output * place / of)
    lists = table["event_tokens"].combine_chunks()
    lengths = np.asarray(lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    said = (lengths == counts) & lists.is_valid().to_numpy(zero_copy_only=False)
    given = lists if said.all() else lists.filter(pa.array(said))
    flat = given.flatten().cast(pa.float64()).to_numpy(zero_copy_only=False)
    tokens[said[turn]] = flat
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
    """Locust's user count by second; a file that a kill cut short is read up to the cut."""
    empty = pd.DataFrame({"t_s": pd.Series(dtype=float), "users": pd.Series(dtype=float)})
    if not _at_hand(path, notes):
        return empty
    text = path.read_text(encoding="utf-8", errors="replace")
    whole = text[: text.rfind("\n") + 1]  # of a line that was cut, the last number may be cut too
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
    """Locust's running totals of requests that are no turns; None where there were none."""
    if set(_HISTORY) - set(history):
        return None
    rows = history[(history["Name"] != "Aggregated") & ~history["Type"].isin(["TURN", "TTFT", "ITL"])]
    rows = rows.drop_duplicates(["Timestamp", "Type", "Name"], keep="last")  # two snapshots in one second
    totals = rows[["Timestamp", *OTHERS.values()]].apply(pd.to_numeric, errors="coerce").dropna()
    totals = totals.groupby("Timestamp").sum()
    if totals.empty:
        return None
    found = pd.DataFrame({"t_s": totals.index - start_wall_ns / NS_PER_S})
    return found.assign(**{name: totals[column].to_numpy() for name, column in OTHERS.items()})
