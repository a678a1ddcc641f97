"""Folder `turns/` of a run directory: one row per turn, in Parquet parts that survive a crash.

Times are nanoseconds since the worker's clock anchor. The metadata of a file holds the anchor (`anchor_wall_ns`,
`anchor_mono_ns`), `worker` and `run_id`. The metadata of a joined file also lists its parts, so that no row is counted twice
after a crash between the join and the removal of the parts.
"""

import json
import re
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from inferload.base.arrow import pa, pc, pq
from inferload.base.clock import Anchor
from inferload.base.errors import UsageError
from inferload.base.rundir import is_plain, plain_files, whole_file
from inferload.turns.open_files import JOINED, PARTS_KEY, Origin, TurnFile, not_joined, reading
from inferload.turns.record import TurnRecord
from inferload.turns.turn_columns import SCHEMA, WORDS, TurnColumns, to_table

_GROUP_BYTES = 1 << 22  # about, in memory, of a row group in a joined file: its readers need a multiple of it
_BUFFERED = 1 << 20  # bytes: Arrow takes the GIL for each write to a file of Python


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
    _write(to_table(columns, anchor, worker, run_id), memory)
    with whole_file(path, on_write) as file:
        file.write(memory.getvalue())
    return path


def part_path(folder: Path, worker: str, part_number: int) -> Path:
    return folder / f"{_safe(worker)}-{part_number:05}.parquet"


def warm_up() -> None:
    """Write one turn to memory before the load: the first table of a process holds the GIL for about 30 ms."""
    columns = TurnColumns()
    columns.append(TurnRecord("", "", 0, "", "", "measure", 0, 0, event_ns=array("q", [0])))
    _write(to_table(columns, Anchor(0, 0), ""), pa.BufferOutputStream())


def _write(table: pa.Table, memory: pa.BufferOutputStream) -> None:
    """Write a part: lz4 is fast, and dictionaries of instants take four times the time and twice the memory."""
    pq.write_table(table, memory, compression="lz4", use_dictionary=False)


def check_part(path: Path, expected: Origin) -> None:
    """Raise UsageError unless a file is readable and holds turns of this run and worker only."""
    with reading(path), pq.ParquetFile(path) as source:
        table = source.read(use_threads=False)  # another pool of threads would cost more than it reads
        metadata = table.schema.metadata or {}
        int(metadata[b"anchor_wall_ns"]), int(metadata[b"anchor_mono_ns"])
        workers = set(pc.unique(table["worker"]).to_pylist())
    if (
        not table.schema.equals(SCHEMA)
        or TurnFile(path).origin != expected
        or workers - {expected.worker}
        or PARTS_KEY in metadata
    ):
        raise UsageError(f"{path}: not turns of worker {expected.worker} in run {expected.run_id}")


def rows_of(folder: Path, worker: str) -> int:
    """Return the number of a worker's turns on disk; an unreadable file counts as 0."""
    count = 0
    for file in not_joined([TurnFile(path) for path in _files_of(folder, worker)]):
        with suppress(UsageError):
            count += file.turns
    return count


def joined_path(folder: Path, worker: str) -> Path:
    return folder / f"{_safe(worker)}-{JOINED}.parquet"


def parts_of(folder: Path, worker: str) -> list[Path]:
    """Return a worker's parts: regular files named after the worker and a number."""
    name = re.compile(rf"{re.escape(_safe(worker))}-\d+\.parquet")
    return [path for path in plain_files(folder, f"{_safe(worker)}-*.parquet") if name.fullmatch(path.name)]


def _files_of(folder: Path, worker: str) -> list[Path]:
    """Return a worker's joined file, if it has one, and its parts. A folder has the files of hundreds of workers."""
    joined = joined_path(folder, worker)
    return [*([joined] if is_plain(joined) else []), *parts_of(folder, worker)]


def join_parts(folder: Path, worker: str, on_write: Callable[[], None] = lambda: None) -> None:
    """Join a worker's parts into one file; remove the parts after that file is complete. May run in a native thread.

    `on_write`: called after each write and each removal.
    """
    joined = joined_path(folder, worker)
    sources = [file.path for file in not_joined([TurnFile(path) for path in _files_of(folder, worker)])]
    parts = [path for path in sources if path != joined]
    if not parts:
        return
    earlier = TurnFile(joined).parts if joined in sources else frozenset()
    joined_names = sorted({*earlier, *(path.name for path in parts)})
    metadata = {**(pq.read_schema(parts[0]).metadata or {}), PARTS_KEY: json.dumps(joined_names).encode()}
    schema = SCHEMA.with_metadata(metadata)
    with (
        whole_file(joined, on_write) as file,
        pa.output_stream(file, buffer_size=_BUFFERED) as buffered,
        pq.ParquetWriter(buffered, schema, compression="zstd", use_dictionary=list(WORDS)) as writer,
    ):
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


def _gathered(paths: Iterable[Path]) -> Iterable[pa.Table]:
    """Yield the rows of the files in tables of about _GROUP_BYTES, a few row groups in memory at a time."""
    waiting: list[pa.Table] = []
    for path in paths:
        with pq.ParquetFile(path) as source:
            for group in range(source.num_row_groups):
                waiting.append(source.read_row_group(group, use_threads=False).replace_schema_metadata(None))
                if sum(table.nbytes for table in waiting) >= _GROUP_BYTES:
                    yield pa.concat_tables(waiting).combine_chunks()
                    waiting = []
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _safe(worker: str) -> str:
    """Return a worker's name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", worker)
