"""Index of the sessions of a trace: one pass over its files, then random access to the lines of a session."""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from msgspec import MsgspecError, Struct, field

from inferload.base.errors import UsageError
from inferload.base.escaping import escaped
from inferload.base.numbers import exact, plural
from inferload.base.status_lines import progress
from inferload.scenario.schema.replay import TraceWindow
from inferload.workload.grouped import Grouped
from inferload.workload.json_values import Record, RecordFault
from inferload.workload.tables import TableFault, columns_of, row_of, rows
from inferload.workload.traces import weka
from inferload.workload.traces.files import JSON, TABLES, TraceFile, TraceFiles, json_records
from inferload.workload.traces.formats import Format
from inferload.workload.traces.turn import (
    Missing,
    RecordedTurn,
    TraceFault,
    completed,
    ended_s,
    json_object,
    json_value,
)

T = TypeVar("T")
_FAULTS = (TraceFault, ValueError, KeyError, AttributeError, TypeError, ArithmeticError, RecursionError, MsgspecError)
_OUTSIDE = "of sessions that begin outside the window"
_EMPTY = "without a prompt or an answer"
_UNTIMED = "of sessions without a start time, which others have"
_NO_PARENT, _BRANCH, _OVERLAP = "turn without parent", "turn of a branch", "turn that overlaps"
_BESIDE, _BACKWARD, _IMAGES = "turn beside", "turn backward", "image"
PICTURES = 64  # different ones: to draw each anew would delay streams
_OBSERVED = {  # lines of the plan, by what is counted
    _NO_PARENT: "{} whose parent is not in the file: each begins a session",
    _BRANCH: "{} with the parent of an earlier one (branches): sent in order of time",
    _OVERLAP: "{} began before the answer before had ended: sent after it",
    _BESIDE: "{} began before the answer before had ended: sent beside it, as of another agent",
    _BACKWARD: "{} with an end before the start: the end is not used",
    _IMAGES: f"{{}}, each one of {PICTURES} that servers may cache, whose tokens are not in the planned lengths",
}
_EXPECTED = (_EMPTY, _OUTSIDE, "not a request")
_LATEST_S, _LONGEST_S = 1e11, 1e9  # times since 1970, and from the first request, are shorter
_MOST_KEYS, _LONGEST_KEY = 32, 48  # of keys that are not used, in the line about them
_POSITION = 3  # numbers of the position of a turn: offset of the record, its bytes, number of the turn in it


class _IndexedSession(Struct, gc=False):
    """Session while it is read. `turns`: for records that are a whole session, its turns without their blocks."""

    begins_s: float = 0.0
    ends_s: float = 0.0  # of the answers so far
    timed: bool = True  # its start is
    positions: "array[int]" = field(default_factory=lambda: array("q"))
    turns: list[RecordedTurn] = field(default_factory=list)


