"""Workers that go missing while a run is under way."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import gevent

from inferload.swarm.roster import LOST_S, Member

if TYPE_CHECKING:
    from inferload.swarm.masterrun import MasterRun

logger = logging.getLogger(__name__)


def watch(run: MasterRun, clients: Any) -> None:
    """Notice who has gone, by Locust's heartbeats (`clients`, None in a local run) or by a silence of our own reports."""
    while True:
        gevent.sleep(0.25)
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
