"""State of a run's workers on the master: clocks, reports, silences, records."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from inferload.base.clock import NS_PER_S, now_ns
from inferload.results import readers
from inferload.results.documents.manifest_document import Anchor, Worker
from inferload.results.summarise.counts import EndedWorker
from inferload.run.process import protocol
from inferload.run.process.program_code import ProgramCode
from inferload.turns.socket_reader import SocketReader

# After this time without a message a worker is lost.
LOST_S = 4.0
# The same for a worker that has not reported since the load began: many users that start at once can delay it.
START_LOST_S = 15.0
# Time from the announcement of a phase to its start, for messages to reach all workers.
LEAD_NS = 200_000_000
# A report is due every second; a longer silence is marked even if the worker reports again.
GAP_S = 1.8


class ClockOffset(Struct):
    """A worker's clocks minus the master's."""

    offset_ns: int = 0  # of the monotonic clocks
    wall_offset_ns: int = 0
    rtt_ns: int = 0  # 0: not measured yet
    one_clock: bool = False  # the worker uses the master's clock, so its offset is 0

    def update(self, sent_ns: int, mono_ns: int, wall_ns: int, here_wall_ns: int, *, same_clock: bool = False) -> None:
        """Update the offset from the reply to a ping: the shortest round trip counts, as in NTP.

        `same_clock`: the worker's clock has the same ID as the master's. The offset is then 0, unless the reply contradicts it, as
        in a virtual machine that was copied while it ran.
        """
        rtt_ns = now_ns() - sent_ns
        if self.rtt_ns == 0 or rtt_ns < self.rtt_ns:
            self.rtt_ns = max(1, rtt_ns)
            self.one_clock = same_clock and sent_ns <= mono_ns <= sent_ns + rtt_ns
            self.offset_ns = 0 if self.one_clock else mono_ns - (sent_ns + rtt_ns // 2)
            self.wall_offset_ns = 0 if self.one_clock else wall_ns - (here_wall_ns - rtt_ns // 2)

    @property
    def uncertain_ns(self) -> int:
        return 0 if self.one_clock else self.rtt_ns // 2


class DeliveredRecords(Struct):
    """Turn records of a worker, and how many of them reached the master's run directory."""

    written: int | None = None  # on the worker's disk at its end; None if unknown
    at_hand: int | None = None  # in the master's run directory; None until they are counted
    held_back: str | None = None  # reason why it did not send all of its records
    write_error: str | None = None  # of the first failed write


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a READY message, besides run and name."""

    host: str | None = None
    pid: int | None = None
    error: str | None = None
    adaptations_left_out: list[str] = []
    times_digest: str | None = None
    anchor: Anchor | None = None
    folder: str | None = None
    readers: tuple[SocketReader, ...] = ()
    delivers: bool = False
    program: ProgramCode = ProgramCode()


class Member(Struct):
    """One worker of a run."""

    name: str
    client_id: str | None  # Locust's; None in a local run
    stripe: int
    clock: ClockOffset = field(default_factory=ClockOffset)
    records: DeliveredRecords = field(default_factory=DeliveredRecords)
    facts: dict[str, Any] = field(default_factory=dict)  # of its PONG, then of its READY message
    ready: bool = False
    began: bool = False  # it has reported since the load began
    drained: bool = False  # its turn records are written; those that it delivers may still come
    delivered: bool = False  # it has sent its last record
    writes: int | None = None  # of its turn records, once all of its turns have ended
    advanced_ns: int = 0  # instant of the last of them that it reported
    lost: bool = False
    back: bool = False  # reports again after its loss: a drain waits for its turns in flight
    left: bool = False  # drained while the run went on: it was stopped separately
    spent_ns: int | None = None  # on the master's clock: end of its part of the load
    next_seq: int = 0
    missing_reports: int = 0
    longest_silence_s: float = 0.0
    in_flight: int = 0
    turns: int = 0  # that ended, by its reports
    heard_ns: int = field(default_factory=now_ns)
    booked_ns: int = 0  # on the master's clock: its reports include arrivals before it

    def heard(self) -> None:
        """Record the receipt of a message."""
        at_ns = now_ns()
        self.longest_silence_s = max(self.longest_silence_s, (at_ns - self.heard_ns) / NS_PER_S)
        self.heard_ns = at_ns
        self.back = self.lost

    def take_ready(self, data: object) -> None:
        """Keep the contents of its READY message; a malformed one is an error of the worker."""
        try:
            self.facts = msgspec.structs.asdict(msgspec.convert(data, Ready))
        except msgspec.ValidationError as error:
            self.facts["error"] = (
                f"its READY message is malformed: {error}; install the same version of inferload on all"
            )
        self.ready = True

    def silent_s(self) -> float:
        """Return the seconds since its last message."""
        return (now_ns() - self.heard_ns) / NS_PER_S

    def reported(self, seq: int, in_flight: int, booked_ns: int, writes: int | None = None) -> bool:
        """Record a report, which includes arrivals up to `booked_ns` on the worker's clock. Return False for a repeated report."""
        if writes != self.writes:
            self.writes, self.advanced_ns = writes, now_ns()
        if seq < self.next_seq:
            return False
        self.missing_reports += seq - self.next_seq
        self.next_seq = seq + 1
        self.in_flight = in_flight
        self.booked_ns = booked_ns - self.clock.offset_ns
        return True

    @property
    def turns_over(self) -> bool:
        """True if none of its turns is in flight, and none will begin."""
        return self.drained or self.writes is not None

    @property
    def records_over(self) -> bool:
        """True if all of its turn records are written and delivered."""
        return self.drained and (self.delivered or not self.delivers)

    @property
    def delivers(self) -> bool:
        """True if it does not write to the run directory, and sends its records."""
        return bool(self.facts.get("delivers"))

    @property
    def readers(self) -> tuple[SocketReader, ...]:
        """Readers of its sockets, by target; empty until it is ready."""
        readers_of_targets: tuple[SocketReader, ...] = self.facts.get("readers", ())
        return readers_of_targets

    def _outcome(self) -> dict[str, Any]:
        """Return the fields of the worker that the counts and the manifest have."""
        return {
            "name": self.name,
            "wall_offset_ns": self.clock.wall_offset_ns,
            "host": self.facts.get("host"),
            "folder": self.facts.get("folder"),
            "readers": self.readers,
            "lost": self.lost,
            "left": self.left,
            "missing_reports": self.missing_reports,
            "turns": self.turns,
            **msgspec.structs.asdict(self.records),
        }

    def ended(self) -> EndedWorker:
        """Return the worker's entry in the run's counts."""
        return EndedWorker(
            **self._outcome(),
            offset_ns=self.clock.offset_ns,
            uncertainty_ns=None if self.client_id is None else self.clock.uncertain_ns,
        )

    def manifest(self) -> Worker:
        return Worker(
            **self._outcome(),
            stripe=self.stripe,
            pid=self.facts.get("pid"),
            anchor=self.facts.get("anchor"),
            reader=readers.common(readers.uses_of([self.readers])),
            clock_offset_ns=self.clock.offset_ns,
            clock_rtt_ns=self.clock.rtt_ns,
            one_clock=self.clock.one_clock,
            longest_silence_s=round(self.longest_silence_s, 3),
        )


