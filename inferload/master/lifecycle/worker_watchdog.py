"""Detection of lost and late workers during a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gevent

from inferload.master.lifecycle.workers import LOST_S, START_LOST_S, Member, Roster
from inferload.process.silence import ROUND_S, SilenceClock

if TYPE_CHECKING:
    from inferload.master.lifecycle.master_run import MasterRun

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


def watch(run: MasterRun, clients: Any) -> None:
    """Detect lost workers, by Locust's list of workers (`clients`, None in a local run) or by missing reports. Does not return."""
    known: set[str] = set()
    clock = SilenceClock()
    while True:
        gevent.sleep(ROUND_S)
        for client_id in newcomers(run.roster, clients or {}, known):
            text = f"worker {client_id} connected during the run: it takes no part in it"
            run.marks.add("worker_late", text, client=client_id)
            logger.warning("%s", text)
        mark_lost(run, clients, clock.listening_s())
        if not run.roster.present:
            run.request_stop("the loss of every worker", early=True)


def mark_lost(run: MasterRun, clients: Any, listening_s: float) -> None:
    """Mark the workers that were lost since the last call. One that is heard again is awaited until its next silence."""
    for member in run.roster.awaited:
        if member.client_id is None or member.drained or not _gone(member, clients, listening_s):
            continue
        if not member.lost:
            text = f"worker {member.name} lost: nothing heard for {member.silent_s():.1f} s"
            run.marks.add("worker_lost", text, worker=member.name)
            logger.error("%s; its part of the load is missing from here on", text)
        member.lost, member.back = True, False
        run.on_lost()


def _gone(member: Member, clients: Any, listening_s: float) -> bool:
    if min(member.silent_s(), listening_s) > (LOST_S if member.began else START_LOST_S):
        return True
    # Locust's state "missing" adds nothing to missing reports, and remains for a while after a worker is heard again. A worker that
    # has announced its end is not in the list.
    return not member.lost and clients.get(member.client_id) is None
