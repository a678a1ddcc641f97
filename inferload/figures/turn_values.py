"""Values of measures from the turn files, which are read part by part."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from inferload.base.arrow import pa, pc
from inferload.figures.turn_batch import Floats, Ints, TurnBatch
from inferload.figures.turn_figures import BY_KEY
from inferload.turns.turn_columns import SCHEMA

_AT_ONCE = 4096  # turns: temporary arrays are a multiple of their events

# Tables of the named columns of all turns, in the same order in each call.
Read = Callable[[Sequence[str]], Iterable[pa.Table]]


class ExactValues:
    """Values of measures over the turns of the measure phase that ended well, in the order of the turns.

    One measure is in memory at a time, so ask for all selections of a measure in a row. `by`: columns to select by.
    """

    def __init__(self, read: Read, by: Sequence[str] = ("class",)) -> None:
        self._read = read
        self._by = by
        self._latest: tuple[str, _Selectable] | None = None

    def of(self, name: str, column: str | None = None, word: str | None = None) -> Floats:
        """Return the values of a measure. `column`, `word`: of the turns with this word in this column."""
        if self._latest is None or self._latest[0] != name:
            self._latest = None  # free the previous values first
            self._latest = name, _Selectable.of(measured(self._read, name, self._by), self._by)
        selectable = self._latest[1]
        return selectable.values if column is None else selectable.where(column, word)


class _Selectable(Struct, frozen=True):
    """Values of one measure. `codes`: for each column, the code of the turn of each value. `words`: the codes."""

    values: Floats
    codes: Mapping[str, Ints]
    words: Mapping[str, Mapping[str | None, int]]

    @classmethod
    def of(cls, pieces: Iterable[tuple[pa.RecordBatch, Floats, Ints]], by: Sequence[str]) -> "_Selectable":
        values = [np.zeros(0)]
        codes = {column: [np.zeros(0, dtype=np.uint8)] for column in by}
        words: dict[str, dict[str | None, int]] = {column: {} for column in by}
        for turns, of_piece, row in pieces:
            values.append(of_piece)
            for column in by:
                codes[column].append(coded(turns[column], words[column])[row])
        return cls(np.concatenate(values), {name: np.concatenate(parts) for name, parts in codes.items()}, words)

    def where(self, column: str, word: str | None) -> Floats:
        code = self.words[column].get(word)
        return np.zeros(0) if code is None else self.values[self.codes[column] == code]


def coded(column: pa.Array, words: dict[str | None, int]) -> npt.NDArray[Any]:
    """Return the code of each word of a column, as small unsigned numbers. Adds new words to `words`."""
    encoded = column.dictionary_encode(null_encoding="encode")
    codes = [words.setdefault(word, len(words)) for word in encoded.dictionary.to_pylist()]
    smallest = np.array(codes, dtype=np.min_scalar_type(max(codes, default=0)))
    of_rows: npt.NDArray[Any] = smallest[encoded.indices.to_numpy(zero_copy_only=False)]
    return of_rows


def measured(
    read: Read, name: str, more: Sequence[str] = (), class_name: str | None = None
) -> Iterator[tuple[pa.RecordBatch, Floats, Ints]]:
    """Yield the turns of the measure phase that ended well, with the values of a measure and the row of each.

    `more`: columns of the batches beside those of the measure. `class_name`: of one class; None: of all.
    """
    figure = BY_KEY[name]
    for turns in _ended_well(read, (*figure.columns, *more), class_name):
        yield turns, *figure.values(TurnBatch.of_columns(turns))


def _ended_well(read: Read, columns: Sequence[str], class_name: str | None) -> Iterator[pa.RecordBatch]:
    of_class = () if class_name is None else ("class",)
    for table in read([*dict.fromkeys(("failure", "phase", *of_class, *columns))]):
        mask = pc.and_(pc.is_null(table["failure"]), pc.equal(table["phase"], "measure"))
        if class_name is not None:
            mask = pc.and_(mask, pc.equal(table["class"], class_name))
        yield from table.filter(mask).to_batches(max_chunksize=_AT_ONCE)


def batched_values(read: Read, name: str, batches: int, class_name: str | None = None) -> list[Floats]:
    """Return a measure's values over the measure phase, of one class or all, in batches of equal time by planned instants.

    Each worker has its own clock, so its turns are split from its first to its last planned turn. Empty for a measure
    without values per turn.
    """
    if name not in BY_KEY:
        return []
    values, at = [np.zeros(0)], [np.zeros(0, dtype=np.uint8)]
    for of_turns, batch in _numbered(read, name, batches, class_name):
        values.append(of_turns)
        at.append(batch)
    number = np.concatenate(at)
    ordered = np.concatenate(values)[np.argsort(number, kind="stable")]
    return np.split(ordered, np.cumsum(np.bincount(number, minlength=batches))[:-1])


class BatchSums(Struct, frozen=True):
    """Sums over batches of values: `counts`, `sums` and `below` (values up to a limit) of each; `squares` of all."""

    counts: Floats
    sums: Floats
    below: Floats
    squares: float


def batch_sums(read: Read, name: str, batches: int, class_name: str | None, limit: float) -> BatchSums:
    """Return sums over `batched_values`, without all values in memory. `limit`: for `below`."""
    counts, sums, below = (np.zeros(batches) for _ in range(3))
    squares = 0.0
    for values, batch in _numbered(read, name, batches, class_name):
        counts += np.bincount(batch, minlength=batches)
        sums += np.bincount(batch, weights=values, minlength=batches)
        below += np.bincount(batch[values <= limit], minlength=batches)
        squares += float(values @ values)
    return BatchSums(counts, sums, below, squares)


def _numbered(
    read: Read, name: str, batches: int, class_name: str | None
) -> Iterator[tuple[Floats, npt.NDArray[np.unsignedinteger[Any]]]]:
    """Yield values of a measure with the number of the batch of each, as `batched_values`."""
    workers: dict[str | None, int] = {}
    low_ns, high_ns = _planned_ns(read, class_name, workers)
    length_ns = np.maximum(1, high_ns - low_ns)
    for turns, values, row in measured(read, name, ("planned_ns", "worker"), class_name):
        worker = coded(turns["worker"], workers)
        batch = (turns["planned_ns"].to_numpy() - low_ns[worker]) * batches // length_ns[worker]
        yield values, np.minimum(batches - 1, batch).astype(np.min_scalar_type(batches))[row]


def _planned_ns(read: Read, class_name: str | None, workers: dict[str | None, int]) -> tuple[Ints, Ints]:
    """Return the first and the last planned instant of each worker, by its code. Adds the codes to `workers`."""
    bounds: dict[int, tuple[int, int]] = {}
    for turns in _ended_well(read, ("planned_ns", "worker"), class_name):
        planned_ns, worker = turns["planned_ns"].to_numpy(), coded(turns["worker"], workers)
        for code in np.unique(worker).tolist():
            mine = [*bounds.get(code, ()), *(int(limit(planned_ns[worker == code])) for limit in (np.min, np.max))]
            bounds[code] = min(mine), max(mine)
    low_ns, high_ns = np.array([bounds[code] for code in range(len(bounds))], dtype=np.int64).reshape(-1, 2).T
    return low_ns, high_ns


def values_by_turn(table: pa.Table, name: str) -> tuple[Floats, Ints]:
    """Return all values of a measure over all turns of a table, however they ended, and the row of each.

    A column that the table lacks counts as unknown.
    """
    figure = BY_KEY[name]
    columns = ("failure", *figure.columns)
    values, rows, before = [np.zeros(0)], [np.zeros(0, dtype=np.int64)], 0
    for column in columns:
        if column not in table.column_names:
            table = table.append_column(column, pa.nulls(len(table), SCHEMA.field(column).type))
    for part in table.select(columns).to_batches():
        of_part, row = figure.values(TurnBatch.of_columns(part))
        values.append(of_part)
        rows.append(row + before)
        before += part.num_rows
    return np.concatenate(values), np.concatenate(rows)


def turn_columns(table: pa.Table, names: Iterable[str]) -> dict[str, Floats]:
    """Return measures with one value per turn as columns of a table, NaN if a turn has none."""
    columns = {}
    for name in names:
        values, rows = values_by_turn(table, name)
        columns[name] = np.full(len(table), np.nan)
        columns[name][rows] = values
    return columns
