"""Messages between master and workers during a run. A local run uses the same messages within one process.

master -> worker                                   worker -> master
  PING     {"sent_ns"}                               PONG     {"sent_ns", "mono_ns", "wall_ns", "clock", "version", ...}
  PREPARE  an Assignment                             READY    {"run_id", "name", "error", host, pid, ...}
  WINDOWS  {"run_id", "windows"}                     REPORT   a WorkerReport, once a second
  RATE     {"run_id", "at_ns", "rate"}               DRAINED  {"run_id", "name", "closed_ns", "written", ...}: a run's end
  TARGETS  {"run_id", "at_ns", "targets", "lists"}
  DRAIN    {"run_id"}                                SPENT    {"run_id", "name", "at_ns"}: its part of a counted load is over
  ABORT    {"run_id"}                                TURNS    {"run_id", "name"} and a FilePiece, if it writes elsewhere
  TAKEN    {"run_id", "part", "offset", "stop"}      DELIVERED {"run_id", "name", "error"}: no more pieces come
                                                     INVALID_CALL {"run_id", "name", "at", "text"}: of a task, at FILE:LINE

Instants are on the master's monotonic clock; a worker adds its offset, which is part of its assignment. No message contains a
key or a header: every process has its own.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from inferload.turns.record import PhaseWindow

PING = "inferload_ping"
PONG = "inferload_pong"
PREPARE = "inferload_prepare"
READY = "inferload_ready"
WINDOWS = "inferload_windows"
RATE = "inferload_rate"
TARGETS = "inferload_targets"
DRAIN = "inferload_drain"
ABORT = "inferload_abort"
REPORT = "inferload_report"
DRAINED = "inferload_drained"
SPENT = "inferload_spent"
TURNS = "inferload_turns"
TAKEN = "inferload_taken"
DELIVERED = "inferload_delivered"
INVALID_CALL = "inferload_invalid_call"


class Assignment(Struct, frozen=True):
    """Complete description of a worker's part of a run. `offset_ns`: its monotonic clock minus the master's."""

    run_id: str
    salt: str  # identifies the run in prompts, for prefix-cache isolation
    scenario_text: str
    origin: str
    stripe: int
    stripes: int
    name: str
    targets: list[dict[str, Any]]  # fields of each `Target`, as the preflight read it
    model: str
    takes_salt: bool
    finish_reasons: list[bool]  # of each target: its answers are known to have a finish reason
    vocabulary: dict[str, Any]
    run_dir: str
    token: str
    offset_ns: int
    rate: float | None  # open loop: initial rate of all workers together, in the unit of the scenario's rate key
    origins: list[str] | None = None  # servers that a worker's key and headers may be sent to; None: any
    lists: list[str] = field(default_factory=list)  # DNS names and files whose servers are among these
    follows: bool = False  # the targets can change
    canary: Any = None  # plain form of CanaryOrders; None: the scenario has no canary
    data: dict[str, Any] = field(default_factory=dict)  # digests and token counts of the workload's data, by class


class WorkerReport(Struct, frozen=True):
    """A worker's counts since its last report. `seq` counts from 0 without a gap."""

    run_id: str
    name: str
    seq: int
    tallies: Any  # wire form of a TallySet
    health: Any  # wire form of a HealthSet
    in_flight: int
    booked_ns: int  # on the worker's clock: arrivals due before it are included in its reports so far
    first_errors: list[Any] = field(default_factory=list)  # wire form of FirstErrors: new ones only
    canaries: list[Any] = field(default_factory=list)  # ended ones, in the plain form of EndedCanary
    writes: int | None = None  # after its last turn: writes of turn files so far


def windows_to_wire(windows: Sequence[PhaseWindow]) -> list[list[Any]]:
    """Return phase windows on the master's clock as a message's data."""
    return [[window.phase, window.start_ns, window.end_ns, window.step] for window in windows]


def windows_from_wire(data: list[list[Any]], offset_ns: int) -> tuple[PhaseWindow, ...]:
    """Read phase windows, and convert them to this worker's clock."""
    return tuple(
        PhaseWindow(phase, start_ns + offset_ns, None if end_ns is None else end_ns + offset_ns, step)
        for phase, start_ns, end_ns, step in data
    )
