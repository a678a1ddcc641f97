"""What is counted: one tally for each (phase, class, step), made of whole numbers and sketches, so that it merges exactly.

A turn belongs to the phase of its `planned`. Counts of events by their own instant (tokens, ends of turns, turns in flight,
sessions begun) have a name that begins with `window_` and belong to the phase whose window holds that instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from inferload.measure.measures import MEASURES, STALL_MS, Floats, gaps_ms
from inferload.measure.record import PHASES, Phase, PhaseWindow, TurnRecord
from inferload.measure.sketch import Sketch
from inferload.measure.slo import Slo
from inferload.measure.window_counts import WindowCounts, session_window, within

__all__ = ["Slo", "Tally", "TallySet", "books"]

# The client's own delay is kept once, by `health`; of the rest, the gaps are folded apart, since stalls need them too.
_PER_TURN = tuple((m.name, m.per_turn) for m in MEASURES if m.per_turn is not None)
_PER_EVENT = tuple(
    (m.name, m.per_event) for m in MEASURES if m.per_event is not None and m.name not in ("itl_ms", "client_delay_ms")
)

_EDGE_SESSIONS, _EDGE_SHARE = 3, 0.01  # by which achieved sessions may exceed offered ones at the ends of a phase

Key = tuple[Phase, str, int | None]  # phase, class, step
Pause = tuple[int, int]  # from and until, monotonic ns: a client's event loop did nothing in between


@dataclass(slots=True)
class Tally:
    """Counters and sketches of one key. Latencies, stalls and SLO are of turns that ended well."""

    sessions_planned: int = 0
    sessions_dropped: int = 0
    sessions_at_limit: int = 0  # of the dropped ones: those that found max_in_flight reached
    sessions_started: int = 0
    sessions_completed: int = 0
    turns_begun: int = 0
    turns_held: int = 0  # those that waited because max_in_flight was reached
    held_ns: int = 0  # sum of their waits
    ok: int = 0
    cancelled: int = 0  # of the ok ones: those that their caller broke off
    failed: int = 0
    unfinished: int = 0
    output_tokens: int = 0
    output_tokens_from: int = 0  # turns that reported them
    input_tokens: int = 0
    input_tokens_from: int = 0
    cached_tokens: int = 0
    cached_tokens_from: int = 0
    events: int = 0  # output events of turns of every end
    turns_with_stall: int = 0
    turns_with_client_stall: int = 0  # a gap as long as a stall, but this client stood still in it
    slo_met: int = 0
    slo_judged: int = 0  # turns of which it is known whether they met the SLO; 0 where there is none
    turn_ns: int = 0  # sum over turns, sent to closed
    window_turns: int = 0  # turns that ended well in this window, whenever they were planned
    window_slo_met: int = 0  # of these: turns that met the SLO
    window_slo_judged: int = 0  # of these: turns for which it is known whether they met the SLO
    window_output_tokens: int = 0
    window_events: int = 0
    window_events_uncounted: int = 0  # of these, events whose tokens nobody counted
    window_ended_counted: int = 0  # turns that ended well in this window and whose tokens are known
    window_ended_tokens: int = 0  # output tokens of these turns
    window_edge_tokens: int = 0  # the most by which these and window_output_tokens can differ, from turns at the ends
    window_input_tokens: int = 0
    window_in_flight_ns: int = 0  # sum over turns of the time in this window between sent and closed
    window_sessions: int = (
        0  # sessions that were planned and begun in this window; sub-agents are part of their session
    )
    longest_stall_ms: float | None = None
    by_failure: dict[str, int] = field(default_factory=dict)
    by_status: dict[int, int] = field(default_factory=dict)
    sketches: dict[str, Sketch] = field(default_factory=dict)

    @property
    def ended(self) -> int:
        """Turns that came to an end of any kind."""
        return self.ok + self.failed + self.unfinished

    def sketch(self, measure: str) -> Sketch:
        """The sketch of a measure, to add to; made when first asked for."""
        found = self.sketches.get(measure)
        if found is None:
            found = self.sketches[measure] = Sketch()
        return found

    def absorb(self, other: Tally) -> None:
        """Take in what the other counted; it is left as it was."""
        self.absorb_counts(other)
        self._stalled(other.longest_stall_ms)
        for failure, count in other.by_failure.items():
            self.by_failure[failure] = self.by_failure.get(failure, 0) + count
        for status, count in other.by_status.items():
            self.by_status[status] = self.by_status.get(status, 0) + count
        for name, sketch in other.sketches.items():
            self.sketch(name).absorb(sketch)

    def absorb_counts(self, other: Tally) -> None:
        """Take in the other's counters alone."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def merge(self, other: Tally) -> Tally:
        """A new tally that counts what both count."""
        merged = Tally()
        merged.absorb(self)
        merged.absorb(other)
        return merged

    def to_wire(self) -> dict[str, Any]:
        """Plain values; counters at 0 are left out."""
        return {
            "counts": {name: getattr(self, name) for name in _COUNTS if getattr(self, name)},
            "longest_stall_ms": self.longest_stall_ms,
            "by_failure": dict(self.by_failure),
            "by_status": [list(item) for item in self.by_status.items()],
            "sketches": {name: sketch.to_wire() for name, sketch in self.sketches.items()},
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Tally:
        """The tally that `to_wire` described."""
        return cls(
            **wire["counts"],
            longest_stall_ms=wire["longest_stall_ms"],
            by_failure=dict(wire["by_failure"]),
            by_status=dict(wire["by_status"]),
            sketches={name: Sketch.from_wire(sketch) for name, sketch in wire["sketches"].items()},
        )

    def count_end(self, record: TurnRecord) -> None:
        """Count how the turn ended, and its tokens."""
        if record.ok:
            self.ok += 1
            self.cancelled += record.cancelled
        elif record.finished:
            self.failed += 1
            assert record.failure is not None
            self.by_failure[record.failure.value] = self.by_failure.get(record.failure.value, 0) + 1
        else:
            self.unfinished += 1
        if record.status is not None:
            self.by_status[record.status] = self.by_status.get(record.status, 0) + 1
        if record.output_tokens is not None:
            self.output_tokens += record.output_tokens
            self.output_tokens_from += 1
        if record.input_tokens is not None:
            self.input_tokens += record.input_tokens
            self.input_tokens_from += 1
        if record.cached_tokens is not None:
            self.cached_tokens += record.cached_tokens
            self.cached_tokens_from += 1
        if record.event_ns is not None:
            self.events += len(record.event_ns)
        if record.sent_ns is not None:
            self.turn_ns += record.closed_ns - record.sent_ns

    def count_latencies(self, record: TurnRecord, pauses: Sequence[Pause] = ()) -> None:
        """Put every measure of a turn that ended well into its sketch. `pauses`: when this client stood still."""
        for name, per_turn in _PER_TURN:
            value = per_turn(record)
            if value is not None:
                self.sketch(name).gather_one(value)
        gaps = gaps_ms(record)
        if not len(gaps):
            return
        self.sketch("itl_ms").gather(gaps)
        if float(gaps.max()) > STALL_MS:
            self.count_stalls(record, gaps, pauses)
        for name, per_event in _PER_EVENT:
            values = per_event(record)
            if len(values):
                self.sketch(name).gather(values)

    def count_window(self, counts: WindowCounts, slo_met: bool | None = None) -> None:
        """Add one turn's counts of this tally's window. `slo_met`: None if there is no SLO, or it could not be judged."""
        self.window_events += counts.events
        if counts.output_tokens is None:
            self.window_events_uncounted += counts.events
        else:
            self.window_output_tokens += counts.output_tokens
        if counts.ended_ok and counts.ended_tokens is not None:
            self.window_ended_counted += 1
            self.window_ended_tokens += counts.ended_tokens
        self.window_edge_tokens += counts.edge_tokens
        self.window_input_tokens += counts.input_tokens
        self.window_in_flight_ns += counts.in_flight_ns
        self.window_turns += counts.ended_ok
        if counts.ended_ok and slo_met is not None:
            self.window_slo_judged += 1
            self.window_slo_met += slo_met

    def count_stalls(self, record: TurnRecord, gaps: Floats, pauses: Sequence[Pause]) -> None:
        """A gap counts against the server unless this client stood still for half of it or more."""
        assert record.event_ns is not None
        assert record.sent_ns is not None
        own, client = 0.0, False
        for index in np.flatnonzero(gaps > STALL_MS).tolist():
            start_ns, end_ns = (record.sent_ns + record.event_ns[place] for place in (index, index + 1))
            if 2 * _overlap_ns(start_ns, end_ns, pauses) >= end_ns - start_ns:
                client = True
            else:
                own = max(own, float(gaps[index]))
        self.turns_with_client_stall += client
        if own:
            self.turns_with_stall += 1
            self._stalled(own)

    def _stalled(self, gap_ms: float | None) -> None:
        if gap_ms is not None and (self.longest_stall_ms is None or gap_ms > self.longest_stall_ms):
            self.longest_stall_ms = gap_ms


def _overlap_ns(start_ns: int, end_ns: int, pauses: Sequence[Pause]) -> int:
    """How much of an interval lies in pauses."""
    return sum(max(0, min(end_ns, until_ns) - max(start_ns, from_ns)) for from_ns, until_ns in pauses)


_COUNTS = tuple(item.name for item in fields(Tally) if item.type == "int")


class TallySet:
    """Tallies by (phase, class, step). Merging is associative and commutative; `take` hands out deltas."""

    __slots__ = ("_tallies",)

    def __init__(self) -> None:
        self._tallies: dict[Key, Tally] = {}

    def session_planned(self, phase: Phase, class_name: str, n: int = 1, step: int | None = None) -> None:
        """Sessions that the arrivals asked for; in a closed loop, that a free user began."""
        self.at(phase, class_name, step).sessions_planned += n

    def session_dropped(
        self, phase: Phase, class_name: str, n: int = 1, step: int | None = None, at_limit: bool = False
    ) -> None:
        """Planned sessions that could not be started; `at_limit`: because max_in_flight was reached."""
        self.at(phase, class_name, step).sessions_dropped += n
        self.at(phase, class_name, step).sessions_at_limit += n if at_limit else 0

    def session_started(self, phase: Phase, class_name: str, n: int = 1, step: int | None = None) -> None:
        """Planned sessions that were started."""
        self.at(phase, class_name, step).sessions_started += n

    def session_completed(self, phase: Phase, class_name: str, n: int = 1, step: int | None = None) -> None:
        """Started sessions whose last turn ended well."""
        self.at(phase, class_name, step).sessions_completed += n

    def drop_waiting(self) -> int:
        """Count sessions as dropped that were planned and then neither dropped nor started; how many there were."""
        dropped = 0
        for tally in self._tallies.values():
            waiting = max(0, tally.sessions_planned - tally.sessions_dropped - tally.sessions_started)
            tally.sessions_dropped += waiting
            dropped += waiting
        return dropped

    def turn_held(self, phase: Phase, class_name: str, wait_ns: int, step: int | None = None) -> None:
        """A turn that waited so long because max_in_flight was reached."""
        self.at(phase, class_name, step).turns_held += 1
        self.at(phase, class_name, step).held_ns += wait_ns

    def turn_begun(self, phase: Phase, class_name: str, step: int | None = None) -> None:
        """A turn that was begun; its end is counted by `fold`."""
        self.at(phase, class_name, step).turns_begun += 1

    def fold(
        self, record: TurnRecord, windows: Sequence[PhaseWindow], slo: Slo | None, pauses: Sequence[Pause] = ()
    ) -> None:
        """Count a turn that has ended, and what of it happened in which window. `pauses`: when this client stood still."""
        tally = self.at(record.phase, record.class_name, record.step)
        tally.count_end(record)
        if record.ok:
            tally.count_latencies(record, pauses)
        met = None if slo is None else slo.met(record)
        if met is not None:
            tally.slo_judged += 1
            tally.slo_met += met
        began_in = session_window(record, windows)
        if began_in is not None:
            self.at(began_in.phase, record.class_name, began_in.step).window_sessions += 1
        for window in windows:
            counts = within(record, window)
            if counts is not None:
                self.at(window.phase, record.class_name, window.step).count_window(counts, met)

    def at(self, phase: Phase, class_name: str, step: int | None = None) -> Tally:
        """The tally of a key, to count in; made when first asked for."""
        key = (phase, class_name, step)
        found = self._tallies.get(key)
        if found is None:
            found = self._tallies[key] = Tally()
        return found

    def items(self) -> list[tuple[Key, Tally]]:
        """All tallies, in the order of phase, class and step."""
        order = sorted(self._tallies, key=lambda key: (PHASES.index(key[0]), key[1], -1 if key[2] is None else key[2]))
        return [(key, self._tallies[key]) for key in order]

    def total(self, phase: Phase | None = None) -> Tally:
        """All classes and steps of one phase, or of all phases, in one new tally."""
        return _sum(tally for key, tally in self.items() if phase is None or key[0] == phase)

    def by_class(self, phase: Phase | None = None) -> dict[str, Tally]:
        """One new tally for each class."""
        found = [(key, tally) for key, tally in self.items() if phase is None or key[0] == phase]
        names = dict.fromkeys(key[1] for key, _ in found)
        return {name: _sum(tally for key, tally in found if key[1] == name) for name in names}

    def by_step(self, phase: Phase = "measure") -> dict[int, Tally]:
        """One new tally for each step; empty where the load had none."""
        found = [(key[2], tally) for key, tally in self.items() if key[0] == phase and key[2] is not None]
        steps = dict.fromkeys(step for step, _ in found)
        return {step: _sum(tally for at, tally in found if at == step) for step in sorted(steps)}

    def absorb(self, other: TallySet) -> None:
        """Take in what the other counted; it is left as it was."""
        for (phase, class_name, step), tally in other._tallies.items():
            self.at(phase, class_name, step).absorb(tally)

    def renamed(self, name_of: Callable[[str], str]) -> TallySet:
        """Return a new set under other names of classes; tallies of classes that get the same name are added."""
        renamed = TallySet()
        for (phase, class_name, step), tally in self._tallies.items():
            renamed.at(phase, name_of(class_name), step).absorb(tally)
        return renamed

    def merge(self, other: TallySet) -> TallySet:
        """A new set that counts what both count."""
        merged = TallySet()
        merged.absorb(self)
        merged.absorb(other)
        return merged

    def take(self) -> TallySet:
        """What was counted since the last call; this set starts empty again."""
        taken = TallySet()
        taken._tallies, self._tallies = self._tallies, {}
        return taken

    def to_wire(self) -> dict[str, Any]:
        """Plain values, for a message or a file."""
        return {"tallies": [[*key, tally.to_wire()] for key, tally in self.items()]}

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> TallySet:
        """The set that `to_wire` described."""
        made = cls()
        made._tallies = {(phase, name, step): Tally.from_wire(tally) for phase, name, step, tally in wire["tallies"]}
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TallySet):
            return NotImplemented
        return self._tallies == other._tallies

    __hash__ = None  # type: ignore[assignment]  # it changes


