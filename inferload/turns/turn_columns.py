"""Column buffers of turn records, and their conversion into an Arrow table."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from inferload.base.arrow import pa
from inferload.base.clock import Anchor
from inferload.turns.record import INSTANTS, SERVER_TIMES, TurnRecord


@dataclass(frozen=True, slots=True)
class Column:
    """Column of the turn files. `text`: its meaning, for docs/reference/turns.md."""

    name: str
    type: pa.DataType
    text: str


_TEXT, _INT, _SMALL, _FLOAT = pa.string(), pa.int64(), pa.int32(), pa.float64()

# Instants are null if the turn did not reach them.
TURN_COLUMNS = (
    Column("turn_id", _TEXT, "identity of the turn, such as `s7.2`: session 7, third turn"),
    Column("session_id", _TEXT, "identity of the session; of a sub-agent it has a `/`"),
    Column("turn_index", _SMALL, "number of the turn in its session, from 0"),
    Column("class", _TEXT, "class of the tables and gates: class of the mix, kind of workload, or name of the task"),
    Column("worker", _TEXT, "worker that sent the turn"),
    Column("phase", _TEXT, "`warmup`, `measure` or `drain`: the phase of `planned_ns`"),
    Column(
        "planned_ns", _INT, "when the turn was due: arrival of its session, or end of the previous turn plus the pause"
    ),
    Column("sent_ns", _INT, "just before the first byte of the (first) request, on a connected socket"),
    Column("written_ns", _INT, "the whole (last) request is handed to the kernel"),
    Column(
        "first_event_ns", _INT, "first event of the answer, of any kind; of an answer without a stream its first byte"
    ),
    Column("first_ns", _INT, "first event with output"),
    Column("first_visible_ns", _INT, "first event with visible text: no reasoning"),
    Column("last_ns", _INT, "last event with output; of an answer without a stream its last byte"),
    Column("closed_ns", _INT, "end of the reply, or of the wait for it"),
    Column("input_tokens", _INT, "prompt tokens, counted by the server"),
    Column("output_tokens", _INT, "tokens of the answer, counted by the server"),
    Column("hidden_tokens", _INT, "of these, those that were not streamed; null if their number is not known"),
    Column(
        "cached_tokens",
        _INT,
        "prompt tokens found in the server's prefix cache, if the server reports them; "
        "figures take 0 for the others if it names only hits",
    ),
    Column("texts", _INT, "texts of a request whose answer is no stream; of a rerank and a score the documents"),
    Column("connect_ns", _INT, "duration of DNS, TCP and TLS before `sent_ns`, if the turn opened a connection"),
    Column(
        "round_trip_ns",
        _INT,
        "smallest round trip of the (last) connection before the turn was sent, measured by the kernel",
    ),
    Column("event_ns", pa.list_(_INT), "each event with output: nanoseconds since `sent_ns`"),
    Column(
        "event_tokens",
        pa.list_(_SMALL),
        "tokens of each event in `event_ns`, if the server reports a running count, or by the texts if events have several",
    ),
    Column("client_delay_max_ns", _INT, "longest time between the arrival of data in the kernel and its read"),
    Column("attempts", _SMALL, "requests sent for this turn: 2 after a [retry](#retries), 0 without a connection"),
    Column("target", _TEXT, "server that the turn was sent to"),
    Column("server", _TEXT, "server that answered, by the header of `request.server_header`"),
    Column("model", _TEXT, "model of the request"),
    Column("max_tokens", _INT, "limit of the answer in the request"),
    Column("finish_reason", _TEXT, "the server's reason for the end; `cancelled` for a turn that its caller cancelled"),
    Column("request_id", _TEXT, "the server's identity of the request"),
    Column(
        "answer_digest", _TEXT, "digest of text, reasoning and tool calls of the answer, with `request.answer_digests`"
    ),
    Column("step", _SMALL, "step of the load profile, from 0"),
    Column("server_queue_ms", _FLOAT, "time in the server's queue, if the server reports it"),
    Column("server_ttft_ms", _FLOAT, "time to the first token without the queue, if the server reports it"),
    Column("server_generation_ms", _FLOAT, "time from the first token to the last, if the server reports it"),
    Column(
        "failure", _TEXT, "class of the failure; null for a turn that ended well; `unfinished` at the end of the drain"
    ),
    Column("status", _SMALL, "HTTP status"),
    Column(
        "pause", _TEXT, "kind of the pause before the turn: `think` or `tool`; null for the first turn of a session"
    ),
    Column("final", pa.bool_(), "the session ends with this answer"),
)

SCHEMA = pa.schema([(column.name, column.type) for column in TURN_COLUMNS])

_NUMBERS = (
    *INSTANTS,
    *("turn_index", "connect_ns", "round_trip_ns", "input_tokens", "output_tokens", "hidden_tokens", "cached_tokens"),
    "texts",
    *("client_delay_max_ns", "attempts", "max_tokens", "step", "status", "final"),
)
# Texts with few different values.
WORDS = ("class", "worker", "phase", "target", "server", "model", "finish_reason", "failure", "pause")
_numbers_of = attrgetter(*_NUMBERS)
_figures_of = attrgetter(*SERVER_TIMES)
_words_of = attrgetter("class_name", *WORDS[1:])
_IDS = ("turn_id", "session_id", "request_id", "answer_digest")
_ids_of = tuple(map(attrgetter, _IDS))
_EVENTS, _TOKENS = map(attrgetter, ("event_ns", "event_tokens"))

_NONE = -(2**63)  # represents None in the buffers of whole numbers


class TurnColumns:
    """Buffered turns of a part: flat arrays, which a thread can convert without the GIL."""

    def __init__(self) -> None:
        self._rows = 0
        self._numbers = array("q")
        self._figures = array("d")
        self._codes = array("i")
        self._known: tuple[dict[str, int], ...] = tuple({} for _ in WORDS)
        self._ids = tuple(_Texts() for _ in _IDS)
        self._events = _Lists("q")
        self._tokens = _Lists("i")
        self._latest: tuple[tuple[str | None, ...], list[int]] = ((), [])  # words of the latest turn, and their codes

    def __len__(self) -> int:
        return self._rows

    def append(self, turn: TurnRecord) -> None:
        self.extend((turn,))

    def extend(self, turns: Sequence[TurnRecord]) -> None:
        """Add several turns, at a lower cost per turn than `append`. If a number fits no column, none is added."""
        numbers = [number for turn in turns for number in _numbers_of(turn)]
        whole = array("q", [_NONE if number is None else number for number in numbers])
        figures = [figure for turn in turns for figure in _figures_of(turn)]
        self._figures.extend(array("d", [np.nan if figure is None else figure for figure in figures]))
        self._numbers.extend(whole)
        for turn in turns:
            words = _words_of(turn)
            if words != self._latest[0]:  # most turns have the words of the turn before
                known = zip(words, self._known, strict=True)
                indexes = [-1 if word is None else codes.setdefault(word, len(codes)) for word, codes in known]
                self._latest = words, indexes
            self._codes.extend(self._latest[1])
        for texts, get in zip(self._ids, _ids_of, strict=True):
            texts.extend([get(turn) for turn in turns])
        for lists, get in ((self._events, _EVENTS), (self._tokens, _TOKENS)):
            lists.extend([get(turn) for turn in turns])
        self._rows += len(turns)

    def arrays(self, anchor_mono_ns: int) -> dict[str, pa.Array]:
        """Return one array per column of SCHEMA. No turn may be appended afterwards."""
        numbers = np.frombuffer(self._numbers, dtype=np.int64).reshape(self._rows, len(_NUMBERS))
        arrays = {}
        for column, name in enumerate(_NUMBERS):
            values, missing = numbers[:, column].copy(), numbers[:, column] == _NONE
            if name in INSTANTS:
                values -= anchor_mono_ns
            values[missing] = 0
            kind = SCHEMA.field(name).type
            arrays[name] = pa.array(values.astype(bool) if pa.types.is_boolean(kind) else values, kind, mask=missing)
        figures = np.frombuffer(self._figures, dtype=np.float64).reshape(self._rows, len(SERVER_TIMES))
        for column, name in enumerate(SERVER_TIMES):
            arrays[name] = pa.array(figures[:, column].copy(), mask=np.isnan(figures[:, column]))
        codes = np.frombuffer(self._codes, dtype=np.int32).reshape(self._rows, len(WORDS))
        for column, (name, known) in enumerate(zip(WORDS, self._known, strict=True)):
            arrays[name] = _spelled(codes[:, column].copy(), list(known))
        for name, texts in zip(_IDS, self._ids, strict=True):
            arrays[name] = texts.to_array()
        arrays["event_ns"], arrays["event_tokens"] = self._events.to_array(), self._tokens.to_array()
        return arrays


class _Texts:
    """Text column in Arrow's layout, with nulls."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._ends = array("i", [0])
        self._missing = array("b")

    def extend(self, texts: Sequence[str | None]) -> None:
        for text in texts:
            if text is not None:
                self._bytes += text.encode("utf-8", "replace")
            self._ends.append(len(self._bytes))
            self._missing.append(text is None)

    def to_array(self) -> pa.Array:
        return _strings(np.frombuffer(self._missing, dtype=np.int8) == 0, self._ends, self._bytes)


