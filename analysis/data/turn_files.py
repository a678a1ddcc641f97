"""Turn files of a run directory, read one row group at a time, and the sample of sessions that stands for a large run.

Incomplete files and files of other runs or versions are left out with a note.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.results.documents.manifest_document import Manifest
from inferload.turns import turns_file
from inferload.turns.turn_columns import SCHEMA

# A run with more is read as a sample of its sessions. The report of 10 million events needs about 1.3 GB.
MOST_TURNS = 250_000
MOST_EVENTS = 10_000_000
SESSION_OF_TASKS = "t"  # beginning of its id; "s" is that of a session of a scenario


@dataclass(frozen=True, slots=True)
class TurnFile:
    """One file. `parts`: files that were joined into it. `shift_ns`: from its times to nanoseconds since the start of the run."""

    path: Path
    turns: int
    events: int
    worker: str
    anchor_wall_ns: int
    anchor_mono_ns: int
    parts: frozenset[str]
    shift_ns: int = 0

    def tables(self, columns: Sequence[str], every: int = 1) -> Iterator[pa.Table]:
        """Yield the turns of one row group at a time, of 1 in `every` sessions. A column that the file lacks is left out.

        Raise UsageError if the file cannot be read, or has a value that no turn has.
        """
        with turns_file.reading(self.path), pq.ParquetFile(self.path) as source:
            present = [name for name in columns if name in source.schema_arrow.names]
            for group in range(source.num_row_groups):
                table = _cast(source.read_row_group(group, columns=present, use_threads=False).select(present))
                turns_file.check_values(table)
                yield table if every == 1 else table.filter(pa.array(in_sample(table, every)))


def in_sample(turns: pa.Table, every: int) -> npt.NDArray[np.bool_]:
    """Return the mask of the turns of 1 in `every` sessions, and of 1 in `every` turns of tasks.

    Sub-agents of agents belong to the session of their agent. A user of tasks has one session for the whole run.
    """
    sessions = turns["session_id"].combine_chunks().fill_null("")
    of_tasks = pc.starts_with(sessions, SESSION_OF_TASKS)
    encoded = pc.if_else(of_tasks, turns["turn_id"].combine_chunks().fill_null(""), sessions).dictionary_encode()
    chosen = [_hash(name.partition("/")[0]) % every == 0 for name in encoded.dictionary.to_pylist()]
    mask: npt.NDArray[np.bool_] = np.array(chosen, dtype=np.bool_)[encoded.indices.to_numpy()]
    return mask


def _hash(name: str) -> int:
    """Return a number that depends on the name only, and evenly."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def sampled_every(files: Sequence[TurnFile]) -> int:
    """Return the n of a sample of 1 in n sessions that fits into memory; 1: all turns do."""
    parts: frozenset[str] = frozenset().union(*(file.parts for file in files))
    listed = [file for file in files if file.path.name not in parts]
    turns, events = sum(file.turns for file in listed), sum(file.events for file in listed)
    return max(1, -(-turns // MOST_TURNS), -(-events // MOST_EVENTS))


def found(run_dir: Path, run_id: str | None, needed: Sequence[str], notes: list[str]) -> list[TurnFile]:
    """Return the files of a run, joined files before parts. `needed`: columns without which a file is left out."""
    paths = rundir.plain_files(run_dir / rundir.TURNS, "*.parquet")
    foreign = turns_file.foreign_files(paths, run_id)
    files = []
    for path in paths:
        if path in foreign:
            notes.append(f"{rundir.TURNS}/{path.name} {foreign[path]}, and is left out")
            continue
        try:
            file, missing = _described(path, needed)
        except UsageError:
            notes.append(unreadable(path))
            continue
        if missing:
            notes.append(
                f"{rundir.TURNS}/{path.name} lacks {', '.join(missing)} and is left out: another version wrote it"
            )
        else:
            files.append(file)
    return sorted(files, key=lambda file: not file.parts)


def unreadable(path: Path) -> str:
    """Return the note on an unreadable file."""
    return f"{rundir.TURNS}/{path.name} cannot be read and is left out"


def on_run_clock(file: TurnFile, manifest: Manifest, start_wall_ns: int, notes: list[str]) -> TurnFile:
    """Return the file with its shift: by the clock offset of its worker, or by wall clocks if that is not known."""
    anchor, offsets = manifest.anchor, {worker.name: worker.clock_offset_ns for worker in manifest.workers}
    offset_ns = offsets.get(file.worker)
    if offset_ns is None or anchor is None or anchor.mono_ns is None:
        notes.append(
            f"the clock offset of worker {file.worker or 'of unknown name'} is not known: its wall clock was used"
        )
        return replace(file, shift_ns=file.anchor_wall_ns - start_wall_ns)
    on_master_ns = file.anchor_mono_ns - offset_ns
    return replace(file, shift_ns=on_master_ns - anchor.mono_ns + anchor.wall_ns - start_wall_ns)


def _described(path: Path, needed: Sequence[str]) -> tuple[TurnFile, list[str]]:
    """Return a file by its metadata, and the needed columns that it lacks; UsageError if it cannot be read."""
    with turns_file.reading(path):
        schema = pq.read_schema(path)
        metadata = schema.metadata or {}
        stamps = [int(metadata.get(key, b"0")) for key in (b"anchor_wall_ns", b"anchor_mono_ns")]
        worker = metadata.get(b"worker", b"").decode()
    if any(abs(stamp) >= 1 << 63 for stamp in stamps):
        raise UsageError(f"{path}: anchors {stamps} are out of range")
    turns, events = turns_file.size_of(path)
    parts: set[str] = set()
    with suppress(UsageError):  # without a readable list the file is no joined file
        parts = turns_file.parts_in(path)
    file = TurnFile(path, turns, events, worker, stamps[0], stamps[1], frozenset(parts))
    return file, [name for name in needed if name not in schema.names]


def _cast(table: pa.Table) -> pa.Table:
    """Cast a table to the types of a turn file."""
    for index, field in enumerate(table.schema):
        expected = SCHEMA.field(field.name).type
        if field.type != expected:
            table = table.set_column(index, field.name, table[field.name].cast(expected))
    return table
