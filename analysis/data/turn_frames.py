"""Tables of turns as frames, and their output events as flat arrays, on the clock of the run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from inferload.figures.turn_figures import BY_KEY, ITL, PER_TURN
from inferload.figures.turn_values import turn_columns, values_by_turn
from inferload.turns.sketch import Floats

from .frame import Column, Frame, known, rows_by_text

NS_PER_S = 1_000_000_000

INSTANTS = ("planned", "sent", "written", "first_event", "first", "first_visible", "last", "closed")
LONGEST_GAP = "longest_gap_ms"
_SECONDS = {f"{name}_s": f"{name}_ns" for name in INSTANTS}
EVENT_COLUMNS = ("sent_ns", "event_ns", "event_tokens", "output_tokens", "failure")
_WORDS = ("turn_id", "session_id", "turn_index", "worker", "class", "phase", "failure", "finish_reason")
_PLAIN = (*_WORDS, "target", "input_tokens", "output_tokens", "cached_tokens", "texts", "attempts")

_AT_ONCE = 65_536  # events

# Columns of a turn file without which it is left out, and all columns that are read.
NEEDED = (*_SECONDS.values(), "event_ns", "event_tokens", *_WORDS, "output_tokens")
COLUMNS = tuple(dict.fromkeys((*NEEDED, *_PLAIN, "server", *chain(*(BY_KEY[name].columns for name in PER_TURN)))))
ALL = (*_PLAIN, *_SECONDS, *PER_TURN, LONGEST_GAP, "ok")
_SOURCES: Mapping[str, tuple[str, ...]] = {
    **{name: (source,) for name, source in _SECONDS.items()},
    **{name: (*BY_KEY[name].columns, "failure") for name in PER_TURN},
    **{LONGEST_GAP: ("event_ns", "failure"), "ok": ("failure",), "target": ("target", "server")},
}


@dataclass(frozen=True, slots=True)
class Events:
    """Output events of turns: time, tokens (NaN: unknown), preceding gap.

    `gap_ms` is NaN for the first event of a turn and for events of unsuccessful turns. `turn`: row of the turn.
    """

    at_s: Floats
    tokens: Floats
    gap_ms: Floats
    turn: npt.NDArray[np.int32]

    def between(self, start_s: float, end_s: float) -> "Events":
        """Return the events of the half-open window, if they are in time order; views, not copies."""
        low, high = np.searchsorted(self.at_s, (start_s, end_s))
        return self.where(slice(low, high))

    def pieces(self) -> Iterator["Events"]:
        """Yield the events in parts that a cache of the processor holds: views, not copies."""
        return (self.where(slice(first, first + _AT_ONCE)) for first in range(0, len(self.at_s), _AT_ONCE))

    def where(self, chosen: slice | npt.NDArray[np.bool_]) -> "Events":
        """Return the events of a slice or mask."""
        return Events(self.at_s[chosen], self.tokens[chosen], self.gap_ms[chosen], self.turn[chosen])


def sources(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of a turn file that these columns of a frame need."""
    return tuple(dict.fromkeys(chain.from_iterable(_SOURCES.get(name, (name,)) for name in columns)))


def turn_frame(table: pa.Table, shift_ns: int, columns: Sequence[str] = ALL) -> Frame:
    """Return columns of a table as a frame, without those that the table lacks."""
    columns = tuple(dict.fromkeys(columns))
    frame = {name: _column(table[name]) for name in columns if name in _PLAIN and name in table.column_names}
    if "target" in frame and "server" in table.column_names and table["server"].null_count < len(table):
        frame["target"] = _answered_by(_column(table["server"]), frame["target"])
    for name in columns:
        if name in _SECONDS:
            frame[name] = (_column(table[_SECONDS[name]]).astype(np.float64) + shift_ns) / NS_PER_S
    if "ok" in columns:
        frame["ok"] = table["failure"].is_null().to_numpy()
    if LONGEST_GAP in columns:
        frame[LONGEST_GAP] = _longest_gaps(table)
    return Frame(frame | turn_columns(table, [name for name in columns if name in PER_TURN]))


def _column(values: pa.ChunkedArray) -> Column:
    """Return a column of a file; equal texts are one object."""
    if not pa.types.is_string(values.type):
        return np.asarray(values.to_numpy())
    encoded = values.combine_chunks().dictionary_encode()
    texts = np.array([*encoded.dictionary.to_pylist(), None], dtype=object)
    return np.asarray(texts[encoded.indices.fill_null(-1).to_numpy()])


def _answered_by(server: Column, target: Column) -> Column:
    """Return the address of the server that answered each turn, by a header of the answer; else that it was sent to."""
    addresses = {name: address_named(name) for name in set(server[known(server)])}
    named = [(addresses.get(name), sent_to) for name, sent_to in zip(server, target, strict=True)]
    return np.array([address or sent_to for address, sent_to in named], dtype=object)