class _Lists:
    """Column of lists of numbers, with nulls."""

    def __init__(self, code: str) -> None:
        self._flat = array(code)
        self._ends = array("i", [0])
        self._missing = array("b")

    def extend(self, lists: "Sequence[array[int] | None]") -> None:
        for values in lists:
            if values is not None:
                self._flat.extend(values)
            self._ends.append(len(self._flat))
            self._missing.append(values is None)

    def to_array(self) -> pa.Array:
        flat = pa.array(np.frombuffer(self._flat, dtype=np.dtype(self._flat.typecode)))
        known = pa.array(np.frombuffer(self._missing, dtype=np.int8) == 0)
        # ListArray.from_arrays imports computations for a mask.
        buffers = [known.buffers()[1], pa.py_buffer(self._ends)]
        return pa.Array.from_buffers(pa.list_(flat.type), len(known), buffers, children=[flat])


def _strings(known: npt.NDArray[np.bool_], ends: Any, text: Any) -> pa.Array:
    """Return a text column by its layout in Arrow: a mask, the ends of its texts (int32, the first of which is 0), all bytes."""
    buffers = [pa.array(known).buffers()[1], pa.py_buffer(ends), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(known), buffers)


def _spelled(codes: npt.NDArray[np.int32], words: Sequence[str]) -> pa.Array:
    """Return the words of codes, null for -1. Arrow's own decoding would import its modules of computations."""
    encoded = [*(word.encode("utf-8", "replace") for word in words), b""]  # the last one is that of -1
    lengths = np.array([len(word) for word in encoded], dtype=np.int32)[codes]
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return _strings(codes >= 0, ends, b"".join([encoded[code] for code in codes.tolist()]))


def to_table(columns: TurnColumns, anchor: Anchor, worker: str, run_id: str = "") -> pa.Table:
    """Return all turns as a table: instants relative to the anchor, and the anchor in the metadata."""
    arrays = columns.arrays(anchor.mono_ns)
    metadata = {
        b"worker": worker.encode(),
        b"run_id": run_id.encode(),
        b"anchor_wall_ns": str(anchor.wall_ns).encode(),
        b"anchor_mono_ns": str(anchor.mono_ns).encode(),
    }
    return pa.Table.from_arrays([arrays[name] for name in SCHEMA.names], schema=SCHEMA.with_metadata(metadata))
