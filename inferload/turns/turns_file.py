"""Folder `turns/` of a run directory: one row per turn, in Parquet parts that survive a crash.

Times are nanoseconds since the worker's clock anchor. The metadata of a file holds the anchor (`anchor_wall_ns`,
`anchor_mono_ns`), `worker` and `run_id`. The metadata of a joined file also lists its parts, so that no row is counted twice
after a crash between the join and the removal of the parts.
"""

import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from inferload.base import json_text
from inferload.base.arrow import pa, pc
from inferload.base.clock import Anchor
from inferload.base.errors import UsageError
from inferload.base.rundir import MANIFEST, TURNS, is_plain, plain_files, read_object, whole_file
from inferload.turns.record import TurnRecord
from inferload.turns.turn_columns import SCHEMA, TurnColumns, to_table

_JOINED = "all"
_PARTS_KEY = b"inferload_parts"  # metadata key of a joined file: JSON list of the parts' file names
_GROUP_ROWS = 20_000  # approximate rows of a row group in a joined file


def write_part(
    folder: Path,
    worker: str,
    part_number: int,
    columns: TurnColumns,
    anchor: Anchor,
    *,
    run_id: str = "",
    on_write: Callable[[], None] = lambda: None,
) -> Path:
    """Write one part atomically, with one write if it is below 1 MB. `on_write`: as for `whole_file`.

    May run in a native thread; the columns must not grow meanwhile.
    """
    path = part_path(folder, worker, part_number)
    memory = pa.BufferOutputStream()  # for a file of Python, Arrow would take the GIL for each of its many writes
    # lz4 is fast; the joined file is compressed with zstd.
    pq.write_table(to_table(columns, anchor, worker, run_id), memory, compression="lz4")
    with whole_file(path, on_write) as file:
        file.write(memory.getvalue())
    return path


def part_path(folder: Path, worker: str, part_number: int) -> Path:
    """Return the path of a worker's part."""
    return folder / f"{_safe(worker)}-{part_number:05}.parquet"


def warm_up() -> None:
    """Write one turn to memory before the load: the first table of a process holds the GIL for about 30 ms.

    Also set Arrow's memory pool to that of the C library: Arrow's own pools keep about 30 MB more after a part.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    columns = TurnColumns()
    columns.append(TurnRecord("", "", 0, "", "", "measure", 0, 0, event_ns=array("q", [0])))
    pq.write_table(to_table(columns, Anchor(0, 0), ""), pa.BufferOutputStream(), compression="lz4")


@dataclass(frozen=True, slots=True)
class Origin:
    """Run and worker of a file."""

    run_id: str
    worker: str


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert the errors of an incomplete or foreign file into a UsageError that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        why = str(error).partition("\n")[0]
        raise UsageError(f"{path}: cannot be read as turns ({why}); remove it to go on without them") from error


def origin(path: Path) -> Origin | None:
    """Return run and worker of a file; None for a Parquet file that is not a turns file."""
    metadata = _metadata(path)
    worker, run_id = metadata.get(b"worker"), metadata.get(b"run_id")
    with reading(path):
        return None if worker is None or run_id is None else Origin(run_id.decode(), worker.decode())


def check_part(path: Path, expected: Origin) -> None:
    """Raise UsageError unless a file is readable and holds turns of this run and worker only."""
    with reading(path):
        table = pq.read_table(path)
        metadata = table.schema.metadata or {}
        int(metadata[b"anchor_wall_ns"]), int(metadata[b"anchor_mono_ns"])
        workers = set(pc.unique(table["worker"]).to_pylist())
    if (
        not table.schema.equals(SCHEMA)
        or origin(path) != expected
        or workers - {expected.worker}
        or _PARTS_KEY in metadata
    ):
        raise UsageError(f"{path}: not turns of worker {expected.worker} in run {expected.run_id}")


def rows(path: Path) -> int:
    """Return the number of turns in a file."""
    with reading(path):
        return int(pq.read_metadata(path).num_rows)


def rows_of(folder: Path, worker: str) -> int:
    """Return the number of a worker's turns on disk; an unreadable file counts as 0."""
    count, counted = 0, set(files_to_read(folder))
    for path in [joined_path(folder, worker), *parts_of(folder, worker)]:
        with suppress(UsageError):
            count += rows(path) if path in counted else 0
    return count


