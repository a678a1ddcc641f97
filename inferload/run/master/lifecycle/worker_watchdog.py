"""Detection of lost and late workers during a run."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import gevent

from inferload.run.master.lifecycle.marks import Marks
from inferload.run.master.lifecycle.workers import LOST_S, START_LOST_S, Member, Roster
from inferload.run.process.silence import ROUND_S, SilenceClock

logger = logging.getLogger(__name__)


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
    clock = SilenceClock()
    while True:
        gevent.sleep(ROUND_S)
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
