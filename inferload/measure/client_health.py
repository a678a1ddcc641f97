"""How well the client itself was while it measured: for each worker and phase, mergeable, sent as deltas."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from inferload.measure.clock import NS_PER_S
from inferload.measure.measures import delays_ms
from inferload.measure.record import PHASES, Phase, TurnRecord
from inferload.measure.sketch import Sketch


class Beat(NamedTuple):
    """What a worker cost itself since the last beat."""

    loop_lags_ms: Iterable[float]
    gc_pauses_ms: Iterable[float]
    cpu_s: float
    wall_s: float
    stolen_s: float | None  # by the hypervisor, from all processors together; None where the system does not say
    read_pauses_ms: Iterable[float] | None = None  # of the thread that reads; None where the event loop does
    clock_stepped_ns: int = 0  # by how much the wall clock was set


@dataclass(slots=True)
class ClientHealth:
    """What one worker cost itself in one phase. Times are whole nanoseconds, so that merging is exact.

    Of several workers together (`HealthSet.total`) the sums are sums: `cpu_share` is then the mean over workers.
    """

    cpu_ns: int = 0  # of the process, all of its threads
    wall_ns: int = 0
    steal_ns: int = 0  # taken by the hypervisor from the machine's processors, shared evenly among them
    steal_wall_ns: int = 0  # the wall time in which that was looked at: 0 where the system does not say
    reads_stamped: int = 0  # reads from sockets that carried a kernel receive stamp
    reads_unstamped: int = 0
    clock_steps: int = 0  # times at which somebody set the wall clock
    clock_stepped_ns: int = 0  # by how much in all; back is negative
    loop_lag_ms: Sketch = field(default_factory=Sketch)  # how late a timer of the event loop fired
    delay_ms: Sketch = field(default_factory=Sketch)  # read time - kernel receive stamp, of each stamped read
    gc_pause_ms: Sketch = field(default_factory=Sketch)
    apart_ns: int = 0  # of the wall time: a thread of its own read, which goes on while the event loop is held up
    read_pause_ms: Sketch = field(default_factory=Sketch)  # times at which that thread was held up itself

    @property
    def cpu_s(self) -> float:
        """Processor time."""
        return self.cpu_ns / NS_PER_S

    @property
    def wall_s(self) -> float:
        """The time that was looked at."""
        return self.wall_ns / NS_PER_S

    @property
    def steal_s(self) -> float | None:
        """Stolen time of one processor; None where the system does not say."""
        return self.steal_ns / NS_PER_S if self.steal_wall_ns else None

    @property
    def cpu_share(self) -> float | None:
        """Of one core; None before the first beat."""
        return self.cpu_ns / self.wall_ns if self.wall_ns else None

    @property
    def steal_share(self) -> float | None:
        """Of the machine's processor time; None where the system does not say."""
        return self.steal_ns / self.steal_wall_ns if self.steal_wall_ns else None

    @property
    def stamped_share(self) -> float | None:
        """Of all reads; None where there was none."""
        reads = self.reads_stamped + self.reads_unstamped
        return self.reads_stamped / reads if reads else None

    @property
    def reads_apart(self) -> bool:
        """Whether a thread of its own read all the time: then what the event loop was late by has delayed no read."""
        return 0 < self.wall_ns == self.apart_ns

    @property
    def longest_pause_ms(self) -> float | None:
        """The longest time for which nobody read; None before the first beat."""
        return (self.read_pause_ms.max or 0.0) if self.reads_apart else self.loop_lag_ms.max

    def beat(self, beat: Beat, processors: int | None = None) -> None:
        """What happened since the last beat; `processors` (None: those of this machine) share what was stolen."""
        self.clock_steps += beat.clock_stepped_ns != 0
        self.clock_stepped_ns += beat.clock_stepped_ns
        self.loop_lag_ms.add_many(np.fromiter(beat.loop_lags_ms, dtype=np.float64))
        self.gc_pause_ms.add_many(np.fromiter(beat.gc_pauses_ms, dtype=np.float64))
        self.cpu_ns += round(beat.cpu_s * NS_PER_S)
        self.wall_ns += round(beat.wall_s * NS_PER_S)
        if beat.read_pauses_ms is not None:
            self.apart_ns += round(beat.wall_s * NS_PER_S)
            self.read_pause_ms.add_many(np.fromiter(beat.read_pauses_ms, dtype=np.float64))
        if beat.stolen_s is not None:
            self.steal_ns += round(beat.stolen_s * NS_PER_S / (processors or os.cpu_count() or 1))
            self.steal_wall_ns += round(beat.wall_s * NS_PER_S)

    def absorb(self, other: ClientHealth) -> None:
        """Take in what the other saw; it is left as it was."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _SKETCHES:
            getattr(self, name).absorb(getattr(other, name))

    def merge(self, other: ClientHealth) -> ClientHealth:
        """A new record of what both saw."""
        merged = ClientHealth()
        merged.absorb(self)
        merged.absorb(other)
        return merged

    def to_wire(self) -> dict[str, Any]:
        """Plain values, for a message or a file."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        return counts | {name: getattr(self, name).to_wire() for name in _SKETCHES}

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> ClientHealth:
        """The record that `to_wire` described."""
        sketches = {name: Sketch.from_wire(wire[name]) for name in _SKETCHES}
        return cls(**{**wire, **sketches})


