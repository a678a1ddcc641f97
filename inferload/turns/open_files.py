"""Files of turns that are read. Each is opened once, also for several passes over its turns.

A process may open about a thousand files, so those of a folder with very many are closed after each pass.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from inferload.base import json_text
from inferload.base.arrow import pa, pc, pq
from inferload.base.clock import Anchor
from inferload.base.errors import UsageError
from inferload.base.rundir import plain_files
from inferload.turns.turn_columns import SCHEMA

JOINED = "all"  # end of the name of a joined file
PARTS_KEY = b"inferload_parts"  # metadata key of a joined file: JSON list of the parts' file names
MOST_OPEN = 200  # files of a folder that stay open
_LATEST_NS = 1 << 63


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


class TurnFile:
    """One file. `stays_open`: after it was needed first. UsageError where it cannot be read."""

    def __init__(self, path: Path, *, stays_open: bool = False) -> None:
        self.path = path
        self._stays_open = stays_open

    @cached_property
    def _source(self) -> pq.ParquetFile:
        return pq.ParquetFile(self.path)

    @cached_property
    def _metadata(self) -> pq.FileMetaData:
        with reading(self.path):
            return self._source.metadata if self._stays_open else pq.read_metadata(self.path)

    @cached_property
    def origin(self) -> Origin | None:
        """Run and worker; None for a Parquet file that is not a turns file."""
        with reading(self.path):
            worker, run_id = (self._texts.get(key) for key in (b"worker", b"run_id"))
            return None if worker is None or run_id is None else Origin(run_id.decode(), worker.decode())

    @cached_property
    def anchor(self) -> Anchor:
        with reading(self.path):
            wall_ns, mono_ns = (int(self._texts[key]) for key in (b"anchor_wall_ns", b"anchor_mono_ns"))
            if max(abs(wall_ns), abs(mono_ns)) >= _LATEST_NS:
                raise ValueError("its anchors are out of range")
            return Anchor(wall_ns, mono_ns)

    @cached_property
    def parts(self) -> frozenset[str]:
        """Names of the parts that were joined into the file; empty for another file."""
        with reading(self.path):
            names = json_text.parse(self._texts.get(PARTS_KEY, b"[]"))
        return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()

    @property
    def columns(self) -> list[str]:
        with reading(self.path):
            names: list[str] = self._metadata.schema.to_arrow_schema().names
            return names

    @property
    def turns(self) -> int:
        return int(self._metadata.num_rows)

    @cached_property
    def events(self) -> int:
        return sum(
            chunk.num_values - (chunk.statistics.null_count or 0 if chunk.statistics is not None else 0)
            for chunk in self._chunks("event_ns")
        )

    @cached_property
    def least_cached(self) -> int | None:
        """Least number of cached tokens that a turn has; None if none has one."""
        found = [chunk.statistics for chunk in self._chunks("cached_tokens")]
        return min((each.min for each in found if each is not None and each.has_min_max), default=None)

    @cached_property
    def targets(self) -> set[str | None]:
        """The first and the last target by name; None for turns without statistics."""
        found = [chunk.statistics for chunk in self._chunks("target")]
        known = [each is not None and each.has_min_max for each in found]
        return {
            end for each, has in zip(found, known, strict=True) for end in ((each.min, each.max) if has else (None,))
        }

    def _chunks(self, column: str) -> list[Any]:
        metadata = self._metadata
        with reading(self.path):
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            chunks = (group.column(at) for group in groups for at in range(group.num_columns))
            return [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] == column]

    def tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield these columns of the turns, one row group at a time."""
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        with reading(self.path), self._opened() as source:
            for group in range(source.num_row_groups):
                table = source.read_row_group(group, columns=schema.names, use_threads=False).select(schema.names)
                table = table.replace_schema_metadata(None).cast(schema)
                check_values(table)
                yield table

    def _opened(self) -> AbstractContextManager[pq.ParquetFile]:
        return nullcontext(self._source) if self._stays_open else pq.ParquetFile(self.path, metadata=self._metadata)

    @property
    def _texts(self) -> dict[bytes, bytes]:
        return self._metadata.metadata or {}


