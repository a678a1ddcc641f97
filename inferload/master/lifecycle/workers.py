"""The workers of a run as the master knows them: who they are, when they were last heard, which reports are missing."""

from dataclasses import dataclass, field
from typing import Any

from inferload.measure.clock import now_ns
from inferload.summarise.counts import EndedWorker

# A worker that says nothing for this long is lost.
LOST_S = 4.0
# A worker that has not reported since the load began may be starved while it starts: it has longer.
START_LOST_S = 15.0
# A report is due every second; a silence of this length is marked even if the worker comes back.
GAP_S = 1.8


@dataclass(slots=True)
class Member:
    """One worker of a run. `offset_ns`: its monotonic clock minus the master's, uncertain by `uncertain_ns`."""

    name: str
    client_id: str | None  # Locust's; None in a local run
    stripe: int
    offset_ns: int = 0
    rtt_ns: int = 0
    wall_offset_ns: int = 0
    one_clock: bool = False  # it reads the very clock that the master does: there is nothing to be uncertain about
    facts: dict[str, Any] = field(default_factory=dict)  # what its READY said
    ready: bool = False
    began: bool = False  # it has reported since the load began
    drained: bool = False
    lost: bool = False
    back: bool = False  # heard again since it was lost: what it has in flight is waited for
    left: bool = False  # drained by itself while the run went on: somebody stopped it
    spent_ns: int | None = None  # on the master's clock: since when nothing of its load is left
    next_seq: int = 0
    missing_reports: int = 0
    longest_silence_s: float = 0.0
    in_flight: int = 0
    turns: int = 0  # that ended, by its reports
    written: int | None = None  # records that it found on its disk at its end; None: it did not say
    at_hand: int | None = None  # records in the master's run directory; None until they are counted
    delivered: bool = False  # it has sent its last record
    held_back: str | None = None  # why it did not send all of its records
    write_error: str | None = None  # the first write of records that failed
    heard_ns: int = field(default_factory=now_ns)
    booked_ns: int = 0  # on the master's clock: arrivals before it are in its reports

    def heard(self) -> None:
        """It said something."""
        at_ns = now_ns()
        self.longest_silence_s = max(self.longest_silence_s, (at_ns - self.heard_ns) / 1e9)
        self.heard_ns = at_ns
        self.back = self.lost

    def silent_s(self) -> float:
        """How long it has said nothing."""
        return (now_ns() - self.heard_ns) / 1e9

    def reported(self, seq: int, in_flight: int, booked_ns: int) -> bool:
        """Take note of a report, whose books go up to `booked_ns` of the worker's clock; False where it was seen already."""
        if seq < self.next_seq:
            return False
        self.missing_reports += seq - self.next_seq
        self.next_seq = seq + 1
        self.in_flight = in_flight
        self.booked_ns = booked_ns - self.offset_ns
        return True

    def pong(self, sent_ns: int, mono_ns: int, wall_ns: int, here_wall_ns: int, *, same_clock: bool = False) -> None:
        """An answer to a ping: the tightest round trip gives the offset (as NTP does).

        `same_clock`: by its name the worker's clock is the master's. Then a ping can only measure how unevenly the two ways were
        taken, and the offset is 0; unless that does not agree with the ping (a guest that was copied while it ran, say).
        """
        rtt_ns = now_ns() - sent_ns
        if self.rtt_ns == 0 or rtt_ns < self.rtt_ns:
            self.rtt_ns = max(1, rtt_ns)
            self.one_clock = same_clock and sent_ns <= mono_ns <= sent_ns + rtt_ns
            self.offset_ns = 0 if self.one_clock else mono_ns - (sent_ns + rtt_ns // 2)
            self.wall_offset_ns = 0 if self.one_clock else wall_ns - (here_wall_ns - rtt_ns // 2)

    @property
    def uncertain_ns(self) -> int:
        """By how much `offset_ns` may be wrong."""
        return 0 if self.one_clock else self.rtt_ns // 2

    @property
    def delivers(self) -> bool:
        """Whether it writes elsewhere than in the run directory, and sends its records."""
        return bool(self.facts.get("delivers"))

    def ended(self) -> EndedWorker:
        """The worker's entry in the run's counts."""
        return EndedWorker(
            name=self.name,
            offset_ns=self.offset_ns,
            wall_offset_ns=self.wall_offset_ns,
            uncertainty_ns=None if self.client_id is None else self.uncertain_ns,
            host=self.facts.get("host"),
            folder=self.facts.get("folder"),
            reader=self.facts.get("reader"),
            lost=self.lost,
            left=self.left,
            missing_reports=self.missing_reports,
            turns=self.turns,
            written=self.written,
            at_hand=self.at_hand,
            held_back=self.held_back,
            write_error=self.write_error,
        )

    def manifest(self) -> dict[str, Any]:
        """What the run's manifest says of it."""
        return {
            "name": self.name,
            "stripe": self.stripe,
            "host": self.facts.get("host"),
            "pid": self.facts.get("pid"),
            "folder": self.facts.get("folder"),
            "anchor": self.facts.get("anchor"),
            "reader": self.facts.get("reader"),
            "clock_offset_ns": self.offset_ns,
            "clock_rtt_ns": self.rtt_ns,
            "one_clock": self.one_clock,
            "wall_offset_ns": self.wall_offset_ns,
            "turns": self.turns,
            "written": self.written,
            "at_hand": self.at_hand,
            "held_back": self.held_back,
            "write_error": self.write_error,
            "lost": self.lost,
            "left": self.left,
            "missing_reports": self.missing_reports,
            "longest_silence_s": round(self.longest_silence_s, 3),
        }


class Roster:
    """All workers of one run."""

    def __init__(self, client_ids: list[str | None]) -> None:
        self.members = [Member(f"w{stripe}", client_id, stripe) for stripe, client_id in enumerate(client_ids)]

    def __len__(self) -> int:
        return len(self.members)

    def named(self, name: str) -> Member | None:
        """The worker of that name."""
        return next((member for member in self.members if member.name == name), None)

    def of_client(self, client_id: str) -> Member | None:
        """The worker behind one of Locust's ids; a local run has the one."""
        return next((member for member in self.members if member.client_id in (None, client_id)), None)

    @property
    def remote(self) -> bool:
        """There is a worker in another process: words to it take their time."""
        return any(member.client_id is not None for member in self.members)

    @property
    def present(self) -> list[Member]:
        """Those that are not lost."""
        return [member for member in self.members if not member.lost]

    @property
    def awaited(self) -> list[Member]:
        """Those whose turns a drain waits for: one that was lost and has been heard again is among them."""
        return [member for member in self.members if not member.lost or member.back]

    @property
    def gone(self) -> list[Member]:
        """Those whose part of the load is missing from some moment on: lost, or left."""
        return [member for member in self.members if member.lost or member.left]

    @property
    def lost(self) -> list[Member]:
        """Those that went missing."""
        return [member for member in self.members if member.lost]
