"""`turns/` of a run directory: one row per turn, in parts that a crash cannot take back.

Instants are nanoseconds since the worker's clock anchor, which stands in the file's metadata (`anchor_wall_ns`,
`anchor_mono_ns`), beside the `worker` and the `run_id`. A joined file says there too which parts it holds, so that a crash
between the join and the removal of the parts counts nothing twice.
"""

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from inferload.errors import UsageError
from inferload.measure.arrow import pa, pc
from inferload.measure.clock import Anchor
from inferload.measure.columns import exact_values
from inferload.measure.record import TurnRecord
from inferload.measure.turn_columns import SCHEMA, TurnColumns, to_table
from inferload.rundir import MANIFEST, TURNS, is_plain, plain_files, read_json, whole_file

__all__ = [
    "SCHEMA",
    "Stamp",
    "TurnColumns",
    "anchors",
    "check_part",
    "exact_values",
    "join_parts",
    "joined_path",
    "live",
    "part_path",
    "parts_of",
    "read_turns",
    "remove_worker",
    "rows",
    "stamp",
    "strangers",
    "to_table",
    "warm_up",
    "write_part",
]

_JOINED = "all"
_HELD = b"inferload_parts"  # metadata key of a joined file: JSON list of the parts' file names
_GROUP_ROWS = 20_000  # parts are gathered to about so many rows when they are joined


def write_part(
    folder: Path, worker: str, part_number: int, columns: TurnColumns, anchor: Anchor, *, run_id: str = ""
) -> Path:
    """Write one part, whole or not at all. May run in a native thread; the columns must not grow meanwhile."""
    path = part_path(folder, worker, part_number)
    with whole_file(path) as temporary:  # the joined file is compressed better
        pq.write_table(to_table(columns, anchor, worker, run_id), temporary, compression="lz4")
    return path


def part_path(folder: Path, worker: str, part_number: int) -> Path:
    """Path of a worker's part."""
    return folder / f"{_safe(worker)}-{part_number:05}.parquet"


def warm_up() -> None:
    """Write one turn to nowhere: the first table of a process holds Python's lock for some 30 ms, better before the load.

    Arrow's memory comes from the C library from here on: its own pools keep some 30 MB more of what a part took.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    columns = TurnColumns()
    columns.append(TurnRecord("", "", 0, "", "", "measure", 0, 0, event_ns=array("q", [0])))
    pq.write_table(to_table(columns, Anchor(0, 0), ""), pa.BufferOutputStream(), compression="lz4")


@dataclass(frozen=True, slots=True)
class Stamp:
    """Whose turns a file holds. `run_id` is empty in files of before they said so."""

    run_id: str
    worker: str


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the errors of a file that is not whole, or not ours, into a UsageError that names it."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        why = str(error).partition("\n")[0]
        raise UsageError(f"{path}: cannot be read as turns ({why}); remove it to go on without them") from error


def stamp(path: Path) -> Stamp | None:
    """Of one file; None: a Parquet file that holds no turns of ours."""
    metadata = _metadata(path)
    worker = metadata.get(b"worker")
    with _reading(path):
        return None if worker is None else Stamp(metadata.get(b"run_id", b"").decode(), worker.decode())


def check_part(path: Path, wanted: Stamp) -> None:
    """UsageError unless a file can be read whole and holds turns of this run and worker only."""
    with _reading(path):
        table = pq.read_table(path)
        metadata = table.schema.metadata or {}
        int(metadata[b"anchor_wall_ns"]), int(metadata[b"anchor_mono_ns"])
        workers = set(pc.unique(table["worker"]).to_pylist())
    if not table.schema.equals(SCHEMA) or stamp(path) != wanted or workers - {wanted.worker} or _HELD in metadata:
        raise UsageError(f"{path}: not turns of worker {wanted.worker} in run {wanted.run_id}")


def rows(path: Path) -> int:
    """How many turns a file holds."""
    with _reading(path):
        return int(pq.read_metadata(path).num_rows)


def rows_of(folder: Path, worker: str) -> int:
    """How many turns of a worker are on disk; a file that cannot be read holds none."""
    count, counted = 0, set(live(folder))
    for path in [joined_path(folder, worker), *parts_of(folder, worker)]:
        with suppress(UsageError):
            count += rows(path) if path in counted else 0
    return count


def joined_path(folder: Path, worker: str) -> Path:
    """Where a worker's joined file stands."""
    return folder / f"{_safe(worker)}-{_JOINED}.parquet"


def parts_of(folder: Path, worker: str) -> list[Path]:
    """A worker's parts: regular files whose names are the worker's and a number."""
    name = re.compile(rf"{re.escape(_safe(worker))}-\d+\.parquet")
    return [path for path in plain_files(folder, "*.parquet") if name.fullmatch(path.name)]


