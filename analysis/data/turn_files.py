"""Turn files of a run directory, read one row group at a time, and the sample of sessions that stands for a large run.

Incomplete files and files of other runs or versions are left out with a note.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.results.documents.manifest_document import Manifest
from inferload.turns.open_files import TurnFile, TurnFiles

# A run with more is read as a sample of its sessions. The report of 10 million events needs about 0.6 GB.
MOST_TURNS = 250_000
MOST_EVENTS = 10_000_000
SESSION_OF_TASKS = "t"  # beginning of its id; "s" is that of a session of a scenario


@dataclass(frozen=True, slots=True)
class ClockedFile:
    """One file. `shift_ns`: from its times to nanoseconds since the start of the run."""

    file: TurnFile
    shift_ns: int

    def tables(self, columns: Sequence[str], every: int = 1) -> Iterator[pa.Table]:
        """Yield the turns of one row group at a time, of 1 in `every` sessions. A column that the file lacks is left out.

        Raise UsageError if the file cannot be read, or has a value that no turn has.
        """
        present = set(self.file.columns)
        for table in self.file.tables([name for name in columns if name in present]):
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
    parts: frozenset[str] = frozenset().union(*map(parts_of, files))
    listed = [file for file in files if file.path.name not in parts]
    turns, events = sum(file.turns for file in listed), sum(file.events for file in listed)
    return max(1, -(-turns // MOST_TURNS), -(-events // MOST_EVENTS))


def found(files: TurnFiles, needed: Sequence[str], notes: list[str]) -> list[TurnFile]:
    """Return the files of a run, joined files before parts. `needed`: columns without which a file is left out."""
    own = []
    for file in files.every:
        name = file.path.name
        if file.path in files.foreign:
            notes.append(f"{rundir.TURNS}/{name} {files.foreign[file.path]}, and is left out")
            continue
        try:
            columns, *_ = file.columns, file.origin, file.anchor, file.events  # of its metadata all that is read later
        except UsageError:
            notes.append(unreadable(file.path))
            continue
        if missing := [column for column in needed if column not in columns]:
            notes.append(f"{rundir.TURNS}/{name} lacks {', '.join(missing)} and is left out: another version wrote it")
        else:
            own.append(file)
    return sorted(own, key=lambda file: not parts_of(file))


def parts_of(file: TurnFile) -> frozenset[str]:
    """Return the names of the parts that were joined into a file; without a readable list it is no joined file."""
    try:
        return file.parts
    except UsageError:
        return frozenset()


def unreadable(path: Path) -> str:
    return f"{rundir.TURNS}/{path.name} cannot be read and is left out"


def on_run_clock(file: TurnFile, manifest: Manifest, start_wall_ns: int, notes: list[str]) -> ClockedFile:
    """Return the file with its shift: by the clock offset of its worker, or by wall clocks if that is not known."""
    master, offsets = manifest.anchor, {worker.name: worker.clock_offset_ns for worker in manifest.workers}
    worker = "" if file.origin is None else file.origin.worker
    offset_ns = offsets.get(worker)
    if offset_ns is None or master is None or master.mono_ns is None:
        notes.append(f"the clock offset of worker {worker or 'of unknown name'} is not known: its wall clock was used")
        return ClockedFile(file, file.anchor.wall_ns - start_wall_ns)
    on_master_ns = file.anchor.mono_ns - offset_ns
    return ClockedFile(file, on_master_ns - master.mono_ns + master.wall_ns - start_wall_ns)