class TraceIndex:
    """Sessions of a trace, sorted by start time. UsageError names file and line of a malformed record.

    `join_turns` False: each turn is a session.
    """

    def __init__(
        self, path: Path, name: str, trace_format: Format, window: TraceWindow, join_turns: bool = True
    ) -> None:
        self.path, self.format, self._joined = path, trace_format, join_turns
        self.left_out: Counter[str] = Counter()  # turns, by reason
        self.turns = 0
        self.out_of_order = 0  # turns before their predecessor, in formats that allow it
        self.of_agents = False  # some turn belongs to a sub-agent or follows a tool: sessions are tasks
        self.timed = trace_format.timed
        self.unused: Counter[str] = Counter()  # records, by key that may change the load
        self._observed: Counter[str] = Counter()
        self._window, self._is_whole = window, window == TraceWindow()
        self._sessions: list[_IndexedSession] = []
        self._by_name: dict[str, _IndexedSession | None] = {}  # None: starts outside the window
        self._followed: set[str] = set()  # parents of a turn
        self._first_s: float | None = None
        self._last_s = 0.0
        self._files = TraceFiles(path, name, JSON if trace_format.columns is None else TABLES)
        self._bases: list[int] = []
        self._decoders: list[Callable[[bytes], Any]] = []  # of the records of the files
        for file in self._files.files:
            with self._files.open(file) as opened:
                (self._read_nested if self.format.parser is None else self._read)(file, opened)
            if self._is_past():
                break
        self._finish()
        if not self._begins_s:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.left_out.items())
            raise UsageError(f"{name}: no session to replay: {reasons or 'no line contains a request'}")
        self.digest = self._files.digest

    def __len__(self) -> int:
        return len(self._begins_s)

    @property
    def files(self) -> int:
        """Number of files."""
        return len(self._files.files)

    def arrivals_s(self) -> Iterator[float]:
        """Return the start times of the sessions, in seconds since the start of the window."""
        return (begins_s - self._start_s for begins_s in self._begins_s)

    def session(self, index: int) -> list[RecordedTurn]:
        """Return the turns of a session sorted by time. Turns with `where` have no blocks yet: see `whole`."""
        if self.format.parser is None:
            return self._turns[index]
        turns: list[RecordedTurn] = []
        current, of_line = -1, list[Any]()
        for offset, length, number in self._positions[index]:
            if offset != current:
                current, of_line = offset, self._line(offset, length)
            turns.append(of_line[number])
        turns = completed(turns)
        return weka.beside(turns) if self.format.beside else turns

    def _line(self, offset: int, length: int) -> list[Any]:
        """Return the turns of a record, and the reasons why others are left out."""
        assert self.format.parser is not None
        decode = self._decoders[bisect_right(self._bases, offset) - 1]
        return list(self.format.parser(decode(self._files.read(offset, length))))

    def lines_of(self, index: int) -> int:
        """Return the number of lines to read for a session; 0 if it has been read with the index."""
        return len(self._positions[index])

    def whole(self, turn: RecordedTurn) -> RecordedTurn:
        """Return a turn with its blocks."""
        return turn if turn.where is None else weka.weka_whole(self._files.read(*turn.where), turn)

    def in_words(self) -> list[str]:
        """Return lines of the plan on what was found in the files, beside the numbers of turns and sessions."""
        found = self._observed
        lines = weka.in_words(found)
        lines += [text.format(plural(found[what], what.split()[0])) for what, text in _OBSERVED.items() if found[what]]
        if not self.format.published:
            lines.append(f"format {self.format.name} is untested: no published file of it was read; check the numbers")
        return lines

    def losses(self, expected: bool = True) -> list[str]:
        """Return lines on what the records have and the load has not. `expected` False: without what published files have too."""
        lost = [(why, count) for why, count in sorted(self.left_out.items()) if expected or not why.endswith(_EXPECTED)]
        lines = [f"left out: {plural(count, 'turn')} {why}" for why, count in lost]
        if self.unused:
            named = self.unused.most_common(_MOST_KEYS)
            text = ", ".join(f"{escaped(key[:_LONGEST_KEY])} ({plural(count, 'record')})" for key, count in named)
            lines.append(f"not used, though they may change the load: {text}")
        return lines

    def _read(self, file: TraceFile, opened: BinaryIO) -> None:
        records = json_records(opened) if self.format.columns is None else rows(opened)
        decode = self._decoder(file, records)
        self._bases.append(file.base)
        self._decoders.append(decode)
        for record, turns in self._parsed(file, records, partial(self._turns_of, decode)):
            position = file.base + record.offset, len(record.text)
            for part, turn in enumerate(turns):
                if isinstance(turn, str):
                    self.left_out[turn] += 1
                    continue
                if turn.timed:
                    self._in_order(file, record.line, turn.at_s)
                self._add(turn, (*position, part))
            if self._is_past():
                return

    def _parsed(
        self, file: TraceFile, records: Iterator[Record], parse: Callable[[Record], T]
    ) -> Iterator[tuple[Record, T]]:
        """Yield the records of a file and what they contain."""
        line = 1
        try:
            for record in progress.of(records, f"reading {file.name}", file.size, lambda read: read.offset):
                line = record.line
                yield record, parse(record)
        except RecordFault as fault:
            kind = "not JSON: " if self.format.columns is None else ""
            raise self._fault(file, fault.line, TraceFault(f"{kind}{fault}")) from None
        except _FAULTS as fault:
            raise self._fault(file, line, fault) from None

    def _turns_of(self, decode: Callable[[bytes], Any], record: Record) -> Iterable[RecordedTurn | str]:
        """Return the turns of a record and the reasons why others are left out, and count its keys that are not used."""
        assert self.format.parser is not None
        value = decode(record.text)
        if keys := self.format.unused(value):
            self.unused.update(keys)
        try:
            return list(self.format.parser(value))
        except Missing as missing:
            return [missing.text]

    def _decoder(self, file: TraceFile, records: Iterator[Record]) -> Callable[[bytes], Any]:
        """Return the decoder of the records of a file, after the header of a table."""
        if (required := self.format.columns) is None:
            return json_value if self.format.lists else json_object
        names = next((names for _, names in self._parsed(file, records, lambda header: columns_of(header.text))), [])
        if missing := ", ".join(name for name in required if name not in names):
            raise self._fault(
                file, 1, TraceFault(f"the columns are {', '.join(names) or 'none'}; {missing} is missing")
            )
        return partial(row_of, names)

    def _read_nested(self, file: TraceFile, opened: BinaryIO) -> None:
        """Read a file whose records are whole sessions."""
        parsed = self._parsed(
            file, json_records(opened), lambda record: weka.weka(record.text, file.base + record.offset)
        )
        sessions = [session for _record, session in parsed]
        placed, counts = weka.place(sessions)
        self._observed += counts
        for session, turns in zip(sessions, placed, strict=True):
            self.unused += session.unused
            self.left_out += session.left_out
            sent = [turn for turn in turns if turn.input_tokens and turn.output_tokens]
            self.left_out[_EMPTY] += len(turns) - len(sent)
            self.turns += len(sent)
            self.of_agents = self.of_agents or any(turn.agent or turn.after == "tool" for turn in sent)
            if sent:
                self._sessions.append(_IndexedSession(turns=sent))
        self.left_out = +self.left_out

    def _in_order(self, file: TraceFile, number: int, at_s: float) -> None:
        self._first_s = at_s if self._first_s is None else self._first_s
        if not (at_s < _LATEST_S and abs(at_s - self._first_s) < _LONGEST_S):
            text = f"time {exact(at_s)} s, after {exact(self._first_s)} s; is it in another unit?"
            raise self._fault(file, number, TraceFault(text))
        if at_s < self._last_s:
            if self.format.ordered:
                text = f"time {exact(at_s)} s is before {exact(self._last_s)} s of an earlier request; sort the file by time"
                raise self._fault(file, number, TraceFault(text))
            self.out_of_order += 1
        self._last_s = at_s

    def _add(self, turn: RecordedTurn, position: tuple[int, int, int]) -> None:
        """Add a turn to its session, to that of its parent, or to a new one."""
        session = self._session_of(turn)
        if not turn.input_tokens or not turn.output_tokens:
            self.left_out[_EMPTY] += 1
            return
        if session is None:
            self.left_out[_OUTSIDE] += 1
            return
        if session.positions:
            session.begins_s = min(session.begins_s, turn.at_s) if turn.timed else session.begins_s
            if turn.timed and turn.at_s < session.ends_s:
                self._observed[_BESIDE if self.format.beside else _OVERLAP] += 1
        else:
            session.begins_s, session.timed = turn.at_s, turn.timed
            self._sessions.append(session)
        session.ends_s = max(session.ends_s, ended_s(turn))
        if turn.ends_s is not None and turn.ends_s < turn.at_s:
            self._observed[_BACKWARD] += 1
        if turn.images:
            self._observed[_IMAGES] += turn.images
        session.positions.extend(position)
        self.turns += 1
        self.of_agents = self.of_agents or turn.after == "tool" or turn.calls

    def _session_of(self, turn: RecordedTurn) -> _IndexedSession | None:
        """Return the session of a turn; None if it starts outside the window."""
        known = self._by_name
        if not self._joined:
            return self._new_session(turn)
        if turn.parent is not None:
            if turn.parent in known:
                self._observed[_BRANCH] += turn.parent in self._followed
                self._followed.add(turn.parent)
                session = known[turn.parent]
                if turn.session is not None:
                    known.setdefault(turn.session, session)
                return session
            self._observed[_NO_PARENT] += 1
        if turn.session in known:
            return known[turn.session]
        session = self._new_session(turn)
        if turn.session is not None:
            known[turn.session] = session
        return session

    def _new_session(self, turn: RecordedTurn) -> _IndexedSession | None:
        if not self.format.ordered or self._is_whole:
            return _IndexedSession()
        return _IndexedSession() if turn.timed and self._window.holds(turn.at_s - (self._first_s or 0.0)) else None

    def _finish(self) -> None:
        """Sort the sessions. In a format without order, the first start time is known only now.

        Sessions without a start time are left out if others have one; if none has, the trace is not timed.
        """
        self.timed = self.timed and any(session.timed for session in self._sessions)
        first_s = self._first_s or 0.0
        if self.timed:
            self._keep(lambda session: session.timed, _UNTIMED)
        if self.timed and not self.format.ordered:
            first_s = min((session.begins_s for session in self._sessions), default=0.0)
            self._keep(lambda session: self._window.holds(session.begins_s - first_s), _OUTSIDE)
        self._start_s = first_s + self._window.from_s if self.timed else 0.0
        self._sessions.sort(key=lambda session: session.begins_s)
        self._begins_s = [session.begins_s for session in self._sessions]
        self._turns = [session.turns for session in self._sessions if session.turns]
        self._positions = Grouped.of((session.positions for session in self._sessions), _POSITION)
        del self._sessions, self._by_name, self._followed

    def _keep(self, holds: Callable[[_IndexedSession], bool], otherwise: str) -> None:
        """Keep the sessions for which `holds` is true, and count the turns of the others as left out."""
        if turns := sum(len(each.positions) // _POSITION for each in self._sessions if not holds(each)):
            self.turns -= turns
            self.left_out[otherwise] += turns
            self._sessions = list(filter(holds, self._sessions))

    def _is_past(self) -> bool:
        """Return whether no later line can belong to the window."""
        to_s = self._window.to_s
        if to_s is None or not self.format.ordered or self._by_name:
            return False
        return self._last_s - (self._first_s or 0.0) >= to_s

    def _fault(self, file: TraceFile, number: int, fault: Exception) -> UsageError:
        known = "not UTF-8" if isinstance(fault, UnicodeDecodeError) else "not in this format"
        text = str(fault) if isinstance(fault, (TraceFault, TableFault)) else known
        return UsageError(f"{file.name}:{number}: {text} (format: {self.format.name})")
