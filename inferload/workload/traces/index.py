"""A trace file by its sessions: read once to know where and when each begins, then only the lines that are asked for."""

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
from inferload.scenario.files.data_files import sha256_of
from inferload.workload.traces.formats import Format
from inferload.workload.traces.turn import Parser, RecordedTurn, TraceFault


@dataclass(frozen=True, slots=True)
class Window:
    """Which sessions are taken: those that begin so long after the trace's first time; None: to its end."""

    from_s: float = 0.0
    to_s: float | None = None

    def holds(self, at_s: float) -> bool:
        """Whether a session that begins then is taken."""
        return self.from_s <= at_s and (self.to_s is None or at_s < self.to_s)


_OUTSIDE = "of sessions that begin outside the window"
_PLACE = 3  # numbers of a turn's place


@dataclass(slots=True)
class _Session:
    """Where a session's turns stand: (offset of the line, its bytes, which turn of that line) one after the other.

    `turns`: of lines that hold a whole session its turns themselves, but for their blocks.
    """

    begins_s: float
    places: "array[int]" = field(default_factory=lambda: array("q"))
    turns: list[RecordedTurn] = field(default_factory=list)


class TraceIndex:
    """The sessions of a trace, in the order in which they begin. UsageError names file and line of what is wrong."""

    def __init__(self, path: Path, name: str, form: Format, window: Window) -> None:
        self.path, self.form = path, form
        self.left_out: Counter[str] = Counter()  # what was not taken, by why
        self.turns = 0
        self.out_of_order = 0  # turns whose times go back, where the form allows that
        self.of_agents = False  # some turn is a sub-agent's, or waits for a tool: sessions are tasks
        self._name, self._window = name, window
        self._sessions: list[_Session] = []
        self._start_s = 0.0
        with path.open("rb") as file:
            if file.read(2) == b"\x1f\x8b":
                raise UsageError(f"{name}: is compressed; unpack it first: gunzip {name}")
            file.seek(0)
            self._parser, self._first_line = self._header(file)
            self._read(file)
        if not self._sessions:
            why = ", ".join(f"{count} {what}" for what, count in self.left_out.items()) or "no line holds a request"
            raise UsageError(f"{name}: no session of it can be replayed: {why}")
        self.digest = sha256_of(path)

    def __len__(self) -> int:
        return len(self._sessions)

    def arrivals_s(self) -> Iterator[float]:
        """When each session begins, in seconds since the window does; the first times of all where there are none."""
        begins_s = self._start_s
        return (session.begins_s - begins_s for session in self._sessions)

    def session(self, index: int) -> list[RecordedTurn]:
        """The turns of a session in the order of their times, read from the file; those that stand `where` by `whole`."""
        session = self._sessions[index]
        places = session.places
        if len(places) == _PLACE:  # one request, as in most traces
            offset, length, part = places
            return [self._line(offset, length)[part]]
        if self.form.nested is not None:
            return session.turns
        turns: list[RecordedTurn] = []
        known, of_line = -1, turns
        for offset, length, part in zip(places[::_PLACE], places[1::_PLACE], places[2::_PLACE], strict=True):
            if offset != known:
                known, of_line = offset, self._line(offset, length)
            turns.append(of_line[part])
        return sorted(turns, key=_at_s)

    def _line(self, offset: int, length: int) -> list[RecordedTurn]:
        """The turns of the line that stands there."""
        return list(self._parser(os.pread(self._file, length, offset).decode("utf-8" if offset else "utf-8-sig")))

    @cached_property
    def _file(self) -> int:
        """The file, open for as long as this lives: a session is read at its place, from any thread."""
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, file)
        return file

    def lines_of(self, index: int) -> int:
        """How many lines are read for a session; 0 where a line holds all of it, and was read with the file."""
        return len(self._sessions[index].places) // _PLACE

    def whole(self, turn: RecordedTurn) -> RecordedTurn:
        """A turn of `session` with its blocks."""
        if turn.where is None or self.form.nested is None:
            return turn
        offset, length = turn.where
        return self.form.nested.whole(os.pread(self._file, length, offset).decode(), turn)

    def _header(self, file: BinaryIO) -> tuple[Parser, int]:
        if self.form.parser is not None:
            return self.form.parser, 1
        assert self.form.with_header is not None
        try:
            return self.form.with_header(file.readline().decode("utf-8-sig")), 2
        except (TraceFault, UnicodeDecodeError) as fault:
            raise self._fault(1, fault) from None

    def _read(self, file: BinaryIO) -> None:
        by_name: dict[str, _Session | None] = {}
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
                    self._back(number, turn.at_s, last_s)
                last_s = turn.at_s if not self.form.nested else 0.0
                if not turn.input_tokens or not turn.output_tokens:
                    self.left_out["without a prompt or an answer"] += 1
                    continue
                self._take(turn, (start, len(raw), part), by_name, first_s)
            if self._past(last_s, first_s):
                break
        if self.form.timed and not self.form.ordered:  # only now it is known when the first one began
            first_s = min((session.begins_s for session in self._sessions), default=0.0)
            self._sessions = [session for session in self._sessions if self._kept(session, first_s)]
        self._start_s = (first_s or 0.0) + self._window.from_s if self.form.timed else 0.0
        self._sessions.sort(key=lambda session: session.begins_s)

    def _take(
        self, turn: RecordedTurn, place: tuple[int, int, int], by_name: dict[str, _Session | None], first_s: float
    ) -> None:
        """Put a turn to its session, or begin one, if that begins in the window; one that does not is known as None."""
        session = by_name.get(turn.session) if turn.session is not None else None
        if session is None:
            outside = self.form.ordered and not self._window.holds(turn.at_s - first_s)
            if outside or turn.session in by_name:
                self.left_out[_OUTSIDE] += 1
                if turn.session is not None:
                    by_name[turn.session] = None
                return
            session = _Session(turn.at_s if self.form.timed else 0.0)
            self._sessions.append(session)
            if turn.session is not None:
                by_name[turn.session] = session
        elif self.form.timed:
            session.begins_s = min(session.begins_s, turn.at_s)
        if self.form.nested is not None:
            session.turns.append(turn)
        else:
            session.places.extend(place)
        self.turns += 1
        self.of_agents = self.of_agents or bool(turn.agent) or turn.after == "tool"

    def _kept(self, session: _Session, first_s: float) -> bool:
        """Whether a session begins in the window; what is left out is counted."""
        kept = self._window.holds(session.begins_s - first_s)
        if not kept:
            self.turns -= len(session.places) // _PLACE
            self.left_out[_OUTSIDE] += len(session.places) // _PLACE
        return kept

    def _turns(self, raw: bytes, number: int, start: int) -> list[RecordedTurn]:
        """The turns of a line; of one that is a whole session without their blocks, but with their places."""
        try:
            turns = list(self._parser(raw.decode("utf-8-sig" if number == 1 else "utf-8")))
            if self.form.nested is None:
                return turns
            return [
                replace(turn, blocks=None, where=None if turn.blocks is None else (start + place, length))
                for turn, (place, length) in zip(turns, self.form.nested.places(raw), strict=True)
            ]
        except (TraceFault, ValueError, KeyError, AttributeError, TypeError, ArithmeticError, RecursionError) as fault:
            raise self._fault(number, fault) from None
        except msgspec.MsgspecError as fault:
            raise self._fault(number, fault) from None

    def _back(self, number: int, at_s: float, last_s: float) -> None:
        if self.form.ordered:
            text = f"its time, {at_s:g} s, is before that of the request before it, {last_s:g} s; sort the file by time"
            raise self._fault(number, TraceFault(text))
        self.out_of_order += not self.form.nested

    def _past(self, last_s: float, first_s: float | None) -> bool:
        """Whether nothing that still comes can be of the window: no need to read on."""
        to_s = self._window.to_s
        return self.form.ordered and not self.form.sessions and to_s is not None and last_s - (first_s or 0.0) >= to_s

    def _fault(self, number: int, fault: Exception) -> UsageError:
        text = (
            fault.text
            if isinstance(fault, TraceFault)
            else "not UTF-8"
            if isinstance(fault, UnicodeDecodeError)
            else ""
        )
        return UsageError(f"{self._name}:{number}: {text or 'is not of this form'} (format: {self.form.name})")


def _at_s(turn: RecordedTurn) -> float:
    return turn.at_s