def join_parts(folder: Path, worker: str) -> None:
    """Make one file of a worker's parts; a part is removed only when the joined file stands. May run in a native thread."""
    joined = joined_path(folder, worker)
    parts = sorted(set(parts_of(folder, worker)) & set(live(folder)))
    if not parts:
        return
    sources = [joined, *parts] if is_plain(joined) else parts
    held = sorted(_held(joined) | {path.name for path in parts})
    metadata = {**(pq.read_schema(parts[0]).metadata or {}), _HELD: json.dumps(held).encode()}
    schema = SCHEMA.with_metadata(metadata)
    with whole_file(joined) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for table in _gathered(sources):
            writer.write_table(table.replace_schema_metadata(metadata))
    for part in parts_of(folder, worker):
        if part.name in held:
            part.unlink(missing_ok=True)


def remove_worker(folder: Path, worker: str) -> None:
    """Remove a worker's files. May run in a native thread."""
    for path in [joined_path(folder, worker), *parts_of(folder, worker)]:
        path.unlink(missing_ok=True)


def read_turns(run_dir: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """All turns of a run that are at hand; no rows where there are none. `columns`: the ones to read, all when None.

    UsageError names a file that cannot be read, or is not of this run: its rows would be counted as the run's.
    """
    wanted = SCHEMA if columns is None else pa.schema([SCHEMA.field(name) for name in columns])
    tables = [_read(path, wanted.names).replace_schema_metadata(None) for path in _own(run_dir)]
    return pa.concat_tables(tables) if tables else wanted.empty_table()


def anchors(run_dir: Path) -> dict[str, Anchor]:
    """Each worker's clock anchor."""
    found = {}
    for path in _own(run_dir):
        metadata = _metadata(path)
        with _reading(path):
            worker = metadata[b"worker"].decode()
            found[worker] = Anchor(int(metadata[b"anchor_wall_ns"]), int(metadata[b"anchor_mono_ns"]))
    return found


def strangers(paths: Iterable[Path], run_id: str | None) -> dict[Path, str]:
    """Files that are not of a run, and why. `run_id`: the run's; None: not known, then it is that of most of the files.

    A file that names no run is of before they did, and the folder's. A file that cannot be read is not judged here.
    """
    stamps: dict[Path, Stamp | None] = {}
    for path in paths:
        with suppress(UsageError):
            stamps[path] = stamp(path)
    named = Counter(one.run_id for one in stamps.values() if one is not None and one.run_id)
    wanted = run_id or max(named, key=lambda name: named[name], default="")
    found = {}
    for path, one in stamps.items():
        if one is None:
            found[path] = "holds no turns of a run"
        elif one.run_id and one.run_id != wanted:
            found[path] = f"holds turns of another run, {one.run_id}"
    return found


def _own(run_dir: Path) -> list[Path]:
    """The files that count; UsageError where one is not of this run."""
    paths = live(run_dir / TURNS)
    try:
        run_id = read_json(run_dir / MANIFEST).get("id")
    except UsageError:
        run_id = None  # of a run that was cut off
    for path, why in strangers(paths, run_id if isinstance(run_id, str) else None).items():
        raise UsageError(f"{path}: {why}; take it out of the folder")
    return paths


def _gathered(paths: Iterable[Path]) -> Iterable[pa.Table]:
    """The files' rows in tables of a good size, a few of them in memory at a time."""
    waiting: list[pa.Table] = []
    for path in paths:
        with pq.ParquetFile(path) as source:
            for group in range(source.num_row_groups):
                waiting.append(source.read_row_group(group).replace_schema_metadata(None))
                if sum(table.num_rows for table in waiting) >= _GROUP_ROWS:
                    yield pa.concat_tables(waiting).combine_chunks()
                    waiting = []
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _read(path: Path, columns: list[str]) -> pa.Table:
    with _reading(path), pq.ParquetFile(path) as source:
        table = source.read(columns=columns)
        wanted = pa.schema([SCHEMA.field(name) for name in columns])
        return table if table.schema.equals(wanted) else table.select(columns).cast(wanted)


def _safe(worker: str) -> str:
    """A worker's name as part of a file's."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", worker)


def _metadata(path: Path) -> dict[bytes, bytes]:
    with _reading(path):
        return dict(pq.read_schema(path).metadata or {})


def _held(joined: Path) -> set[str]:
    """Names of the parts that a joined file holds; empty where there is no such file."""
    if not is_plain(joined):
        return set()
    held = _metadata(joined).get(_HELD, b"[]")
    with _reading(joined):
        names = json.loads(held)
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def live(folder: Path) -> list[Path]:
    """The files that count: a part that is in a joined file already does not."""
    held: set[str] = set()
    for joined in plain_files(folder, f"*-{_JOINED}.parquet"):
        held |= _held(joined)
    return [path for path in plain_files(folder, "*.parquet") if path.name not in held]
