"""Values of each measure from a table of turns: vectorized functions of the table of measures.

tests/unit/test_turns_file.py compares them with the table of measures, value by value. Without the client delay:
the file has only its maximum per turn.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inferload.measure.arrow import pa, pc
from inferload.measure.clock import NS_PER_MS
from inferload.measure.measures import (
    ANSWERS,
    SPANS,
    gaps_by_turn_ms,
    shared_evenly_ms,
    shared_known_ms,
    tpot_by_turn_ms,
)
from inferload.measure.record import CANCELLED, INSTANTS, SERVER_TIMES
from inferload.measure.turn_columns import SCHEMA

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

COLUMNS = (
    "class",
    "phase",
    "failure",
    "finish_reason",
    *INSTANTS[:-1],  # no measure needs the close
    "connect_ns",
    "output_tokens",
    "event_ns",
    "event_tokens",
    *SERVER_TIMES,
)


_AT_ONCE = 4096  # turns: temporary arrays are a multiple of their events

# Tables of the named columns of all turns, in the same order in each call.
Read = Callable[[Sequence[str]], Iterable[pa.Table]]


def needed(name: str) -> tuple[str, ...]:
    """Return the columns that a measure is computed from, beside the failure of the turn."""
    return _NEEDED.get(name, (name,))


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


@dataclass(frozen=True, slots=True)
class _Selectable:
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
    for turns in _ended_well(read, (*needed(name), *more), class_name):
        yield turns, *_OF[name](_TurnBatch.of(turns))


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
    if name not in _OF:
        return []
    values, at = [np.zeros(0)], [np.zeros(0, dtype=np.uint8)]
    for of_turns, batch in _numbered(read, name, batches, class_name):
        values.append(of_turns)
        at.append(batch)
    number = np.concatenate(at)
    ordered = np.concatenate(values)[np.argsort(number, kind="stable")]
    return np.split(ordered, np.cumsum(np.bincount(number, minlength=batches))[:-1])


@dataclass(frozen=True, slots=True)
class BatchSums:
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

    A column of COLUMNS that the table lacks counts as unknown.
    """
    values, rows, before = [np.zeros(0)], [np.zeros(0, dtype=np.int64)], 0
    for name_of_column in COLUMNS:
        if name_of_column not in table.column_names:
            table = table.append_column(name_of_column, pa.nulls(len(table), SCHEMA.field(name_of_column).type))
    for columns in table.select(COLUMNS).to_batches():
        of_batch, row = _OF[name](_TurnBatch.of(columns))
        values.append(of_batch)
        rows.append(row + before)
        before += columns.num_rows
    return np.concatenate(values), np.concatenate(rows)


def turn_columns(table: pa.Table, names: Iterable[str]) -> dict[str, Floats]:
    """Return measures with one value per turn as columns of a table, NaN if a turn has none."""
    columns = {}
    for name in names:
        values, rows = values_by_turn(table, name)
        columns[name] = np.full(len(table), np.nan)
        columns[name][rows] = values
    return columns


@dataclass(frozen=True, slots=True)
class _TurnBatch:
    """Batch of turns. `at_ns`: all output events, flat."""

    columns: pa.RecordBatch
    at_ns: Ints
    events: Ints  # how many output events each turn has

    @classmethod
    def of(cls, columns: pa.RecordBatch) -> "_TurnBatch":
        if "event_ns" not in columns.schema.names:  # of a measure that needs none
            return cls(columns, np.zeros(0, dtype=np.int64), np.zeros(len(columns), dtype=np.int64))
        lists = columns.column("event_ns")
        events = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        flat = pc.list_flatten(lists).to_numpy(zero_copy_only=False)
        return cls(columns, flat, events)

    @property
    def row(self) -> Ints:
        """Row of the turn of each event."""
        return np.repeat(np.arange(len(self.events)), self.events)

    def whole(self, name: str) -> tuple[Ints, Bools]:
        """Return a column of whole numbers, and the mask of its known values."""
        column = self.columns.column(name)
        return pc.fill_null(column, 0).to_numpy(zero_copy_only=False), column.is_valid().to_numpy(zero_copy_only=False)

    def cancelled(self) -> Bools:
        """Return the mask of cancelled turns; a turn that failed is not one of them."""
        reasons = pc.fill_null(self.columns.column("finish_reason"), "")
        ok = pc.is_null(self.columns.column("failure"))
        cancelled: Bools = pc.and_(pc.equal(reasons, CANCELLED), ok).to_numpy(zero_copy_only=False)
        return cancelled

    def tokens(self) -> tuple[Ints, Bools]:
        """Return the tokens of each event, 0 if unknown, and the mask of turns with known tokens."""
        lists = self.columns.column("event_tokens")
        counted = lists.is_valid().to_numpy(zero_copy_only=False)
        flat: Ints = np.zeros(len(self.at_ns), dtype=np.int64)
        flat[counted[self.row]] = pc.list_flatten(lists).to_numpy(zero_copy_only=False)
        return flat, counted


