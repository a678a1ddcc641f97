"""Values of measures from the turn files, which are read part by part."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from inferload.base.arrow import pa, pc
from inferload.figures.turn_batch import TurnBatch
from inferload.figures.turn_figures import BY_KEY, PER_TURN
from inferload.turns.sketch import Floats, Ints
from inferload.turns.turn_columns import SCHEMA

SLICES = 200  # of a window, of equal time: short enough to measure the correlation time of turns
_AT_ONCE = 4096  # turns: temporary arrays are a multiple of their events

# Tables of the named columns of all turns, in the same order in each call.
Read = Callable[[Sequence[str]], Iterable[pa.Table]]


class ExactValues:
    """Values of measures over the turns of the measure phase that ended well, in the order of the turns.

    In memory are those with one value per turn, or one with values per event: ask for these one after another, and for all
    selections of each in a row. `by`: columns to select by.
    """

    def __init__(self, read: Read, by: Sequence[str] = ("class",)) -> None:
        self._read, self._by = read, by
        self._values: dict[str, Floats] = {}
        self._codes: dict[tuple[str, str], npt.NDArray[Any]] = {}  # of the turn of each value, by measure and column
        self._words: dict[str, dict[str | None, int]] = {}  # codes by column

    def of(self, name: str, column: str | None = None, word: str | None = None) -> Floats:
        """Return the values of a measure. `column`, `word`: of the turns with this word in this column."""
        if name not in self._values:
            self._load([name] if BY_KEY[name].by_event else PER_TURN)
        values = self._values[name]
        if column is not None and [*self._words[column]] != [word]:
            values = values[self._codes[name, column] == self._words[column].get(word, -1)]
        return values

    def _load(self, names: Sequence[str]) -> None:
        self._values, self._codes = {}, {}  # free the previous ones first
        self._words = {column: {} for column in self._by}
        values = {name: [np.zeros(0)] for name in names}
        codes = {(name, column): [np.zeros(0, dtype=np.uint8)] for name in names for column in self._by}
        for turns, of_names in measured(self._read, names, self._by):
            of_turns = {column: coded(turns[column], words) for column, words in self._words.items()}
            for name, (mine, row) in zip(names, of_names, strict=True):
                values[name].append(mine)
                for column, code in of_turns.items():
                    codes[name, column].append(code[row])
        self._values = {name: np.concatenate(values.pop(name)) for name in names}
        self._codes = {key: np.concatenate(codes.pop(key)) for key in [*codes]}
        pa.default_memory_pool().release_unused()  # the C library keeps what their pieces took


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
    """Return the values of a measure over all turns of a table, however they ended, and their rows. An absent column is unknown."""
    return BY_KEY[name].values(_turn_batch(table, [name]))


def turn_columns(table: pa.Table, names: Sequence[str]) -> dict[str, Floats]:
    """Return measures with one value per turn as columns of a table, NaN if a turn has none."""
    columns, batch = {name: np.full(len(table), np.nan) for name in names}, _turn_batch(table, names)
    for name, column in columns.items():
        values, rows = BY_KEY[name].values(batch)
        column[rows] = values
    return columns


def _turn_batch(table: pa.Table, names: Sequence[str]) -> TurnBatch:
    """Return the columns of these measures; a column that the table lacks is unknown."""
    needed = dict.fromkeys(("failure", *chain(*(BY_KEY[name].columns for name in names))))
    unknown = {name: pa.nulls(len(table), SCHEMA.field(name).type) for name in needed.keys() - set(table.column_names)}
    columns = {name: unknown[name] if name in unknown else table[name].combine_chunks() for name in needed}
    return TurnBatch.of_columns(pa.record_batch(columns))
