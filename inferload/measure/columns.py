"""Values of each measure from a table of turns: vectorized functions of the table of measures.

tests/unit/test_turns_file.py compares them with the table of measures, value by value. Without the client delay:
the file has only its maximum per turn.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

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


def exact_values(table: pa.Table, phase: str | None = "measure", class_name: str | None = None) -> "ExactValues":
    """Return all values of each measure over the turns that ended well, of one phase and class; None: of all.

    Needs COLUMNS. A measure without a value is an empty array.
    """
    mask = pc.is_null(table["failure"])
    if phase is not None:
        mask = pc.and_(mask, pc.equal(table["phase"], phase))
    if class_name is not None:
        mask = pc.and_(mask, pc.equal(table["class"], class_name))
    chosen = table.select(COLUMNS)
    return ExactValues(chosen if pc.all(mask).as_py() else chosen.filter(mask))


_AT_ONCE = 4096  # turns: temporary arrays are a multiple of their events


class ExactValues(Mapping[str, Floats]):
    """Values of each measure by name, computed on access: ten million gaps take 80 MB per measure."""

    def __init__(self, turns: pa.Table) -> None:
        self._batches = [_TurnBatch.of(batch) for batch in turns.to_batches(max_chunksize=_AT_ONCE)]
        self._latest: tuple[str, Floats] | None = None

    def __getitem__(self, name: str) -> Floats:
        if self._latest is None or self._latest[0] != name:
            of = _OF[name]
            self._latest = None  # free the previous values first
            self._latest = name, np.concatenate([np.zeros(0), *(of(batch)[0] for batch in self._batches)])
        return self._latest[1]

    def __iter__(self) -> Iterator[str]:
        return iter(_OF)

    def __len__(self) -> int:
        return len(_OF)


def batched_values(table: pa.Table, name: str, batches: int, class_name: str | None = None) -> list[Floats]:
    """Return a measure's values over the measure phase, of one class or all, in batches of equal time by planned instants.

    Each worker has its own clock, so its turns are split from its first to its last planned turn. Empty for a measure
    without values per turn.
    """
    if name not in _OF:
        return []
    table = table.filter(pc.and_(pc.is_null(table["failure"]), pc.equal(table["phase"], "measure")))
    if class_name is not None:
        table = table.filter(pc.equal(table["class"], class_name))
    planned_ns = table["planned_ns"].to_numpy()
    batch = np.zeros(len(planned_ns), dtype=np.int64)
    worker = table["worker"].cast(pa.string()).to_numpy(zero_copy_only=False)
    for name_of_worker in np.unique(worker):
        mine = worker == name_of_worker
        start_ns, length_ns = planned_ns[mine].min(), max(1, int(np.ptp(planned_ns[mine])))
        batch[mine] = np.minimum(batches - 1, (planned_ns[mine] - start_ns) * batches // length_ns)
    values, row = values_by_turn(table, name)
    at = batch[row]
    return np.split(values[np.argsort(at, kind="stable")], np.cumsum(np.bincount(at, minlength=batches))[:-1])


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
