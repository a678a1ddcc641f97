"""`server_metrics/` of a run directory: scrapes in long form, in parts that a crash cannot take back.

Columns: `wall_ns` (the middle of the scrape's request), `target`, `metric` and `labels` (the server's own words, labels
as sorted JSON), `value`. A joined file says in its metadata which parts it holds, so that a crash between the join and
the removal of the parts counts nothing twice.
"""

import json
import re
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from inferload.errors import UsageError
from inferload.measure.arrow import pa
from inferload.rundir import SERVER_METRICS, is_plain, plain_files, whole_file

_WORD = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [("wall_ns", pa.int64()), ("target", _WORD), ("metric", _WORD), ("labels", _WORD), ("value", pa.float64())]
)
JOINED = "all.parquet"
_PART = re.compile(r"part-(\d{5,9})\.parquet")
_HELD = b"inferload_parts"  # metadata key of a joined file: JSON list of the parts' names

# What a file raises that is not whole, or has other columns.
_UNREADABLE = (pa.ArrowException, ValueError, LookupError, OSError)


def labels_json(labels: Iterable[tuple[str, str]]) -> str:
    """The form in which labels stand in the file."""
    return json.dumps(dict(labels), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


class ScrapeColumns:
    """Samples on their way into a part: per row a stamp, a number for the series, and the value."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, tuple[tuple[str, str], ...]], int] = {}
        self._wall_ns, self._codes, self._values = array("q"), array("i"), array("d")

    def __len__(self) -> int:
        return len(self._values)

    def append(self, wall_ns: int, target: str, metric: str, labels: tuple[tuple[str, str], ...], value: float) -> None:
        """Add one sample."""
        code = self._series.setdefault((target, metric, labels), len(self._series))
        self._wall_ns.append(wall_ns)
        self._codes.append(code)
        self._values.append(value)

    def to_table(self) -> pa.Table:
        """Everything so far; words stand once in a dictionary."""
        codes = np.frombuffer(self._codes, dtype=np.int32)
        words = (
            [target for target, _, _ in self._series],
            [metric for _, metric, _ in self._series],
            [labels_json(labels) for _, _, labels in self._series],
        )
        columns = [pa.array(np.frombuffer(self._wall_ns, dtype=np.int64))]
        columns += [_words(column, codes) for column in words]
        columns.append(pa.array(np.frombuffer(self._values, dtype=np.float64)))
        return pa.Table.from_arrays(columns, schema=SCHEMA)


def _words(of_series: list[str], codes: "np.ndarray[tuple[int], np.dtype[np.int32]]") -> pa.DictionaryArray:
    distinct = {word: number for number, word in enumerate(dict.fromkeys(of_series))}
    number_of = np.array([distinct[word] for word in of_series], dtype=np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(number_of[codes]), pa.array(list(distinct), pa.string()))


def write_part(folder: Path, number: int, table: pa.Table) -> Path:
    """Write one part, whole or not at all."""
    path = folder / f"part-{number:05}.parquet"
    with whole_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
    return path


def clear_up(folder: Path) -> None:
    """Remove what a writer that was killed had begun to write: the parts that it was made of still stand."""
    for path in plain_files(folder, "*.parquet.tmp"):
        path.unlink(missing_ok=True)


def next_number(folder: Path) -> int:
    """The number of the first part that is not there yet, joined ones counted."""
    names = [path.name for path in _files(folder)] + sorted(_held(folder))
    numbers = [int(found[1]) for found in map(_PART.fullmatch, names) if found is not None]
    return max(numbers, default=-1) + 1


def join_parts(folder: Path) -> None:
    """Make one file of all; a part is removed only when the joined file stands. Memory: one part at a time."""
    files = _live(folder)
    if not any(path.name != JOINED for path in files):
        return
    held = sorted(_held(folder) | {path.name for path in files if path.name != JOINED})
    schema = SCHEMA.with_metadata({_HELD: json.dumps(held).encode()})
    with whole_file(folder / JOINED) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for path in files:
            with pq.ParquetFile(path) as source:
                for group in range(source.num_row_groups):
                    writer.write_table(
                        _as_scrapes(source.read_row_group(group)).replace_schema_metadata(schema.metadata)
                    )
    for path in _files(folder):
        if path.name in held and _PART.fullmatch(path.name):
            path.unlink(missing_ok=True)


def read_scrapes(
    run_dir: Path,
    metrics: Iterable[str] | None = None,
    without: tuple[str, ...] = (),
    unreadable: list[str] | None = None,
) -> pa.Table:
    """All scrapes of a run in SCHEMA's columns, in the order of time; empty where there are none.

    `metrics`: the server's own names to read, where not all are wanted. `without`: endings of names that are left out (the
    buckets of histograms are most of a page). `unreadable`: takes the names of files that are not whole, which are then
    left out; without it such a file is a UsageError.
    """
    wanted = None if metrics is None else frozenset(metrics)
    tables = []
    for path in _live(run_dir / SERVER_METRICS, unreadable):
        try:
            tables.append(_read(path, wanted, without))
        except _UNREADABLE as error:
            if unreadable is None:
                raise UsageError(f"{path}: cannot be read as scrapes; remove it to go on without them") from error
            unreadable.append(path.name)
    if not tables:
        return SCHEMA.empty_table()
    table = pa.concat_tables(tables).unify_dictionaries()
    instants = table["wall_ns"].to_numpy()
    return table if np.all(instants[1:] >= instants[:-1]) else table.sort_by("wall_ns")


def _read(path: Path, wanted: frozenset[str] | None, without: tuple[str, ...]) -> pa.Table:
    """What is wanted of one file, read a row group at a time: an hour of pages is many times what is wanted of it."""
    groups = [SCHEMA.empty_table()]
    with pq.ParquetFile(path) as source:
        for number in range(source.num_row_groups):
            group = _as_scrapes(source.read_row_group(number)).replace_schema_metadata(None)
            for batch in group.to_batches():
                metric = batch.column("metric")
                kept = [
                    (wanted is None or n in wanted) and not n.endswith(without) for n in metric.dictionary.to_pylist()
                ]
                rows = np.flatnonzero(np.array(kept, dtype=np.bool_)[metric.indices.to_numpy()]) if kept else ()
                groups.append(pa.Table.from_batches([batch if all(kept) else batch.take(pa.array(rows, pa.int64()))]))
    return pa.concat_tables(groups)


def _as_scrapes(table: pa.Table) -> pa.Table:
    """In SCHEMA's columns; a table that has them is not cast, for which pyarrow would import all that it can compute."""
    return table if table.schema.equals(SCHEMA) else table.cast(SCHEMA)


def _files(folder: Path) -> list[Path]:
    return plain_files(folder, "*.parquet")


def _held(folder: Path) -> set[str]:
    """Names of the parts that the joined file holds."""
    joined = folder / JOINED
    if not is_plain(joined):
        return set()
    names = json.loads((pq.read_schema(joined).metadata or {}).get(_HELD, b"[]"))
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _live(folder: Path, unreadable: list[str] | None = None) -> list[Path]:
    """The files that count: a part that is in the joined file already does not."""
    try:
        held = _held(folder)
    except _UNREADABLE as error:
        if unreadable is None:
            joined = folder / JOINED
            raise UsageError(f"{joined}: cannot be read as scrapes; remove it to go on without them") from error
        held = set()  # the joined file is not whole, so its parts are all there is; reading it says so
    return [path for path in _files(folder) if path.name not in held]
