"""Workers that go missing while a run is under way."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gevent

from inferload.master.lifecycle.workers import LOST_S, START_LOST_S, Member, Roster
from inferload.process.silence import ROUND_S, SilenceClock

if TYPE_CHECKING:
    from inferload.master.lifecycle.run import MasterRun

logger = logging.getLogger(__name__)


def newcomers(roster: Roster, clients: Mapping[str, Any], known: set[str]) -> list[str]:
    """Ids of Locust's workers that are neither of the run nor known; they are known from now on."""
    ours = {member.client_id for member in roster.members}
    new = [client_id for client_id, client in clients.items() if client.state != "missing" and client_id not in ours]
    found = [client_id for client_id in new if client_id not in known]
    known.update(found)
    return found


def watch(run: MasterRun, clients: Any) -> None:
    """Notice who has gone: from Locust's list of workers (`clients`, None in a local run), or by a silence of our own reports."""
    known: set[str] = set()
    clock = SilenceClock()
    while True:
        gevent.sleep(ROUND_S)
        for client_id in newcomers(run.roster, clients or {}, known):
            text = f"worker {client_id} came while the run was under way: it takes no part in it"
            run.marks.add("worker_late", text, client=client_id)
            logger.warning("%s", text)
        look_round(run, clients, clock.listening_s())
        if not run.roster.present:
            run.request_stop("the loss of every worker", early=True)


def look_round(run: MasterRun, clients: Any, listening_s: float) -> None:
    """Mark who has gone since the last round; one that was given up and heard again is waited for until it is silent once more."""
    for member in run.roster.awaited:
        if member.client_id is None or member.drained or not _gone(member, clients, listening_s):
            continue
        if not member.lost:
            text = f"worker {member.name} lost: nothing heard for {member.silent_s():.1f} s"
            run.marks.add("worker_lost", text, worker=member.name)
            logger.error("%s; its part of the load is missing from here on", text)
        member.lost, member.back = True, False
        run.look_who_is_left()


def _gone(member: Member, clients: Any, listening_s: float) -> bool:
    if min(member.silent_s(), listening_s) > (LOST_S if member.began else START_LOST_S):
        return True
    # Locust's state "missing" says no more than our own reports, and stays for a while after a worker is heard again. One that
    # said that it ends is not in the list any more.
    return not member.lost and clients.get(member.client_id) is None