def address_named(name: str) -> str:
    """Return the address of a server that a header names as HOST:PORT or URL; of several, after retries, the last one."""
    last = name.rpartition(",")[2].strip()
    scheme, sign, rest = last.rpartition("://")
    return f"{scheme if sign else 'http'}://{rest.partition('/')[0]}"


def empty_turns() -> Frame:
    kinds: dict[str, Any] = dict.fromkeys(ALL, float) | dict.fromkeys((*_WORDS, "target"), object) | {"ok": bool}
    return Frame({name: np.zeros(0, dtype=kind) for name, kind in kinds.items()})


def workers_of(frames: Iterable[Frame]) -> Frame:
    """Return first and last planned time, last end and longest turn of each worker. `frames`: with the columns for it."""
    bounds: dict[str | None, tuple[float, ...]] = {}
    for frame in frames:
        planned_s, closed_s = frame["planned_s"], frame["closed_s"]
        lasted_s = np.nan_to_num(closed_s - frame["sent_s"])
        for worker, rows in rows_by_text(frame["worker"]).items():
            own = (planned_s[rows], planned_s[rows], closed_s[rows], lasted_s[rows])
            before = bounds.get(worker, (np.nan,) * len(own))
            bounds[worker] = tuple(
                limit.reduce(column, initial=value)
                for limit, column, value in zip(_LIMITS.values(), own, before, strict=True)
            )
    names = sorted(bounds, key=str)
    columns = zip(*(bounds[name] for name in names), strict=True) if names else ((),) * len(_LIMITS)
    return Frame({"worker": np.array(names, dtype=object), **dict(zip(_LIMITS, columns, strict=True))})


_LIMITS = {"first_s": np.fmin, "last_s": np.fmax, "end_s": np.fmax, "longest_s": np.fmax}


def turn_events(table: pa.Table, shift_ns: int, first_row: int = 0) -> Events:
    """Return the events of a table, turn by turn. `first_row`: of the table in the frame."""
    lists = table["event_ns"].combine_chunks()
    counts = np.asarray(lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    turn = np.repeat(np.arange(len(counts)), counts)
    offset_ns = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    sent_ns = table["sent_ns"].fill_null(0).to_numpy()
    gap_ms = np.full(len(turn), np.nan)
    gap_ms[np.diff(turn, prepend=-1) == 0], _ = values_by_turn(table, ITL.key)
    gap_ms[~table["failure"].is_null().to_numpy()[turn]] = np.nan
    at_s = (sent_ns[turn] + offset_ns + shift_ns) / NS_PER_S
    return Events(at_s, _event_tokens(table, counts, turn), gap_ms, (turn + first_row).astype(np.int32))


def in_time_order(parts: list[Events]) -> Events:
    """Join the events of several tables in time order, and empty the list: 10 million events take 80 MB per column."""
    columns: dict[str, list[npt.NDArray[Any]]] = {
        field.name: [getattr(part, field.name) for part in (*parts, _NO_EVENTS)] for field in fields(Events)
    }
    parts.clear()
    at_s = np.concatenate(columns.pop("at_s"))
    order = np.argsort(at_s, kind="stable")
    at_s = at_s[order]
    return Events(at_s, **{name: np.concatenate(columns.pop(name))[order] for name in [*columns]})


_NO_EVENTS = Events(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int32))


def _longest_gaps(table: pa.Table) -> Floats:
    """Longest gap of each turn; NaN for an unsuccessful turn, and for one without gaps."""
    gaps_ms, turn = values_by_turn(table, ITL.key)
    longest = np.full(len(table), -np.inf)
    np.maximum.at(longest, turn, gaps_ms)
    return np.where(np.isfinite(longest) & table["failure"].is_null().to_numpy(), longest, np.nan)


def _event_tokens(
    table: pa.Table, counts: npt.NDArray[np.int64], turn: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Tokens of each event: as reported, else the tokens of the turn in equal whole shares, else NaN."""
    output = table["output_tokens"].cast(pa.float64()).to_numpy()[turn]
    index, of = np.arange(len(turn)) - np.repeat(np.cumsum(counts) - counts, counts), counts[turn]
    tokens: npt.NDArray[np.float64] = np.floor(output * (index + 1) / of) - np.floor(output * index / of)
    lists = table["event_tokens"].combine_chunks()
    lengths = np.asarray(lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    reported = (lengths == counts) & lists.is_valid().to_numpy(zero_copy_only=False)
    selected = lists if reported.all() else lists.filter(pa.array(reported))
    tokens[reported[turn]] = selected.flatten().cast(pa.float64()).to_numpy(zero_copy_only=False)
    return tokens
