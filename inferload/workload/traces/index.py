"""Index of the sessions of a trace: one pass over its files, then random access to the lines of a session."""

import codecs
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from msgspec import MsgspecError, Struct, field

from inferload.base.errors import UsageError
from inferload.base.numbers import exact, plural
from inferload.workload.grouped import Grouped
from inferload.workload.json_values import JsonFault, Record
from inferload.workload.traces.files import JSON, TABLES, TraceFile, TraceFiles, json_records, lines
from inferload.workload.traces.formats import Format
from inferload.workload.traces.turn import Parser, RecordedTurn, TraceFault

T = TypeVar("T")


class TimeWindow(Struct, frozen=True):
    """Window of session start times, in seconds since the trace's first time. `to_s` None: no end."""

    from_s: float = 0.0
    to_s: float | None = None

    def holds(self, at_s: float) -> bool:
        """Return whether a session with this start time is in the window."""
        return self.from_s <= at_s and (self.to_s is None or at_s < self.to_s)


_FAULTS = (TraceFault, ValueError, KeyError, AttributeError, TypeError, ArithmeticError, RecursionError, MsgspecError)
_OUTSIDE = "of sessions that begin outside the window"
_EMPTY = "without a prompt or an answer"
_NO_PARENT = "no parent"
_BRANCH = "branch"
_POSITION = 3  # numbers of the position of a turn: offset of the record, its bytes, number of the turn in it


class _IndexedSession(Struct):
    """Session while it is read. `turns`: for records that are a whole session, its turns without their blocks."""

    begins_s: float = 0.0
    positions: "array[int]" = field(default_factory=lambda: array("q"))
    turns: list[RecordedTurn] = field(default_factory=list)