def not_joined(files: Sequence[TurnFile]) -> list[TurnFile]:
    joined = (file for file in files if file.path.stem.endswith(f"-{JOINED}"))
    joined_names: frozenset[str] = frozenset().union(*(file.parts for file in joined))
    return [file for file in files if file.path.name not in joined_names]


class TurnFiles:
    """Files of a folder of turns. `run_id`: of the run; None: that of most files.

    UsageError if a file that is to be read is unreadable or belongs to another run.
    """

    def __init__(self, folder: Path, run_id: str | None = None) -> None:
        paths = plain_files(folder, "*.parquet")
        self.every = [TurnFile(path, stays_open=len(paths) <= MOST_OPEN) for path in paths]
        self._run_id = run_id

    @cached_property
    def to_read(self) -> list[TurnFile]:
        """Joined files, and the parts that are not in one."""
        return not_joined(self.every)

    @cached_property
    def foreign(self) -> dict[Path, str]:
        """Files that do not belong to the run, with the reason; an unreadable file is not among them."""
        origins: dict[Path, Origin | None] = {}
        for file in self.every:
            with suppress(UsageError):
                origins[file.path] = file.origin
        counts = Counter(origin.run_id for origin in origins.values() if origin is not None)
        own_id = self._run_id or max(counts, key=lambda name: counts[name], default="")
        return {
            path: "holds no turns of a run" if origin is None else f"holds turns of another run, {origin.run_id}"
            for path, origin in origins.items()
            if origin is None or origin.run_id != own_id
        }

    @cached_property
    def _own(self) -> list[TurnFile]:
        for file in self.to_read:
            if file.path in self.foreign:
                raise UsageError(f"{file.path}: {self.foreign[file.path]}; take it out of the folder")
        return self.to_read

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of turns and of their output events."""
        return sum(file.turns for file in self._own), sum(file.events for file in self._own)

    @property
    def anchors(self) -> dict[str, Anchor]:
        return {file.origin.worker: file.anchor for file in self._own if file.origin is not None}

    def batches(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield all turns, file by file, in tables of these columns with one row group each (about 4 MB).

        SGLang and vLLM's Rust front end name only hits: if no turn of a target has 0 cached tokens, those without a number have 0.
        """
        targets = self._naming_hits_only if "cached_tokens" in columns else []
        if not targets:
            return (table for file in self._own for table in file.tables(columns))
        read = list(dict.fromkeys((*columns, "input_tokens", "target")))
        return (_with_zeros(table, targets).select(list(columns)) for file in self._own for table in file.tables(read))

    @cached_property
    def _naming_hits_only(self) -> list[str | None]:
        least = [file.least_cached for file in self._own]
        targets = set[str | None]().union(*(file.targets for file in self._own))
        if all(each is None for each in least):
            return []
        if len(targets) == 1 and None not in targets:
            return list(targets) if 0 not in least else []
        of_target: dict[str | None, int] = {}
        for table in (table for file in self._own for table in file.tables(("target", "cached_tokens"))):
            for target in pc.unique(table["target"]).to_pylist():
                found = pc.min(table["cached_tokens"].filter(pc.equal(table["target"], target))).as_py()
                if found is not None:
                    of_target[target] = min(found, of_target.get(target, found))
        return [target for target, tokens in of_target.items() if tokens]

    def table(self, columns: Sequence[str] = tuple(SCHEMA.names)) -> pa.Table:
        """Return these columns of all turns; an empty table if there are none."""
        empty = pa.schema([SCHEMA.field(name) for name in columns]).empty_table()
        return pa.concat_tables([empty, *self.batches(columns)])


def _with_zeros(table: pa.Table, targets: Sequence[str | None]) -> pa.Table:
    """Set the cached tokens of turns of these targets that have none to 0 if they have a usage."""
    missing = pc.and_(pc.is_null(table["cached_tokens"]), pc.is_valid(table["input_tokens"]))
    missing = pc.and_(missing, pc.is_in(table["target"], value_set=pa.array(targets, pa.string())))
    zeros = pc.if_else(missing, pa.scalar(0, SCHEMA.field("cached_tokens").type), table["cached_tokens"])
    return table.set_column(table.column_names.index("cached_tokens"), SCHEMA.field("cached_tokens"), zeros)


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
