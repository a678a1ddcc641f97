"""Batch of turns as columns: turns of a worker that ended together, a part of the turn files, or a single turn."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from inferload.base.arrow import pa, pc
from inferload.base.clock import NS_PER_MS
from inferload.turns.record import CANCELLED, INSTANTS, SERVER_TIMES, Failure, TurnRecord
from inferload.turns.sketch import Bools, Floats, Ints

_NUMBERS = (*INSTANTS, "connect_ns", "round_trip_ns", "input_tokens", "output_tokens", "hidden_tokens", "texts")
_UNKNOWN = -(2**63)
_numbers_of = attrgetter(*_NUMBERS)
_times_of = attrgetter(*SERVER_TIMES)


class Column(Struct, frozen=True):
    """Whole numbers of turns, 0 if unknown, and the mask of the known ones."""

    values: Ints
    known: Bools


class TurnBatch(Struct, frozen=True, dict=True):
    """Columns of a batch of turns. A batch of a turn file has the columns that were read.

    `numbers`: instants, connect time, tokens and texts. `server_times`: reported by the server, NaN if not. `at_ns`: all output
    events, flat, as offsets from `sent`; `events`: how many each turn has. `tokens`: of each event, 0 if unknown; `counted`:
    the turns with known ones. `ok`: the turns that ended well; `cancelled`: those of them that their caller cancelled.
    `unfinished`: those in flight at the end of the drain; the others failed.
    """

    numbers: Mapping[str, Column]
    server_times: Mapping[str, Floats]
    at_ns: Ints
    events: Ints
    tokens: Ints
    counted: Bools
    ok: Bools
    cancelled: Bools
    unfinished: Bools

    @classmethod
    def of_records(cls, records: Sequence[TurnRecord]) -> "TurnBatch":
        """Return the columns of records."""
        rows = [[_UNKNOWN if number is None else number for number in _numbers_of(record)] for record in records]
        numbers = np.array(rows, dtype=np.int64).reshape(-1, len(_NUMBERS)).T
        known = numbers != _UNKNOWN
        columns = zip(_NUMBERS, np.where(known, numbers, 0), known, strict=True)
        times = np.array([_times_of(record) for record in records], dtype=np.float64).reshape(-1, len(SERVER_TIMES)).T
        lists = [record.event_ns for record in records]
        of_events = [record.event_tokens for record in records]
        events = np.array([len(at_ns) if at_ns else 0 for at_ns in lists], dtype=np.int64)
        counted = np.array([tokens is not None for tokens in of_events], dtype=np.bool_)
        ok = np.array([record.ok for record in records], dtype=np.bool_)
        return cls(
            {name: Column(values, mask) for name, values, mask in columns},
            dict(zip(SERVER_TIMES, times, strict=True)),
            np.frombuffer(b"".join([at_ns for at_ns in lists if at_ns]), dtype=np.int64),
            events,
            _spread(np.frombuffer(b"".join([t for t in of_events if t]), dtype=np.int32), counted, events),
            counted,
            ok,
            np.array([record.cancelled for record in records], dtype=np.bool_),
            np.array([not record.finished for record in records], dtype=np.bool_),
        )

    @classmethod
    def of_columns(cls, turns: pa.RecordBatch) -> "TurnBatch":
        """Return the columns of a part of the turn files, which has `failure`."""
        names, none = turns.schema.names, np.zeros(len(turns), dtype=np.int64)
        read = [name for name in _NUMBERS if name in names]
        numbers = {name: Column(_plain(pc.fill_null(turns[name], 0)), _plain(turns[name].is_valid())) for name in read}
        times = {name: _plain(pc.fill_null(turns[name], np.nan)) for name in SERVER_TIMES if name in names}
        at_ns, events, tokens, counted = none[:0], none, none[:0], none.astype(np.bool_)
        if "event_ns" in names:
            at_ns = _plain(pc.list_flatten(turns["event_ns"]))
            events = _plain(pc.fill_null(pc.list_value_length(turns["event_ns"]), 0)).astype(np.int64)
        if "event_tokens" in names:
            counted = _plain(turns["event_tokens"].is_valid())
            tokens = _spread(_plain(pc.list_flatten(turns["event_tokens"])), counted, events)
        ok = _plain(turns["failure"].is_null())
        cancelled = ~ok & ok
        if "finish_reason" in names:
            cancelled = ok & _plain(pc.equal(pc.fill_null(turns["finish_reason"], ""), CANCELLED))
        unfinished = ~ok & _plain(pc.equal(pc.fill_null(turns["failure"], ""), Failure.UNFINISHED.value))
        return cls(numbers, times, at_ns, events, tokens, counted, ok, cancelled, unfinished)

    def __len__(self) -> int:
        return len(self.ok)

    @cached_property
    def turn(self) -> Ints:
        """Row of the turn of each event."""
        return np.repeat(np.arange(len(self.events)), self.events)

    @cached_property
    def starts(self) -> Ints:
        """Position in `at_ns` of the first event of each turn."""
        starts: Ints = np.cumsum(self.events) - self.events
        return starts

    @cached_property
    def gaps_ms(self) -> tuple[Floats, Ints]:
        """Gaps between consecutive output events of a turn, and the row of the turn of each."""
        return gaps_by_turn_ms(self.at_ns, self.turn)

    @cached_property
    def streamed(self) -> Column:
        """Output tokens that were streamed."""
        output, hidden = self.numbers["output_tokens"], self.numbers["hidden_tokens"]
        return Column((output.values - hidden.values) * hidden.known, output.known & hidden.known)

    @cached_property
    def begun_ns(self) -> Ints:
        """Start of sending, without the time to connect, which depends on the server and is no delay of the client."""
        planned, sent, connect = (self.numbers[name] for name in ("planned_ns", "sent_ns", "connect_ns"))
        begun: Ints = np.where(sent.known, np.maximum(planned.values, sent.values - connect.values), planned.values)
        return begun

    def span_ms(self, start: str, end: str) -> tuple[Floats, Bools]:
        """Milliseconds from one instant to another, and the mask of the turns that reached both."""
        first, last = self.numbers[start], self.numbers[end]
        return (last.values - first.values) / NS_PER_MS, first.known & last.known


def gaps_by_turn_ms(at_ns: Ints, turn: Ints) -> tuple[Floats, Ints]:
    """Gaps within turns, and the turn of each. `at_ns`: output events of all turns; `turn`: number of the turn of each."""
    within = turn[1:] == turn[:-1]
    return ((at_ns[1:] - at_ns[:-1]) / NS_PER_MS)[within], turn[1:][within]


def _plain(column: pa.Array) -> Any:
    return column.to_numpy(zero_copy_only=False)


def _spread(reported: npt.NDArray[np.integer[Any]], counted: Bools, events: Ints) -> Ints:
    """Tokens of each event of all turns. `reported`: those of the counted turns, one after another."""
    tokens = np.zeros(int(events.sum()), dtype=np.int64)
    tokens[np.repeat(counted, events)] = reported
    return tokens