class TraceIndex:
    """Sessions of a trace, sorted by start time. UsageError names file and line of a malformed record.

    `join_turns` False: each turn is a session.
    """

    def __init__(
        self, path: Path, name: str, trace_format: Format, window: TimeWindow, join_turns: bool = True
    ) -> None:
        self.path, self.format, self._joined = path, trace_format, join_turns
        self.left_out: Counter[str] = Counter()  # turns, by reason
        self.turns = 0
        self.out_of_order = 0  # turns before their predecessor, in formats that allow it
        self.of_agents = False  # some turn belongs to a sub-agent or follows a tool: sessions are tasks
        self._observed: Counter[str] = Counter()
        self._window = window
        self._sessions: list[_IndexedSession] = []
        self._by_name: dict[str, _IndexedSession | None] = {}  # None: starts outside the window
        self._followed: set[str] = set()  # parents of a turn
        self._first_s: float | None = None
        self._last_s = 0.0
        self._files = TraceFiles(path, name, JSON if trace_format.with_header is None else TABLES)
        self._bases: list[int] = []
        self._parsers: list[Parser | None] = []  # of the files
        for file in self._files.files:
            with self._files.open(file) as opened:
                (self._read if self.format.nested is None else self._read_nested)(file, opened)
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
        if self.format.nested is not None:
            return self._turns[index]
        turns: list[RecordedTurn] = []
        current, of_line = -1, turns
        for offset, length, number in self._positions[index]:
            if offset != current:
                current, of_line = offset, self._line(offset, length)
            turns.append(of_line[number])
        return sorted(turns, key=lambda turn: turn.at_s)

    def _line(self, offset: int, length: int) -> list[RecordedTurn]:
        """Return the turns of a record."""
        parser = self._parsers[bisect_right(self._bases, offset) - 1]
        assert parser is not None
        return list(parser(self._files.read(offset, length).decode()))

    def lines_of(self, index: int) -> int:
        """Return the number of lines to read for a session; 0 if it has been read with the index."""
        return len(self._positions[index])

    def whole(self, turn: RecordedTurn) -> RecordedTurn:
        """Return a turn with its blocks."""
        if turn.where is None or self.format.nested is None:
            return turn
        return self.format.nested.whole(self._files.read(*turn.where).decode(), turn)

    def in_words(self) -> list[str]:
        """Return lines of the plan on what was found in the files, beside the numbers of turns and sessions."""
        found = self._observed
        lines = [] if self.format.nested is None else self.format.nested.in_words(found)
        if orphans := found[_NO_PARENT]:
            lines.append(f"{plural(orphans, 'turn')} whose parent is not in the file: each begins a session")
        if branches := found[_BRANCH]:
            lines.append(
                f"{plural(branches, 'turn')} with the parent of an earlier one (branches): sent in order of time"
            )
        if not self.format.published:
            lines.append(f"format {self.format.name} is untested: no published file of it was read; check the numbers")
        return lines

    def _read(self, file: TraceFile, opened: BinaryIO) -> None:
        parser, first_line = self._header(file, opened)
        self._bases.append(file.base)
        self._parsers.append(parser)
        begins, records = (opened.tell(), lines) if first_line > 1 else (0, json_records)
        parsed = self._parsed(file, records(opened), first_line, lambda record: list(parser(record.text.decode())))
        for number, record, turns in parsed:
            position = file.base + begins + record.offset, len(record.text)
            for part, turn in enumerate(turns):
                self._in_order(file, number, turn.at_s)
                self._add(turn, (*position, part))
            if self._is_past():
                return

    def _parsed(
        self, file: TraceFile, records: Iterator[Record], first_line: int, parse: Callable[[Record], T]
    ) -> Iterator[tuple[int, Record, T]]:
        """Yield (line, record, what it contains) of a file."""
        number = first_line
        try:
            for record in records:
                number = record.line + first_line - 1
                yield number, record, parse(record)
        except JsonFault as fault:
            raise self._fault(file, fault.line, TraceFault(f"not JSON: {fault}")) from None
        except _FAULTS as fault:
            raise self._fault(file, number, fault) from None

    def _header(self, file: TraceFile, opened: BinaryIO) -> tuple[Parser, int]:
        """Return the parser of a file and the number of its first line after a header."""
        if self.format.parser is not None:
            return self.format.parser, 1
        assert self.format.with_header is not None
        try:
            return self.format.with_header(opened.readline().removeprefix(codecs.BOM_UTF8).decode()), 2
        except (TraceFault, UnicodeDecodeError) as fault:
            raise self._fault(file, 1, fault) from None

    def _read_nested(self, file: TraceFile, opened: BinaryIO) -> None:
        """Read a file whose records are whole sessions."""
        nested = self.format.nested
        assert nested is not None
        read = self._parsed(
            file, json_records(opened), 1, lambda record: nested.session(record.text, file.base + record.offset)
        )
        sessions = [session for _number, _record, session in read]
        placed = nested.place(sessions)
        self._observed += nested.observed(placed, sessions)
        for session, turns in zip(sessions, placed.sessions, strict=True):
            for kind, count in session.no_requests.items():
                self.left_out[f"without `in`, of type {kind}: not a request"] += count
            sent = [turn for turn in turns if turn.input_tokens and turn.output_tokens]
            self.left_out[_EMPTY] += len(turns) - len(sent)
            self.turns += len(sent)
            self.of_agents = self.of_agents or any(turn.agent or turn.after == "tool" for turn in sent)
            if sent:
                self._sessions.append(_IndexedSession(turns=sent))
        self.left_out = +self.left_out

    def _in_order(self, file: TraceFile, number: int, at_s: float) -> None:
        self._first_s = at_s if self._first_s is None else self._first_s
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
            session.begins_s = min(session.begins_s, turn.at_s)
        else:
            session.begins_s = turn.at_s
            self._sessions.append(session)
        session.positions.extend(position)
        self.turns += 1
        self.of_agents = self.of_agents or turn.after == "tool"

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
        assert self._first_s is not None
        outside = self.format.ordered and not self._window.holds(turn.at_s - self._first_s)
        return None if outside else _IndexedSession()

    def _finish(self) -> None:
        """Sort the sessions. In a format without order, the first start time is known only now."""
        first_s = self._first_s or 0.0
        if self.format.timed and not self.format.ordered:
            first_s = min((session.begins_s for session in self._sessions), default=0.0)
            self._sessions = [session for session in self._sessions if self._in_window(session, first_s)]
        self._start_s = first_s + self._window.from_s if self.format.timed else 0.0
        self._sessions.sort(key=lambda session: session.begins_s)
        self._begins_s = [session.begins_s for session in self._sessions]
        self._turns = [session.turns for session in self._sessions if session.turns]
        self._positions = Grouped.of((session.positions for session in self._sessions), _POSITION)
        del self._sessions, self._by_name, self._followed

    def _in_window(self, session: _IndexedSession, first_s: float) -> bool:
        """Return whether a session starts in the window, and count its turns as left out otherwise."""
        if self._window.holds(session.begins_s - first_s):
            return True
        self.turns -= len(session.positions) // _POSITION
        self.left_out[_OUTSIDE] += len(session.positions) // _POSITION
        return False

    def _is_past(self) -> bool:
        """Return whether no later line can belong to the window."""
        to_s = self._window.to_s
        if to_s is None or not self.format.ordered or self.format.sessions:
            return False
        return self._last_s - (self._first_s or 0.0) >= to_s

    def _fault(self, file: TraceFile, number: int, fault: Exception) -> UsageError:
        known = "not UTF-8" if isinstance(fault, UnicodeDecodeError) else "not in this format"
        text = fault.text if isinstance(fault, TraceFault) else known
        return UsageError(f"{file.name}:{number}: {text} (format: {self.format.name})")