# Values of a measure, and the row of the turn of each.
_Valued = tuple[Floats, Ints]


def _where(has: Bools, values: Floats) -> _Valued:
    """Select the turns that have a value."""
    return values[has], np.flatnonzero(has)


def _spanned(name: str) -> Callable[[_TurnBatch], _Valued]:
    """Return the function of a batch that computes a measure of SPANS."""
    start, end = SPANS[name]

    def values(batch: _TurnBatch) -> _Valued:
        (start_ns, started), (end_ns, ended) = batch.whole(start), batch.whole(end)
        has = started & ended & ~batch.cancelled() if name in ANSWERS else started & ended
        return _where(has, (end_ns - start_ns) / NS_PER_MS)

    return values


def _connect(batch: _TurnBatch) -> _Valued:
    connect_ns, connected = batch.whole("connect_ns")
    return _where(connected, connect_ns / NS_PER_MS)


def _reported(name: str) -> Callable[[_TurnBatch], _Valued]:
    def values(batch: _TurnBatch) -> _Valued:
        reported: Floats = pc.fill_null(batch.columns.column(name), np.nan).to_numpy(zero_copy_only=False)
        return _where(np.isfinite(reported), reported)

    return values


def _gaps(batch: _TurnBatch) -> _Valued:
    return gaps_by_turn_ms(batch.at_ns, batch.row)


def _token_gaps(batch: _TurnBatch) -> _Valued:
    tokens, counted = batch.tokens()
    (known, of_known), (even, of_even) = _known(batch, tokens, counted), _even(batch, counted)
    return np.concatenate([known, even]), np.concatenate([of_known, of_even])


def _known(batch: _TurnBatch, tokens: Ints, counted: Bools) -> _Valued:
    """Turns with known tokens per event."""
    turn = batch.row
    inside = counted[turn]
    return shared_known_ms(batch.at_ns[inside], turn[inside], tokens[inside])


def _even(batch: _TurnBatch, counted: Bools) -> _Valued:
    """Turns with a known sum of tokens."""
    output_tokens, _ = batch.whole("output_tokens")
    shared = ~counted & (output_tokens > 0)
    at_ns = batch.at_ns[shared[batch.row]]
    values, number = shared_evenly_ms(at_ns, batch.events[shared], output_tokens[shared])
    return values, np.flatnonzero(shared)[number]


def _tpot(batch: _TurnBatch) -> _Valued:
    (first_ns, begun), (last_ns, ended) = batch.whole("first_ns"), batch.whole("last_ns")
    output_tokens, reported = batch.whole("output_tokens")
    tokens, counted = batch.tokens()
    of_first: Floats = output_tokens / np.maximum(batch.events, 1)
    starts = np.cumsum(batch.events) - batch.events
    known = counted & (batch.events > 0)
    of_first[known] = tokens[starts[known]]
    tpot = tpot_by_turn_ms(first_ns, last_ns, output_tokens, of_first)
    has = begun & ended & reported & (batch.events > 0) & ~np.isnan(tpot) & ~batch.cancelled()
    return _where(has, tpot)


_OF: dict[str, Callable[[_TurnBatch], _Valued]] = {
    **{name: _spanned(name) for name in SPANS},
    "connect_ms": _connect,
    "itl_ms": _gaps,
    "itl_token_ms": _token_gaps,
    "tpot_ms": _tpot,
    "server_queue_ms": _reported("server_queue_ms"),
    "server_ttft_ms": _reported("server_ttft_ms"),
    "server_generation_ms": _reported("server_generation_ms"),
}
# Columns that a measure is computed from; of a measure that is not here, the column of its name.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    **{name: (*span, "finish_reason") if name in ANSWERS else span for name, span in SPANS.items()},
    "connect_ms": ("connect_ns",),
    "itl_ms": ("event_ns",),
    "itl_token_ms": ("event_ns", "event_tokens", "output_tokens"),
    "tpot_ms": ("first_ns", "last_ns", "finish_reason", "output_tokens", "event_ns", "event_tokens"),
}
