"""Values of measures from the turn files, which are read part by part."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from inferload.base.arrow import pa, pc
from inferload.figures.turn_batch import Floats, Ints, TurnBatch
from inferload.figures.turn_figures import BY_KEY, PER_TURN
from inferload.turns.turn_columns import SCHEMA

_AT_ONCE = 4096  # turns: temporary arrays are a multiple of their events

# Tables of the named columns of all turns, in the same order in each call.
Read = Callable[[Sequence[str]], Iterable[pa.Table]]


class ExactValues:
    """Values of measures over the turns of the measure phase that ended well, in the order of the turns.

    In memory are those with one value per turn, or one with values per event: ask for these one after another, and for all
    selections of each in a row. `by`: columns to select by.
    """

    def __init__(self, read: Read, by: Sequence[str] = ("class",)) -> None:
        self._read = read
        self._by = by
        self._latest: dict[str, _Selectable] = {}

    def of(self, name: str, column: str | None = None, word: str | None = None) -> Floats:
        """Return the values of a measure. `column`, `word`: of the turns with this word in this column."""
        if name not in self._latest:
            self._latest = {}  # free the previous values first
            together = [name] if BY_KEY[name].by_event else PER_TURN
            self._latest = _selectable(measured(self._read, together, self._by), together, self._by)
            pa.default_memory_pool().release_unused()  # the C library keeps what their pieces took
        selectable = self._latest[name]
        return selectable.values if column is None else selectable.where(column, word)


class _Selectable(Struct, frozen=True):
    """Values of one measure. `codes`: for each column, the code of the turn of each value. `words`: the codes."""

    values: Floats
    codes: Mapping[str, npt.NDArray[Any]]
    words: Mapping[str, Mapping[str | None, int]]

    def where(self, column: str, word: str | None) -> Floats:
        code = self.words[column].get(word)
        if code is None:
            return np.zeros(0)
        return self.values if len(self.words[column]) == 1 else self.values[self.codes[column] == code]


def _selectable(
    pieces: Iterable[tuple[pa.RecordBatch, list[tuple[Floats, Ints]]]], names: Sequence[str], by: Sequence[str]
) -> dict[str, _Selectable]:
    """Return the values of each measure. `pieces`: of `measured`."""
    values = [[np.zeros(0)] for _ in names]
    codes = [{column: [np.zeros(0, dtype=np.uint8)] for column in by} for _ in names]
    words: dict[str, dict[str | None, int]] = {column: {} for column in by}
    for turns, of_names in pieces:
        of_turns = {column: coded(turns[column], words[column]) for column in by}
        for number, (of_piece, row) in enumerate(of_names):
            values[number].append(of_piece)
            for column, code in of_turns.items():
                codes[number][column].append(code[row])
    found = {}
    for name in names:  # the pieces of a measure are freed once they are joined
        joined = {column: np.concatenate(parts) for column, parts in codes.pop(0).items()}
        found[name] = _Selectable(np.concatenate(values.pop(0)), joined, words)
    return found


def coded(column: pa.Array, words: dict[str | None, int]) -> npt.NDArray[Any]:
    """Return the code of each word of a column, as small unsigned numbers. Adds new words to `words`."""
    encoded = column.dictionary_encode(null_encoding="encode")
    codes = [words.setdefault(word, len(words)) for word in encoded.dictionary.to_pylist()]
    smallest = np.array(codes, dtype=np.min_scalar_type(max(codes, default=0)))
    of_rows: npt.NDArray[Any] = smallest[encoded.indices.to_numpy(zero_copy_only=False)]
    return of_rows


def measured(
    read: Read, names: Sequence[str], more: Sequence[str] = (), class_name: str | None = None
) -> Iterator[tuple[pa.RecordBatch, list[tuple[Floats, Ints]]]]:
    """Yield the turns of the measure phase that ended well, with the values of each measure and the row of each value.

    `more`: columns of the batches beside those of the measures. `class_name`: of one class; None: of all.
    """
    figures = [BY_KEY[name] for name in names]
    for turns in _ended_well(read, (*chain(*(figure.columns for figure in figures)), *more), class_name):
        batch = TurnBatch.of_columns(turns)
        yield turns, [figure.values(batch) for figure in figures]


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
    pieces = [[np.zeros(0)] * batches]
    for values, batch in _numbered(read, name, batches, class_name):
        ends = np.cumsum(np.bincount(batch, minlength=batches))
        pieces.append(np.split(values[np.argsort(batch, kind="stable")], ends[:-1]))
    return [np.concatenate(of_batch) for of_batch in zip(*pieces, strict=True)]


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
    for turns, ((values, row),) in measured(read, [name], ("planned_ns", "worker"), class_name):
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
    values, rows, before = [np.zeros(0)], [np.zeros(0, dtype=np.int64)], 0
    for batch in _turn_batches(table, [name]):
        of_batch, row = BY_KEY[name].values(batch)
        values.append(of_batch)
        rows.append(row + before)
        before += len(batch)
    return np.concatenate(values), np.concatenate(rows)


def turn_columns(table: pa.Table, names: Sequence[str]) -> dict[str, Floats]:
    """Return measures with one value per turn as columns of a table, NaN if a turn has none."""
    columns, before = {name: np.full(len(table), np.nan) for name in names}, 0
    for batch in _turn_batches(table, names):
        for name, column in columns.items():
            values, rows = BY_KEY[name].values(batch)
            column[rows + before] = values
        before += len(batch)
    return columns


def _turn_batches(table: pa.Table, names: Sequence[str]) -> Iterator[TurnBatch]:
    """Yield the columns of these measures; a column that the table lacks is unknown."""
    columns = [*dict.fromkeys(("failure", *chain(*(BY_KEY[name].columns for name in names))))]
    for column in columns:
        if column not in table.column_names:
            table = table.append_column(column, pa.nulls(len(table), SCHEMA.field(column).type))
    return map(TurnBatch.of_columns, table.select(columns).to_batches())