def joined_path(folder: Path, worker: str) -> Path:
    """Return the path of a worker's joined file."""
    return folder / f"{_safe(worker)}-{_JOINED}.parquet"


def parts_of(folder: Path, worker: str) -> list[Path]:
    """Return a worker's parts: regular files named after the worker and a number."""
    name = re.compile(rf"{re.escape(_safe(worker))}-\d+\.parquet")
    return [path for path in plain_files(folder, "*.parquet") if name.fullmatch(path.name)]


def join_parts(folder: Path, worker: str, on_write: Callable[[], None] = lambda: None) -> None:
    """Join a worker's parts into one file; remove the parts after that file is complete. May run in a native thread.

    `on_write`: called after each write and each removal.
    """
    joined = joined_path(folder, worker)
    parts = sorted(set(parts_of(folder, worker)) & set(files_to_read(folder)))
    if not parts:
        return
    sources = [joined, *parts] if is_plain(joined) else parts
    joined_names = sorted(parts_in(joined) | {path.name for path in parts})
    metadata = {**(pq.read_schema(parts[0]).metadata or {}), _PARTS_KEY: json.dumps(joined_names).encode()}
    schema = SCHEMA.with_metadata(metadata)
    with whole_file(joined, on_write) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in _gathered(sources):
            writer.write_table(table.replace_schema_metadata(metadata))
    for part in parts_of(folder, worker):
        if part.name in joined_names:
            part.unlink(missing_ok=True)
            on_write()


def remove_worker(folder: Path, worker: str) -> None:
    """Remove a worker's files. May run in a native thread."""
    for path in [joined_path(folder, worker), *parts_of(folder, worker)]:
        path.unlink(missing_ok=True)


def read_turns(run_dir: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return all turns of a run on this disk; an empty table if there are none. `columns`: names to read (default: all).

    Raise UsageError for a file that is unreadable or belongs to another run.
    """
    schema = SCHEMA if columns is None else pa.schema([SCHEMA.field(name) for name in columns])
    tables = [_read(path, schema.names).replace_schema_metadata(None) for path in _own(run_dir)]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def batches(run_dir: Path, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the turns of `read_turns`, in the same order, in tables of one row group each (about _GROUP_ROWS turns).

    One row group is in memory at a time. Raise UsageError as `read_turns` does.
    """
    schema = SCHEMA if columns is None else pa.schema([SCHEMA.field(name) for name in columns])
    for path in _own(run_dir):
        with reading(path), pq.ParquetFile(path) as source:
            for group in range(source.num_row_groups):
                table = source.read_row_group(group, columns=schema.names)
                table = table.select(schema.names).replace_schema_metadata(None).cast(schema)
                check_values(table)
                yield table


def size(run_dir: Path) -> tuple[int, int]:
    """Return the numbers of turns of `read_turns` and of their output events, from the metadata of the files."""
    sizes = [size_of(path) for path in _own(run_dir)]
    return sum(turns for turns, _ in sizes), sum(events for _, events in sizes)


def size_of(path: Path) -> tuple[int, int]:
    """Return the numbers of turns and of output events of a file, from its metadata."""
    turns = events = 0
    with reading(path):
        metadata = pq.read_metadata(path)
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            turns += group.num_rows
            chunks = map(group.column, range(group.num_columns))
            mine = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] == "event_ns"]
            nulls = sum(chunk.statistics.null_count or 0 for chunk in mine if chunk.statistics is not None)
            events += sum(chunk.num_values for chunk in mine) - nulls
    return turns, events


def anchors(run_dir: Path) -> dict[str, Anchor]:
    """Return the clock anchor of each worker."""
    by_worker = {}
    for path in _own(run_dir):
        metadata = _metadata(path)
        with reading(path):
            worker = metadata[b"worker"].decode()
            by_worker[worker] = Anchor(int(metadata[b"anchor_wall_ns"]), int(metadata[b"anchor_mono_ns"]))
    return by_worker


