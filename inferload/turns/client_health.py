"""Health of the client: CPU time, event loop lag, read delays and pauses per worker and phase. Mergeable, sent as deltas."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import numpy as np

from inferload.base.clock import NS_PER_S
from inferload.turns.keyed import Keyed
from inferload.turns.record import PHASES, Phase
from inferload.turns.sketch import Sketch


class Beat(NamedTuple):
    """Readings of a worker since the last beat."""

    loop_lags_ms: Iterable[float]
    gc_pauses_ms: Iterable[float]
    cpu_s: float
    wall_s: float
    stolen_s: float | None  # CPU time taken by the hypervisor, sum over all processors; None: not reported
    read_pauses_ms: Iterable[float] | None = None  # of the thread that reads; None if the event loop reads
    clock_stepped_ns: int = 0  # step of the wall clock


@dataclass(slots=True)
class ClientHealth:
    """Health of one worker in one phase. Times are whole nanoseconds, so that merging is exact.

    Of several workers (`HealthSet.total`) times are sums, and `cpu_share` is the mean over workers.
    """

    cpu_ns: int = 0  # of the process, all threads
    wall_ns: int = 0
    steal_ns: int = 0  # taken by the hypervisor from the machine's processors, shared evenly among them
    steal_wall_ns: int = 0  # wall time with a reading of it; 0: not reported
    reads_stamped: int = 0  # reads from sockets with a kernel receive timestamp
    reads_unstamped: int = 0
    clock_steps: int = 0  # of the wall clock
    clock_stepped_ns: int = 0  # sum of the steps; negative: backwards
    loop_lag_ms: Sketch = field(default_factory=Sketch)  # lateness of a timer of the event loop
    delay_ms: Sketch = field(default_factory=Sketch)  # read time - kernel receive timestamp, per stamped read
    gc_pause_ms: Sketch = field(default_factory=Sketch)
    apart_ns: int = 0  # wall time in which a separate thread read, which a blocked event loop does not delay
    read_pause_ms: Sketch = field(default_factory=Sketch)  # pauses of that thread

    @property
    def cpu_share(self) -> float | None:
        """CPU time of one core; None before the first beat."""
        return self.cpu_ns / self.wall_ns if self.wall_ns else None

    @property
    def steal_share(self) -> float | None:
        """Stolen share of the machine's CPU time; None: not reported."""
        return self.steal_ns / self.steal_wall_ns if self.steal_wall_ns else None

    @property
    def reads_apart(self) -> bool:
        """True if a separate thread read all the time: event loop lag then delayed no read."""
        return 0 < self.wall_ns == self.apart_ns

    @property
    def longest_pause_ms(self) -> float | None:
        """Longest time without reads; None before the first beat."""
        return (self.read_pause_ms.max or 0.0) if self.reads_apart else self.loop_lag_ms.max

    def beat(self, beat: Beat, processors: int | None = None) -> None:
        """Add the readings since the last beat. `processors`: number that share the stolen time; None: of this machine."""
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
        """Add another record, which stays unchanged."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _SKETCHES:
            getattr(self, name).absorb(getattr(other, name))

    def to_wire(self) -> dict[str, Any]:
        """Return plain values, for a message or a file."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        return counts | {name: getattr(self, name).to_wire() for name in _SKETCHES}

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> ClientHealth:
        """Return the record of a `to_wire` document; ValueError or LookupError if it is none."""
        counts = msgspec.convert({name: wire[name] for name in _COUNTS}, dict[str, _Whole])
        return cls(**counts, **{name: Sketch.from_wire(wire[name]) for name in _SKETCHES})  # type: ignore[arg-type]


_Whole = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]


class _HealthSetWire(TypedDict):
    workers: list[tuple[str, Phase, dict[str, Any]]]


_COUNTS = tuple(item.name for item in fields(ClientHealth) if item.type == "int")
_SKETCHES = tuple(item.name for item in fields(ClientHealth) if item.type == "Sketch")


class HealthSet(Keyed[tuple[str, Phase], ClientHealth]):
    """Health by (worker, phase)."""

    __slots__ = ()
    new = ClientHealth

    def at(self, worker: str, phase: Phase) -> ClientHealth:
        """Return the record of a key, created on first use."""
        return self.of_key((worker, phase))

    def items(self) -> list[tuple[tuple[str, Phase], ClientHealth]]:
        """Return all records, ordered by worker and phase."""
        keys = sorted(self._records, key=lambda key: (key[0], PHASES.index(key[1])))
        return [(key, self._records[key]) for key in keys]

    def by_worker(self, phase: Phase | None = None) -> dict[str, ClientHealth]:
        """Return a new record for each worker, of one phase or of all."""
        merged: dict[str, ClientHealth] = {}
        for (worker, at), health in self.items():
            if phase is None or at == phase:
                merged.setdefault(worker, ClientHealth()).absorb(health)
        return merged

    def total(self, phase: Phase | None = None) -> ClientHealth:
        """Return a new record of all workers, of one phase or of all."""
        total = ClientHealth()
        for (_, at), health in self._records.items():
            if phase is None or at == phase:
                total.absorb(health)
        return total

    def take_over(self, other: HealthSet) -> None:
        """Add another set, which is not used afterwards: without a copy of records whose keys are new."""
        for key, health in other._records.items():
            if (own := self._records.setdefault(key, health)) is not health:
                own.absorb(health)

    def to_wire(self) -> dict[str, Any]:
        """Return plain values, for a message or a file."""
        return {"workers": [[*key, health.to_wire()] for key, health in self.items()]}

    @classmethod
    def from_wire(cls, document: Any) -> HealthSet:
        """Return the set of a `to_wire` document; ValueError or LookupError if it is none."""
        health, wire = cls(), msgspec.convert(document, _HealthSetWire)
        health._records = {(worker, phase): ClientHealth.from_wire(entry) for worker, phase, entry in wire["workers"]}
        return health
