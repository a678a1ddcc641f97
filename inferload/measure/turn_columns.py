"""Column buffers of turn records, and their conversion into an Arrow table."""

from array import array
from collections.abc import Sequence
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from inferload.measure.arrow import pa
from inferload.measure.clock import Anchor
from inferload.measure.record import INSTANTS, SERVER_TIMES, TurnRecord

SCHEMA = pa.schema(
    [
        ("turn_id", pa.string()),
        ("session_id", pa.string()),
        ("turn_index", pa.int32()),
        ("class", pa.string()),
        ("worker", pa.string()),
        ("phase", pa.string()),
        ("planned_ns", pa.int64()),
        ("sent_ns", pa.int64()),
        ("written_ns", pa.int64()),
        ("first_event_ns", pa.int64()),
        ("first_ns", pa.int64()),
        ("first_visible_ns", pa.int64()),
        ("last_ns", pa.int64()),
        ("closed_ns", pa.int64()),
        ("input_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("connect_ns", pa.int64()),
        ("event_ns", pa.list_(pa.int64())),
        ("event_tokens", pa.list_(pa.int32())),
        ("client_delay_max_ns", pa.int64()),
        ("attempts", pa.int32()),
        ("target", pa.string()),
        ("model", pa.string()),
        ("max_tokens", pa.int64()),
        ("finish_reason", pa.string()),
        ("request_id", pa.string()),
        ("step", pa.int32()),
        ("server_queue_ms", pa.float64()),
        ("server_ttft_ms", pa.float64()),
        ("server_generation_ms", pa.float64()),
        ("failure", pa.string()),
        ("status", pa.int32()),
        ("pause", pa.string()),
        ("final", pa.bool_()),
        ("block_hashes", pa.list_(pa.int64())),
    ]
)

_NUMBERS = (
    *INSTANTS,
    "turn_index",
    "connect_ns",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "client_delay_max_ns",
    "attempts",
    "max_tokens",
    "step",
    "status",
    "final",
)
_WORDS = ("class", "worker", "phase", "target", "model", "finish_reason", "failure", "pause")
_numbers_of = attrgetter(*_NUMBERS)
_figures_of = attrgetter(*SERVER_TIMES)
_words_of = attrgetter("class_name", *_WORDS[1:])
_IDS = tuple(map(attrgetter, ("turn_id", "session_id", "request_id")))
_EVENTS, _TOKENS, _HASHES = map(attrgetter, ("event_ns", "event_tokens", "block_hashes"))

_NONE = -(2**63)  # represents None in the buffers of whole numbers


class TurnColumns:
    """Buffered turns of a part: flat arrays, which a thread can convert without the GIL."""

    def __init__(self) -> None:
        self._rows = 0
        self._numbers = array("q")
        self._figures = array("d")
        self._codes = array("i")
        self._known: tuple[dict[str, int], ...] = tuple({} for _ in _WORDS)
        self._ids = (_Texts(), _Texts(), _Texts())  # turn, session, request
        self._events = _Lists("q")
        self._tokens = _Lists("i")
        self._hashes = _Lists("q")
        self._latest: tuple[tuple[str | None, ...], list[int]] = ((), [])  # words of the latest turn, and their codes

    def __len__(self) -> int:
        return self._rows

    def append(self, turn: TurnRecord) -> None:
        """Add one turn."""
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
                self._latest = (
                    words,
                    [-1 if word is None else codes.setdefault(word, len(codes)) for word, codes in known],
                )
            self._codes.extend(self._latest[1])
        for texts, get in zip(self._ids, _IDS, strict=True):
            texts.extend([get(turn) for turn in turns])
        for lists, get in ((self._events, _EVENTS), (self._tokens, _TOKENS), (self._hashes, _HASHES)):
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
            arrays[name] = pa.array(values, mask=missing).cast(SCHEMA.field(name).type)
        figures = np.frombuffer(self._figures, dtype=np.float64).reshape(self._rows, len(SERVER_TIMES))
        for column, name in enumerate(SERVER_TIMES):
            arrays[name] = pa.array(figures[:, column].copy(), mask=np.isnan(figures[:, column]))
        codes = np.frombuffer(self._codes, dtype=np.int32).reshape(self._rows, len(_WORDS))
        for column, (name, known) in enumerate(zip(_WORDS, self._known, strict=True)):
            arrays[name] = _spelled(codes[:, column].copy(), list(known))
        for name, texts in zip(("turn_id", "session_id", "request_id"), self._ids, strict=True):
            arrays[name] = texts.to_array()
        arrays["event_ns"], arrays["event_tokens"] = self._events.to_array(), self._tokens.to_array()
        arrays["block_hashes"] = self._hashes.to_array()
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
        validity = pa.array(np.frombuffer(self._missing, dtype=np.int8) == 0).buffers()[1]
        buffers = [validity, pa.py_buffer(self._ends), pa.py_buffer(self._bytes)]
        return pa.Array.from_buffers(pa.string(), len(self._missing), buffers)


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
        flat = np.frombuffer(self._flat, dtype=np.dtype(self._flat.typecode))
        missing = pa.array(np.frombuffer(self._missing, dtype=np.int8) != 0)
        ends = pa.array(np.frombuffer(self._ends, dtype=np.int32))
        return pa.ListArray.from_arrays(ends, pa.array(flat), mask=missing)


def _spelled(codes: npt.NDArray[np.int32], words: Sequence[str]) -> pa.Array:
    missing = codes < 0
    codes[missing] = 0
    numbers = pa.array(codes, mask=missing)
    return pa.DictionaryArray.from_arrays(numbers, pa.array(words or [""], pa.string())).dictionary_decode()


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