# Send a message of a kind to a worker; None: to all.
Send = Callable[[str, dict[str, Any], Member | None], None]


class Roster:
    """All workers of one run."""

    def __init__(self, client_ids: list[str | None]) -> None:
        self.members = [Member(f"w{stripe}", client_id, stripe) for stripe, client_id in enumerate(client_ids)]
        self._by_client = {member.client_id: member for member in self.members}

    def __len__(self) -> int:
        return len(self.members)

    def named(self, name: str) -> Member | None:
        """Return the worker with a name; None if there is none."""
        return next((member for member in self.members if member.name == name), None)

    def of_client(self, client_id: str) -> Member | None:
        """Return the worker with one of Locust's IDs; in a local run, the only worker."""
        return self._by_client.get(client_id, self._by_client.get(None))

    @property
    def remote(self) -> bool:
        """True if a worker is another process, so that messages take time."""
        return any(member.client_id is not None for member in self.members)

    @property
    def present(self) -> list[Member]:
        """Workers that are not lost."""
        return [member for member in self.members if not member.lost]

    @property
    def in_flight(self) -> int:
        """Turns in flight, by the newest reports."""
        return sum(member.in_flight for member in self.present)

    @property
    def awaited(self) -> list[Member]:
        """Workers for whose turns a drain waits, including lost ones that report again."""
        return [member for member in self.members if not member.lost or member.back]

    @property
    def gone(self) -> list[Member]:
        """Workers whose part of the load is missing from some instant on: lost, or left."""
        return [member for member in self.members if member.lost or member.left]


class WorkerChannel:
    """Messages from the master to the workers of one run. `runner`: Locust's."""

    def __init__(self, run_id: str, roster: Roster, runner: Any) -> None:
        self._run_id = run_id
        self._roster = roster
        self._runner = runner

    @property
    def clients(self) -> Mapping[str, Any]:
        """Locust's list of workers; empty in a local run."""
        clients: Mapping[str, Any] = getattr(self._runner, "clients", {})
        return clients

    def send(self, kind: str, data: dict[str, Any], member: Member | None = None) -> None:
        """Send a message to one worker or to all. Lost workers are included: one that was only stopped must drain."""
        for receiver in [member] if member is not None else self._roster.members:
            if receiver.client_id is None or receiver.client_id in self._runner.clients:
                self._runner.send_message(kind, data, receiver.client_id)

    def announce(self, kind: str, **data: Any) -> None:
        self.send(kind, {"run_id": self._run_id, **data})

    def announce_rate(self, rate: float) -> int:
        """Send a rate to the workers. Return the instant from which it applies."""
        at_ns = self.earliest_ns()
        self.announce(protocol.RATE, at_ns=at_ns, rate=rate)
        return at_ns

    def acknowledge(self, name: str, data: dict[str, Any]) -> None:
        """Send an acknowledgement of turn records to the worker with a name."""
        self.send(protocol.TAKEN, data, self._roster.named(name))

    def earliest_ns(self) -> int:
        """Return the earliest instant that can be announced to every worker in time."""
        return now_ns() + (LEAD_NS if self._roster.remote else 0)
