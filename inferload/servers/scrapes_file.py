"""Folder `server_metrics/` of a run directory: scrapes in long form, in Parquet parts that survive a crash.

Columns: `wall_ns` (middle of the request), `target`, `metric` and `labels` (names of the server, labels as sorted JSON),
`value`. The metadata of a joined file lists its parts, so that no row is counted twice after a crash between the join and
the removal of the parts.
"""

import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from inferload.base import json_text
from inferload.base.arrow import pa, pq
from inferload.base.errors import UsageError
from inferload.base.rundir import SERVER_METRICS, is_plain, plain_files, whole_file

_WORD = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [("wall_ns", pa.int64()), ("target", _WORD), ("metric", _WORD), ("labels", _WORD), ("value", pa.float64())]
)
JOINED = "all.parquet"
_LATEST_NS = 1 << 62  # the year 2116: differences have 64 bits
_PART = re.compile(r"part-(\d{5,9})\.parquet")
_PARTS_KEY = b"inferload_parts"  # metadata key of a joined file: JSON list of the parts' names

# Exceptions of a file that is incomplete or has other columns.
UNREADABLE = (pa.ArrowException, ValueError, LookupError, OSError)


def labels_json(labels: Iterable[tuple[str, str]]) -> str:
    """Return the text of the column `labels`."""
    return json.dumps(dict(labels), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


class ScrapeColumns:
    """Buffer of the samples of one part: per row a timestamp, a series index and a value."""

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
        """Return all samples as a table; its strings are dictionary-encoded."""
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


def write_part(folder: Path, number: int, table: pa.Table, on_write: Callable[[], None] = lambda: None) -> Path:
    """Write one part atomically, with one write if it is below 1 MB. `on_write`: as for `whole_file`."""
    path = folder / f"part-{number:05}.parquet"
    with whole_file(path, on_write) as file:
        pq.write_table(table, file, compression="zstd")
    return path


def clear_up(folder: Path) -> None:
    """Remove incomplete files of a writer that was killed; their parts still exist."""
    for path in plain_files(folder, "*.parquet.tmp"):
        path.unlink(missing_ok=True)


def next_number(folder: Path) -> int:
    """Return the number of the next part, after those in the folder and those in the joined file."""
    names = [path.name for path in _files(folder)] + sorted(_joined_names(folder))
    return max([int(match[1]) for match in map(_PART.fullmatch, names) if match is not None], default=-1) + 1


def join_parts(folder: Path, on_write: Callable[[], None] = lambda: None) -> None:
    """Join all parts into one file, one in memory at a time; then remove them. `on_write`: called after each write and removal."""
    earlier = _joined_names(folder)
    files = [path for path in _files(folder) if path.name not in earlier]
    joined_names = sorted(earlier | {path.name for path in files if path.name != JOINED})
    if len(joined_names) == len(earlier):
        return
    schema = SCHEMA.with_metadata({_PARTS_KEY: json.dumps(joined_names).encode()})
    with whole_file(folder / JOINED, on_write) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in (table for path in files for table in tables(path)):
            writer.write_table(table.replace_schema_metadata(schema.metadata))
    for path in _files(folder):
        if path.name in joined_names and _PART.fullmatch(path.name):
            path.unlink(missing_ok=True)
            on_write()


def read_scrapes(run_dir: Path, unreadable: list[str] | None = None) -> Iterator[pa.Table]:
    """Yield all scrapes of a run as tables with the columns of SCHEMA, a part of a file at a time; nothing if there are none.

    `unreadable`: list that receives the names of incomplete files, whose rest is skipped; without it they raise UsageError.
    """
    joined_names: set[str] = set()
    for path in sorted(_files(run_dir / SERVER_METRICS), key=lambda path: path.name != JOINED):
        try:
            if path.name not in joined_names:
                with pq.ParquetFile(path) as source:
                    joined_names |= _parts_of(source.metadata) if path.name == JOINED else set()
                    yield from _row_groups(source)
        except UNREADABLE as error:
            if unreadable is None:
                raise UsageError(f"{path}: cannot be read as scrapes; remove it to go on without them") from error
            unreadable.append(path.name)


def samples(run_dir: Path) -> int:
    """Return the number of samples in the complete files of a run."""
    count, folder, joined_names = 0, run_dir / SERVER_METRICS, set[str]()
    with suppress(*UNREADABLE):
        joined_names = _joined_names(folder)
    for path in _files(folder):
        with suppress(*UNREADABLE):
            count += 0 if path.name in joined_names else pq.read_metadata(path).num_rows
    return count


def tables(path: Path) -> Iterator[pa.Table]:
    """Yield the row groups of one file with the columns of SCHEMA. One of `UNREADABLE` for a file that holds no scrapes."""
    with pq.ParquetFile(path) as source:
        yield from _row_groups(source)


def _row_groups(source: pq.ParquetFile) -> Iterator[pa.Table]:
    for group in range(source.num_row_groups):
        yield _as_scrapes(source.read_row_group(group)).replace_schema_metadata(None)


def _as_scrapes(table: pa.Table) -> pa.Table:
    """Cast a table to SCHEMA if it differs; a cast imports all of pyarrow.compute. ValueError for a value that no scrape has."""
    table = table if table.schema.equals(SCHEMA) else table.cast(SCHEMA)
    if any(column.null_count for column in table.columns):
        raise ValueError("a row lacks a value")
    instants = table["wall_ns"].to_numpy()
    if len(instants) and not 0 <= instants.min() <= instants.max() <= _LATEST_NS:
        raise ValueError(f"wall_ns is {instants.min()} to {instants.max()}")
    return table


def _files(folder: Path) -> list[Path]:
    return plain_files(folder, "*.parquet")


def _joined_names(folder: Path) -> set[str]:
    """Return the names of the parts in the joined file."""
    joined = folder / JOINED
    return _parts_of(pq.read_metadata(joined)) if is_plain(joined) else set()


def _parts_of(metadata: pq.FileMetaData) -> set[str]:
    names = json_text.parse((metadata.metadata or {}).get(_PARTS_KEY, b"[]"))
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