_COUNTS = tuple(item.name for item in fields(ClientHealth) if item.type == "int")
_SKETCHES = tuple(item.name for item in fields(ClientHealth) if item.type == "Sketch")


class HealthSet:
    """The health of each (worker, phase). Merging is associative and commutative; `take` hands out deltas."""

    __slots__ = ("_healths",)

    def __init__(self) -> None:
        self._healths: dict[tuple[str, Phase], ClientHealth] = {}

    def at(self, worker: str, phase: Phase) -> ClientHealth:
        """The record of a key, to count in; made when first asked for."""
        key = (worker, phase)
        found = self._healths.get(key)
        if found is None:
            found = self._healths[key] = ClientHealth()
        return found

    def delays(self, record: TurnRecord, reads_unstamped: int) -> None:
        """Count a turn's reads, and how long each stamped one waited in the worker's process."""
        health = self.at(record.worker, record.phase)
        delays = delays_ms(record)
        health.delay_ms.gather(delays)
        health.reads_stamped += len(delays)
        health.reads_unstamped += reads_unstamped

    def items(self) -> list[tuple[tuple[str, Phase], ClientHealth]]:
        """All records, in the order of worker and phase."""
        keys = sorted(self._healths, key=lambda key: (key[0], PHASES.index(key[1])))
        return [(key, self._healths[key]) for key in keys]

    def workers(self) -> list[str]:
        """Names of the workers that were heard of."""
        return sorted({worker for worker, _ in self._healths})

    def by_worker(self, phase: Phase | None = None) -> dict[str, ClientHealth]:
        """One new record for each worker, of one phase or of all."""
        made: dict[str, ClientHealth] = {}
        for (worker, at), health in self.items():
            if phase is None or at == phase:
                made.setdefault(worker, ClientHealth()).absorb(health)
        return made

    def total(self, phase: Phase | None = None) -> ClientHealth:
        """All workers in one new record, of one phase or of all."""
        total = ClientHealth()
        for health in self.by_worker(phase).values():
            total.absorb(health)
        return total

    def absorb(self, other: HealthSet) -> None:
        """Take in what the other saw; it is left as it was."""
        for (worker, phase), health in other._healths.items():
            self.at(worker, phase).absorb(health)

    def merge(self, other: HealthSet) -> HealthSet:
        """A new set of what both saw."""
        merged = HealthSet()
        merged.absorb(self)
        merged.absorb(other)
        return merged

    def take(self) -> HealthSet:
        """What was seen since the last call; this set starts empty again."""
        taken = HealthSet()
        taken._healths, self._healths = self._healths, {}
        return taken

    def to_wire(self) -> dict[str, Any]:
        """Plain values, for a message or a file."""
        return {"workers": [[*key, health.to_wire()] for key, health in self.items()]}

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> HealthSet:
        """The set that `to_wire` described."""
        made = cls()
        made._healths = {(worker, phase): ClientHealth.from_wire(health) for worker, phase, health in wire["workers"]}
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HealthSet):
            return NotImplemented
        return self._healths == other._healths

    __hash__ = None  # type: ignore[assignment]  # it changes
