"""Detection of lost and late workers during a run, and of a master that is near its limit."""

import logging
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import gevent

from inferload.base.clock import NS_PER_S, cpu_ns, now_ns
from inferload.run.master.lifecycle.marks import Marks
from inferload.run.master.workers.workers import LOST_S, START_LOST_S, Member, Roster
from inferload.run.process.greenlets import ROUND_S, SilenceClock

logger = logging.getLogger(__name__)

BUSY_SHARE = 0.7  # of a core
BUSY_LATE_S = 0.3
_ROUNDS = 20  # that are judged together, five seconds of a master that is not busy


class OwnLoad:
    """CPU time of the master, and delays of its event loop, by rounds that are due every ROUND_S."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._restart()

    def _restart(self) -> None:
        self._late_s: list[float] = []
        self._begun_ns = self._round_ns = now_ns()
        self._cpu_ns, self._turns = cpu_ns(), self._ended

    @property
    def _ended(self) -> int:
        return sum(member.turns for member in self._roster.members)

    def warning(self) -> str | None:
        """Add a round; after _ROUNDS of them return a warning if they show a busy master."""
        at_ns = now_ns()
        self._late_s.append((at_ns - self._round_ns) / NS_PER_S - ROUND_S)
        self._round_ns = at_ns
        if len(self._late_s) < _ROUNDS:
            return None
        late_s, lasted_s = median(self._late_s), (at_ns - self._begun_ns) / NS_PER_S
        share, turns_per_s = (cpu_ns() - self._cpu_ns) / NS_PER_S / lasted_s, (self._ended - self._turns) / lasted_s
        self._restart()
        if share <= BUSY_SHARE and late_s <= BUSY_LATE_S:
            return None
        load = f"{len(self._roster)} workers, {turns_per_s:,.0f} turns/s"
        costs = f"{share:.0%} of a core, event loop late by {late_s:.1f} s"
        return (
            f"the master is near its limit: {load}, {costs}. Beyond it, live figures are old and phases reach the workers late; "
            "use fewer workers with more turns each, and a core for the master alone"
        )


def newcomers(roster: Roster, clients: Mapping[str, Any], known: set[str]) -> list[str]:
    """Return the IDs of Locust's workers that are neither of the run nor in `known`, and add them to `known`."""
    of_run = {member.client_id for member in roster.members}
    new = [
        client_id
        for client_id, client in clients.items()
        if client.state != "missing" and client_id not in of_run | known
    ]
    known.update(new)
    return new


def watch(roster: Roster, clients: Mapping[str, Any], marks: Marks, on_lost: Callable[[], None]) -> None:
    """Detect lost workers, by Locust's list of workers (`clients`, empty in a local run) or by missing reports. Does not return."""
    known: set[str] = set()
    clock, own = SilenceClock(), OwnLoad(roster) if roster.remote else None
    while True:
        gevent.sleep(ROUND_S)
        if own is not None and (text := own.warning()) is not None:
            own = None  # one warning is enough
            marks.add("master_busy", text)
            logger.warning("%s", text)
        for client_id in newcomers(roster, clients, known):
            text = f"worker {client_id} connected during the run: it takes no part in it"
            marks.add("worker_late", text, client=client_id)
            logger.warning("%s", text)
        mark_lost(roster, clients, clock.listening_s(), marks, on_lost)


def mark_lost(
    roster: Roster, clients: Mapping[str, Any], listening_s: float, marks: Marks, on_lost: Callable[[], None]
) -> None:
    """Mark the workers that were lost since the last call. One that reports again is awaited until its reports stop again."""
    for member in roster.awaited:
        if member.client_id is None or member.drained or not _gone(member, clients, listening_s):
            continue
        if not member.lost:
            text = f"worker {member.name} lost: nothing heard for {member.silent_s():.1f} s"
            marks.add("worker_lost", text, worker=member.name)
            logger.error("%s; its part of the load is missing from here on", text)
        member.lost, member.back = True, False
        on_lost()


def _gone(member: Member, clients: Mapping[str, Any], listening_s: float) -> bool:
    if min(member.silent_s(), listening_s) > (LOST_S if member.began else START_LOST_S):
        return True
    # Locust's state "missing" adds nothing to missing reports, and remains for a while after a worker reports again. A worker that
    # has announced its end is not in the list.
    return not member.lost and member.client_id not in clients
