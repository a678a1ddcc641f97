"""Index of the sessions of a trace file: one pass over the file, then random access to the lines of a session."""

import os
import weakref
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec.structs import replace

from inferload.errors import UsageError
from inferload.numbers import exact
from inferload.scenario.files.data_files import sha256_of
from inferload.workload.traces.formats import Format
from inferload.workload.traces.turn import Parser, RecordedTurn, TraceFault


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Window of session start times, in seconds since the trace's first time. `to_s` None: no end."""

    from_s: float = 0.0
    to_s: float | None = None

    def holds(self, at_s: float) -> bool:
        """Return whether a session with this start time is in the window."""
        return self.from_s <= at_s and (self.to_s is None or at_s < self.to_s)


_OUTSIDE = "of sessions that begin outside the window"
_POSITION = 3  # numbers of the position of a turn


@dataclass(slots=True)
class _IndexedSession:
    """Positions of a session's turns: offset of the line, its bytes, number of the turn in it, one after the other.

    `turns`: for lines that are a whole session, its turns without their blocks.
    """

    begins_s: float
    positions: "array[int]" = field(default_factory=lambda: array("q"))
    turns: list[RecordedTurn] = field(default_factory=list)


class TraceIndex:
    """Sessions of a trace, sorted by start time. UsageError names file and line of a malformed record."""

    def __init__(self, path: Path, name: str, trace_format: Format, window: TimeWindow) -> None:
        self.path, self.format = path, trace_format
        self.left_out: Counter[str] = Counter()  # turns, by reason
        self.turns = 0
        self.out_of_order = 0  # turns before their predecessor, in formats that allow it
        self.of_agents = False  # some turn belongs to a sub-agent or follows a tool: sessions are tasks
        self._name, self._window = name, window
        self._sessions: list[_IndexedSession] = []
        self._start_s = 0.0
        with path.open("rb") as file:
            if file.read(2) == b"\x1f\x8b":
                raise UsageError(f"{name}: is compressed; run gunzip {name}")
            file.seek(0)
            self._parser, self._first_line = self._header(file)
            self._read(file)
        if not self._sessions:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.left_out.items())
            raise UsageError(f"{name}: no session to replay: {reasons or 'no line contains a request'}")
        self.digest = sha256_of(path)

    def __len__(self) -> int:
        return len(self._sessions)

    def arrivals_s(self) -> Iterator[float]:
        """Return the start times of the sessions, in seconds since the start of the window."""
        begins_s = self._start_s
        return (session.begins_s - begins_s for session in self._sessions)

    def session(self, index: int) -> list[RecordedTurn]:
        """Return the turns of a session sorted by time. Turns with `where` have no blocks yet: see `whole`."""
        session = self._sessions[index]
        positions = session.positions
        if len(positions) == _POSITION:  # one request, as in most traces
            offset, length, number = positions
            return [self._line(offset, length)[number]]
        if self.format.nested is not None:
            return session.turns
        turns: list[RecordedTurn] = []
        current, of_line = -1, turns
        columns = (positions[column::_POSITION] for column in range(_POSITION))
        for offset, length, number in zip(*columns, strict=True):
            if offset != current:
                current, of_line = offset, self._line(offset, length)
            turns.append(of_line[number])
        return sorted(turns, key=_at_s)

    def _line(self, offset: int, length: int) -> list[RecordedTurn]:
        """Return the turns of a line."""
        return list(self._parser(os.pread(self._file, length, offset).decode("utf-8" if offset else "utf-8-sig")))

    @cached_property
    def _file(self) -> int:
        """Descriptor of the file, for reads at any position from any thread. Closed with this object."""
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, file)
        return file

    def lines_of(self, index: int) -> int:
        """Return the number of lines to read for a session; 0 if it has been read with the index."""
        return len(self._sessions[index].positions) // _POSITION

    def whole(self, turn: RecordedTurn) -> RecordedTurn:
        """Return a turn with its blocks."""
        if turn.where is None or self.format.nested is None:
            return turn
        offset, length = turn.where
        return self.format.nested.whole(os.pread(self._file, length, offset).decode(), turn)

    def _header(self, file: BinaryIO) -> tuple[Parser, int]:
        if self.format.parser is not None:
            return self.format.parser, 1
        assert self.format.with_header is not None
        try:
            return self.format.with_header(file.readline().decode("utf-8-sig")), 2
        except (TraceFault, UnicodeDecodeError) as fault:
            raise self._fault(1, fault) from None

    def _read(self, file: BinaryIO) -> None:
        by_name: dict[str, _IndexedSession | None] = {}
        first_s: float | None = None
        last_s = 0.0
        offset = file.tell()
        for number, raw in enumerate(file, self._first_line):
            start, offset = offset, offset + len(raw)
            if not raw.strip():
                continue
            for part, turn in enumerate(self._turns(raw, number, start)):
                first_s = turn.at_s if first_s is None else first_s
                if turn.at_s < last_s:
                    self._check_order(number, turn.at_s, last_s)
                last_s = turn.at_s if not self.format.nested else 0.0
                if not turn.input_tokens or not turn.output_tokens:
                    self.left_out["without a prompt or an answer"] += 1
                    continue
                self._add(turn, (start, len(raw), part), by_name, first_s)
            if self._past(last_s, first_s):
                break
        if self.format.timed and not self.format.ordered:  # the first start time is known only now
            first_s = min((session.begins_s for session in self._sessions), default=0.0)
            self._sessions = [session for session in self._sessions if self._in_window(session, first_s)]
        self._start_s = (first_s or 0.0) + self._window.from_s if self.format.timed else 0.0
        self._sessions.sort(key=lambda session: session.begins_s)

    def _add(
        self,
        turn: RecordedTurn,
        position: tuple[int, int, int],
        by_name: dict[str, _IndexedSession | None],
        first_s: float,
    ) -> None:
        """Add a turn to its session or to a new one. In `by_name`, sessions that start outside the window are None."""
        session = by_name.get(turn.session) if turn.session is not None else None
        if session is None:
            outside = self.format.ordered and not self._window.holds(turn.at_s - first_s)
            if outside or turn.session in by_name:
                self.left_out[_OUTSIDE] += 1
                if turn.session is not None:
                    by_name[turn.session] = None
                return
            session = _IndexedSession(turn.at_s if self.format.timed else 0.0)
            self._sessions.append(session)
            if turn.session is not None:
                by_name[turn.session] = session
        elif self.format.timed:
            session.begins_s = min(session.begins_s, turn.at_s)
        if self.format.nested is not None:
            session.turns.append(turn)
        else:
            session.positions.extend(position)
        self.turns += 1
        self.of_agents = self.of_agents or bool(turn.agent) or turn.after == "tool"

    def _in_window(self, session: _IndexedSession, first_s: float) -> bool:
        """Return whether a session starts in the window, and count its turns as left out otherwise."""
        inside = self._window.holds(session.begins_s - first_s)
        if not inside:
            self.turns -= len(session.positions) // _POSITION
            self.left_out[_OUTSIDE] += len(session.positions) // _POSITION
        return inside

    def _turns(self, raw: bytes, number: int, start: int) -> list[RecordedTurn]:
        """Return the turns of a line; for a line that is a whole session, with their positions instead of their blocks."""
        try:
            turns = list(self._parser(raw.decode("utf-8-sig" if number == 1 else "utf-8")))
            if self.format.nested is None:
                return turns
            return [
                replace(turn, blocks=None, where=None if turn.blocks is None else (start + offset, length))
                for turn, (offset, length) in zip(turns, self.format.nested.spans(raw), strict=True)
            ]
        except (TraceFault, ValueError, KeyError, AttributeError, TypeError, ArithmeticError, RecursionError) as fault:
            raise self._fault(number, fault) from None
        except msgspec.MsgspecError as fault:
            raise self._fault(number, fault) from None

    def _check_order(self, number: int, at_s: float, last_s: float) -> None:
        if self.format.ordered:
            text = f"time {exact(at_s)} s is before {exact(last_s)} s of an earlier request; sort the file by time"
            raise self._fault(number, TraceFault(text))
        self.out_of_order += not self.format.nested

    def _past(self, last_s: float, first_s: float | None) -> bool:
        """Return whether no later line can belong to the window."""
        to_s = self._window.to_s
        return (
            self.format.ordered and not self.format.sessions and to_s is not None and last_s - (first_s or 0.0) >= to_s
        )

    def _fault(self, number: int, fault: Exception) -> UsageError:
        text = (
            fault.text
            if isinstance(fault, TraceFault)
            else "not UTF-8"
            if isinstance(fault, UnicodeDecodeError)
            else ""
        )
        return UsageError(f"{self._name}:{number}: {text or 'not in this format'} (format: {self.format.name})")


def _at_s(turn: RecordedTurn) -> float:
    return turn.at_s