def books(tallies: TallySet) -> list[str]:
    """Return one sentence for each inconsistent count; empty if all are consistent.

    Planned = dropped + started, begun = ok + failed + unfinished, and no more sessions achieved than offered, except for
    the few that workers count in the phase next to it, since they learn of its ends at different instants.
    """
    faults = []
    for phase in PHASES:
        total = tallies.total(phase)
        if total.sessions_planned != total.sessions_dropped + total.sessions_started:
            faults.append(
                f"{phase}: {total.sessions_planned} sessions were planned, but {total.sessions_dropped} dropped and "
                f"{total.sessions_started} started"
            )
        if total.turns_begun != total.ended:
            faults.append(
                f"{phase}: {total.turns_begun} turns were begun, but {total.ok} ended well, {total.failed} failed and "
                f"{total.unfinished} stayed unfinished"
            )
        if total.sessions_completed > total.sessions_started:
            faults.append(
                f"{phase}: {total.sessions_completed} sessions were completed, but {total.sessions_started} started"
            )
        if total.window_sessions - total.sessions_planned > max(_EDGE_SESSIONS, _EDGE_SHARE * total.sessions_planned):
            faults.append(
                f"{phase}: {total.window_sessions} sessions were achieved, but {total.sessions_planned} offered"
            )
    return faults


def _sum(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.absorb(tally)
    return total
