"""Workers that go missing while a run is under way."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gevent

from inferload.swarm.roster import LOST_S, Member, Roster

if TYPE_CHECKING:
    from inferload.swarm.masterrun import MasterRun

logger = logging.getLogger(__name__)


def newcomers(roster: Roster, clients: Mapping[str, Any], known: set[str]) -> list[str]:
    """Ids of Locust's workers that are neither of the run nor known; they are known from now on."""
    ours = {member.client_id for member in roster.members}
    new = [client_id for client_id, client in clients.items() if client.state != "missing" and client_id not in ours]
    found = [client_id for client_id in new if client_id not in known]
    known.update(found)
    return found


def watch(run: MasterRun, clients: Any) -> None:
    """Notice who has gone, by Locust's heartbeats (`clients`, None in a local run) or by a silence of our own reports."""
    known: set[str] = set()
    while True:
        gevent.sleep(0.25)
        for client_id in newcomers(run.roster, clients or {}, known):
            text = f"worker {client_id} came while the run was under way: it takes no part in it"
            run.marks.add("worker_late", text, client=client_id)
            logger.warning("%s", text)
        for member in run.roster.present:
            if member.client_id is not None and not member.drained and _gone(member, clients):
                member.lost = True
                text = f"worker {member.name} lost: nothing heard for {member.silent_s():.1f} s"
                run.marks.add("worker_lost", text, worker=member.name)
                logger.error("%s; its part of the load is missing from here on", text)
                run.look_who_is_left()
        if not run.roster.present:
            run.request_stop("the loss of every worker")


def _gone(member: Member, clients: Any) -> bool:
    client = clients.get(member.client_id)
    return member.silent_s() > LOST_S or client is None or client.state == "missing"
