"""Turn records of a run for its summary. They are read in batches, so that memory hardly grows with the run."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from zlib import crc32

import numpy as np
from msgspec import Struct

from inferload.base.arrow import pa, pc
from inferload.results.open_run import OpenRun
from inferload.results.summarise.counts import EndedWorker
from inferload.turns.open_files import TurnFiles

# A run of up to this size has exact percentiles. The values of one measure are in memory at a time: 20 million take 500 MB.
MOST_TURNS = 2_000_000
MOST_VALUES = 20_000_000
# Turns whose sessions are in memory at a time: 500 bytes each.
PART_TURNS = 1_000_000
CLASS_COLUMNS = ("class", "pause", "final")


class Turns(Struct, frozen=True):
    """Turns of a run whose records are all in its directory. `values`: of the measure with the most values."""

    files: TurnFiles
    count: int
    values: int

    @classmethod
    def of(cls, run: OpenRun) -> "Turns | None":
        """Return the turns of a run; None if records are missing."""
        if not run.counts.workers.whole:
            return None
        turns, events = run.turns.size
        measured = run.counts.totals.tallies.total("measure")
        return cls(run.turns, turns, max([events, *(sketch.count for sketch in measured.sketches.values())]))

    @property
    def few(self) -> bool:
        """True if percentiles are computed from all values."""
        return self.count <= MOST_TURNS and self.values <= MOST_VALUES

    def __str__(self) -> str:
        return f"{self.count:,} turns" if self.count > MOST_TURNS else f"{self.values:,} values of a measure"

    def read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield all turns in tables of these columns."""
        return self.files.batches(columns)

    def wall_starts_ns(self, workers: Iterable[EndedWorker]) -> dict[str, int]:
        """Return the zero of each worker's instants on the master's wall clock."""
        ahead_ns = {worker.name: worker.wall_offset_ns for worker in workers}
        return {name: anchor.wall_ns - ahead_ns.get(name, 0) for name, anchor in self.files.anchors.items()}

    def shifts_ns(self, workers: Iterable[EndedWorker]) -> dict[str, int]:
        """Return the offset from each worker's instants to the master's monotonic clock."""
        anchors = self.files.anchors
        known = [worker for worker in workers if worker.name in anchors]
        return {worker.name: anchors[worker.name].mono_ns - worker.offset_ns for worker in known}

    @property
    def parts(self) -> int:
        """Number of parts of about PART_TURNS turns."""
        return max(1, ceil(self.count / PART_TURNS))

    def by_session(
        self, columns: Sequence[str], derive: Callable[[pa.Table], pa.Table], parts: int
    ) -> Iterator[pa.Table]:
        """Yield all turns in tables that hold whole sessions, with those of their sub-agents, in the order of the files.

        Each part reads the files once, so that one part is in memory. `derive`: applied to each batch of `columns`.
        """
        part_of = [self._parts_of_batch(table, parts) for table in self.read(("session_id",))] if parts > 1 else None
        for part in range(parts):
            tables = []
            for number, table in enumerate(self.read(columns)):
                mine = table if part_of is None else table.filter(pa.array(part_of[number] == part))
                tables.append(derive(mine))
            if tables:
                yield pa.concat_tables(tables)

    @staticmethod
    def _parts_of_batch(table: pa.Table, parts: int) -> np.ndarray:
        roots = (name.partition("/")[0] for name in table["session_id"].to_pylist())
        return np.array([crc32(root.encode()) % parts for root in roots], dtype=np.uint16)


def agent_classes(tables: Iterable[pa.Table]) -> list[str]:
    """Return the classes whose sessions call tools, or mark their final answer. The tables have CLASS_COLUMNS."""
    names: set[str] = set()
    for table in tables:
        tells = pc.or_kleene(pc.equal(table["pause"], "tool"), table["final"])
        names.update(pc.unique(table["class"].filter(tells)).to_pylist())
    return sorted(names)
