"""Tallies: counters and sketches per (phase, class, step). All are whole numbers or sketches, so merging is exact.

A turn belongs to the phase of its `planned`. Counts of events by their own instant (tokens, ends of turns, turns in flight,
started sessions) have names that begin with `window_` and belong to the phase whose window contains that instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NotRequired, TypedDict, TypeVar

import msgspec

from inferload.turns.keyed import Keyed
from inferload.turns.record import PHASES, Phase
from inferload.turns.sketch import Sketch

_KEYS = {"turns_delayed": "turns_held", "delayed_ns": "held_ns"}  # in counts.json: keys of fields with other names
_NAMES = {key: name for name, key in _KEYS.items()}
_EDGE_SESSIONS, _EDGE_SHARE = 3, 0.01  # allowed excess of achieved over offered sessions at the ends of a phase

WRONG = ("empty", "cut", "swapped", "broken")  # classes of canary answers that fail a run

_Name = TypeVar("_Name", str, int)
Key = tuple[Phase, str, int | None]  # phase, class, step
Pause = tuple[int, int]  # start and end, monotonic ns, of a time in which a client's event loop was blocked


# Counts, and sums of nanoseconds.
_Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class TallyWire(TypedDict):
    """Tally in a message or a file, as from another machine."""

    counts: dict[str, _Whole]
    longest_stall_ms: float | None
    by_failure: dict[str, _Whole]
    by_status: list[tuple[int, _Whole]]
    by_finish_reason: dict[str, _Whole]
    by_remark: dict[str, _Whole]
    slo_missed: dict[str, _Whole]
    by_canary: NotRequired[dict[str, _Whole]]
    sketches: dict[str, Any]


class TallySetWire(TypedDict):
    """Set of tallies, by phase, class and step."""

    tallies: list[tuple[Phase, str, int | None, Any]]


@dataclass(slots=True)
class Tally:
    """Counters and sketches of one key. Latencies, stalls and SLO are of turns that ended well."""

    sessions_planned: int = 0  # arrivals; in a closed loop, sessions that a free user started
    sessions_dropped: int = 0
    sessions_at_limit: int = 0  # of the dropped ones: because max_in_flight was reached
    sessions_started: int = 0
    sessions_postponed: int = 0  # of the started ones: max_in_flight delayed them into a later phase
    sessions_completed: int = 0  # of the started ones: whose last turn ended well
    turns_begun: int = 0  # `inferload.figures.counting` counts their ends
    requests: int = 0  # of the ended turns, first and second ones: a turn without a connection has none
    retried: int = 0  # of these: second ones
    turns_delayed: int = 0  # turns that waited because max_in_flight was reached
    delayed_ns: int = 0  # sum of their waits
    ok: int = 0
    cancelled: int = 0  # of the ok ones: cancelled by their caller
    failed: int = 0
    unfinished: int = 0
    output_tokens: int = 0
    output_tokens_from: int = 0  # turns that reported them
    answer_tokens: int = 0  # of the ok, uncancelled turns with a known number and a limit: output tokens
    answer_limit_tokens: int = 0  # of the same turns: sum of the limits (max_tokens)
    whole: int = 0  # ended turns of requests whose answers are no streams
    texts: int = 0  # of these requests
    input_tokens: int = 0
    input_tokens_from: int = 0
    cached_tokens: int = 0
    cached_tokens_from: int = 0
    events: int = 0  # output events of all turns
    turns_with_stall: int = 0
    turns_with_client_stall: int = 0  # turns with a gap as long as a stall in which this client was blocked
    slo_met: int = 0
    slo_judged: int = 0  # turns with a known result for the SLO; 0 without an SLO
    turn_ns: int = 0  # sum over turns, sent to closed
    window_turns: int = 0  # turns that ended well in this window, planned in any phase
    window_texts: int = 0  # of the requests of these turns whose answers are no streams
    window_slo_met: int = 0  # of these: turns that met the SLO
    window_slo_judged: int = 0  # of these: turns with a known result for the SLO
    window_output_tokens: int = 0
    window_events: int = 0
    window_events_uncounted: int = 0  # of these: events with an unknown number of tokens
    window_ended_counted: int = 0  # turns that ended well in this window with a known number of tokens
    window_ended_tokens: int = 0  # output tokens of these turns
    window_edge_tokens: int = 0  # greatest difference of these and window_output_tokens, from turns at the ends
    # turns with their first output event, or the end of an answer without a stream, in this window
    window_firsts: int = 0
    window_firsts_uncounted: int = 0  # of these: turns with an unknown number of prompt tokens
    window_input_tokens: int = 0  # of the others
    window_in_flight_ns: int = 0  # sum over turns of the time in this window between sent and closed
    window_sessions: int = 0  # sessions planned and started in this window; sub-agents are part of their session
    canary_ns: int = 0  # sum over canary requests, sent to closed
    longest_stall_ms: float | None = None
    by_failure: dict[str, int] = field(default_factory=dict)
    by_status: dict[int, int] = field(default_factory=dict)
    by_finish_reason: dict[str, int] = field(default_factory=dict)  # of the ok ones
    by_remark: dict[str, int] = field(default_factory=dict)
    # Turns by limit that they missed, or `failed`, `unfinished`.
    slo_missed: dict[str, int] = field(default_factory=dict)
    by_canary: dict[str, int] = field(default_factory=dict)  # canary requests beside the turns, by class of answer
    sketches: dict[str, Sketch] = field(default_factory=dict)

    @property
    def ended(self) -> int:
        """Ended turns: ok, failed or unfinished."""
        return self.ok + self.failed + self.unfinished

    @property
    def wrong_canaries(self) -> int:
        """Canary answers that are empty, cut, those of another prompt, or broken."""
        return sum(self.by_canary.get(name, 0) for name in WRONG)

    def sketch(self, measure: str) -> Sketch:
        """Return the sketch of a measure, created on first use."""
        sketch = self.sketches.get(measure)
        if sketch is None:
            sketch = self.sketches[measure] = Sketch()
        return sketch

    def absorb(self, other: Tally) -> None:
        """Add another tally, which stays unchanged."""
        self.absorb_counts(other, [*other.sketches])
        self.stalled(other.longest_stall_ms)
        for counted in _COUNTED_BY:
            add_counts(getattr(self, counted), getattr(other, counted))

    def absorb_counts(self, other: Tally, sketches: Sequence[str] = ()) -> None:
        """Add the counters of another tally, and only the named ones of its sketches."""
        for name in _COUNTS:
            if count := getattr(other, name):
                setattr(self, name, getattr(self, name) + count)
        for name in sketches:
            if name in other.sketches:
                self.sketch(name).absorb(other.sketches[name])

    def to_wire(self) -> dict[str, Any]:
        """Return plain values, without counters at 0."""
        return {
            "counts": {_KEYS.get(name, name): getattr(self, name) for name in _COUNTS if getattr(self, name)},
            "longest_stall_ms": self.longest_stall_ms,
            **{name: dict(getattr(self, name)) for name in _COUNTED_BY},
            "by_status": [list(item) for item in self.by_status.items()],
            "sketches": {name: sketch.to_wire() for name, sketch in self.sketches.items()},
        }

    @classmethod
    def from_wire(cls, document: Any) -> Tally:
        """Return the tally of a `to_wire` document; ValueError or TypeError if it is none."""
        wire: Any = msgspec.convert(document, TallyWire)
        values: dict[str, Any] = {_NAMES.get(key, key): count for key, count in wire["counts"].items()}
        values |= {name: dict(wire.get(name, ())) for name in _COUNTED_BY}
        sketches = {name: Sketch.from_wire(sketch) for name, sketch in wire["sketches"].items()}
        return cls(**values, longest_stall_ms=wire["longest_stall_ms"], sketches=sketches)

    def stalled(self, gap_ms: float | None) -> None:
        """Note the longest stall of some turns; None: they had none."""
        if gap_ms is not None and (self.longest_stall_ms is None or gap_ms > self.longest_stall_ms):
            self.longest_stall_ms = gap_ms


def add_counts(counts: dict[_Name, int], others: Mapping[_Name, int]) -> None:
    for name, count in others.items():
        counts[name] = counts.get(name, 0) + count


_COUNTS = tuple(item.name for item in fields(Tally) if item.type == "int")
_COUNTED_BY = ("by_failure", "by_status", "by_finish_reason", "by_remark", "slo_missed", "by_canary")


class TallySet(Keyed[Key, Tally]):
    """Tallies by (phase, class, step)."""

    __slots__ = ()
    new = Tally

    def drop_waiting(self) -> int:
        """Count sessions as dropped that were planned and neither dropped nor started; return their number."""
        dropped = 0
        for tally in self._records.values():
            waiting = max(0, tally.sessions_planned - tally.sessions_dropped - tally.sessions_started)
            tally.sessions_dropped += waiting
            dropped += waiting
        return dropped

    def at(self, phase: Phase, class_name: str, step: int | None = None) -> Tally:
        """Return the tally of a key, created on first use."""
        return self.of_key((phase, class_name, step))

    def items(self) -> list[tuple[Key, Tally]]:
        """Return all tallies, ordered by phase, class and step."""
        order = sorted(self._records, key=lambda key: (PHASES.index(key[0]), key[1], -1 if key[2] is None else key[2]))
        return [(key, self._records[key]) for key in order]

    def total(self, phase: Phase | None = None, class_name: str | None = None) -> Tally:
        """Return a new tally of all steps of one phase and class; None: of all phases, of all classes."""
        return summed(tally for key, tally in self.items() if phase in (None, key[0]) and class_name in (None, key[1]))

    def by_class(self, phase: Phase | None = None) -> dict[str, Tally]:
        of_phase = [(key, tally) for key, tally in self.items() if phase is None or key[0] == phase]
        names = dict.fromkeys(key[1] for key, _ in of_phase)
        return {name: summed(tally for key, tally in of_phase if key[1] == name) for name in names}

    def by_step(self, phase: Phase = "measure") -> dict[int, Tally]:
        """Return a new tally for each step; empty for a load without steps."""
        of_phase = [(key[2], tally) for key, tally in self.items() if key[0] == phase and key[2] is not None]
        steps = dict.fromkeys(step for step, _ in of_phase)
        return {step: summed(tally for at, tally in of_phase if at == step) for step in sorted(steps)}

    def renamed(self, name_of: Callable[[str], str]) -> TallySet:
        """Return a set with renamed classes, itself if no name changes; tallies of classes with the same new name are added."""
        names = {name: name_of(name) for _, name, _ in self._records}
        if all(name == new for name, new in names.items()):
            return self
        renamed = TallySet()
        for (phase, class_name, step), tally in self._records.items():
            renamed.at(phase, names[class_name], step).absorb(tally)
        return renamed

    def to_wire(self) -> dict[str, Any]:
        """Return plain values, for a message or a file."""
        return {"tallies": [[*key, tally.to_wire()] for key, tally in self.items()]}

    @classmethod
    def from_wire(cls, document: Any) -> TallySet:
        """Return the set of a `to_wire` document; ValueError or TypeError if it is none."""
        tallies, wire = cls(), msgspec.convert(document, TallySetWire)
        tallies._records = {(phase, name, step): Tally.from_wire(tally) for phase, name, step, tally in wire["tallies"]}
        return tallies


def count_faults(tallies: TallySet) -> list[str]:
    """Return one sentence for each inconsistent count; empty if all are consistent.

    Planned = dropped + started, begun = ok + failed + unfinished, and achieved <= offered sessions, except for a few sessions
    that workers count in a neighbouring phase, because they receive its ends at different instants.
    """
    faults = []
    for phase in PHASES:
        total = tallies.total(phase)
        planned, started = total.sessions_planned, total.sessions_started
        if planned != total.sessions_dropped + started:
            dropped = total.sessions_dropped
            faults.append(f"{phase}: {planned} sessions were planned, but {dropped} dropped and {started} started")
        if total.turns_begun != total.ended:
            ends = f"{total.ok} ended well, {total.failed} failed and {total.unfinished} stayed unfinished"
            faults.append(f"{phase}: {total.turns_begun} turns were begun, but {ends}")
        if total.sessions_completed > started:
            faults.append(f"{phase}: {total.sessions_completed} sessions were completed, but {started} started")
        if total.window_sessions - planned > max(_EDGE_SESSIONS, _EDGE_SHARE * planned):
            faults.append(f"{phase}: {total.window_sessions} sessions were achieved, but {planned} offered")
    return faults


def summed(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.absorb(tally)
    return total