def foreign_files(paths: Iterable[Path], run_id: str | None) -> dict[Path, str]:
    """Return the files that do not belong to a run, with the reason. `run_id`: None if unknown; then that of most files.

    An unreadable file is not in the result.
    """
    origins: dict[Path, Origin | None] = {}
    for path in paths:
        with suppress(UsageError):
            origins[path] = origin(path)
    counts = Counter(entry.run_id for entry in origins.values() if entry is not None)
    own_id = run_id or max(counts, key=lambda name: counts[name], default="")
    reasons = {}
    for path, entry in origins.items():
        if entry is None:
            reasons[path] = "holds no turns of a run"
        elif entry.run_id != own_id:
            reasons[path] = f"holds turns of another run, {entry.run_id}"
    return reasons


def _own(run_dir: Path) -> list[Path]:
    """Return the files to read. Raise UsageError if one belongs to another run."""
    paths = files_to_read(run_dir / TURNS)
    try:
        run_id = read_object(run_dir / MANIFEST).get("id")
    except UsageError:
        run_id = None  # the run was killed before it wrote its manifest
    for path, why in foreign_files(paths, run_id if isinstance(run_id, str) else None).items():
        raise UsageError(f"{path}: {why}; take it out of the folder")
    return paths


def _gathered(paths: Iterable[Path]) -> Iterable[pa.Table]:
    """Yield the rows of the files in tables of about _GROUP_ROWS rows, a few row groups in memory at a time."""
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
    with reading(path), pq.ParquetFile(path) as source:
        table = source.read(columns=columns)
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        table = table if table.schema.equals(schema) else table.select(columns).cast(schema)
        check_values(table)
        return table


def _safe(worker: str) -> str:
    """Return a worker's name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", worker)


def _metadata(path: Path) -> dict[bytes, bytes]:
    with reading(path):
        return dict(pq.read_schema(path).metadata or {})


def parts_in(joined: Path) -> set[str]:
    """Return the names of the parts in a joined file; empty for another file, and without one."""
    if not is_plain(joined):
        return set()
    joined_names = _metadata(joined).get(_PARTS_KEY, b"[]")
    with reading(joined):
        names = json_text.parse(joined_names)
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def files_to_read(folder: Path) -> list[Path]:
    """Return the files to read: the joined files, and the parts that are not in one."""
    joined_names: set[str] = set()
    for joined in plain_files(folder, f"*-{_JOINED}.parquet"):
        joined_names |= parts_in(joined)
    return [path for path in plain_files(folder, "*.parquet") if path.name not in joined_names]


_NEEDED = ("turn_id", "session_id", "turn_index", "worker", "class", "phase", "planned_ns", "closed_ns")
_MOST_NS = 10**17  # three years: differences and small multiples have 64 bits
_MOST = 10**15


def check_values(table: pa.Table) -> None:
    """Raise ValueError for a value that no turn has: a missing identity, a number out of range, lists that do not fit."""
    for name in table.column_names:
        column = table[name]
        is_list = pa.types.is_list(column.type)
        values = pc.list_flatten(column) if is_list else column
        if (name in _NEEDED and column.null_count) or (is_list and values.null_count):
            raise ValueError(f"column {name} has no value in a row")
        if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            continue
        least, most = (-_MOST_NS, _MOST_NS) if name.endswith("_ns") else (0, _MOST)
        ends = pc.min_max(values).as_py()
        if any(end is not None and not least <= end <= most for end in ends.values()):
            raise ValueError(f"column {name} has values from {ends['min']} to {ends['max']}")
    lists = [table[name] for name in ("event_ns", "event_tokens") if name in table.column_names]
    if len(lists) == 2 and pc.any(pc.not_equal(*map(pc.list_value_length, lists))).as_py():
        raise ValueError("event_ns and event_tokens have lists of different lengths")
