"""Before the load: all workers waited for, their clocks compared, and their assignments handed out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gevent

from inferload import __version__
from inferload.errors import UsageError
from inferload.master.lifecycle.workers import Member
from inferload.measure.clock import NS_PER_S, now_ns
from inferload.process import messages
from inferload.process.messages import Assignment

if TYPE_CHECKING:
    from inferload.master.lifecycle.run import MasterRun

logger = logging.getLogger(__name__)

WORKERS_S = 60.0  # for all workers to come
_TOLD_S = 5.0  # between two lines that say who is missing
_PINGS = 5
_PING_S = 15.0
_READY_S = 30.0
_READY_DATA_S = 300.0  # where a worker may have to go through a large file first


def wait_for_workers(runner: Any, expected: int, stopped: Callable[[], bool]) -> None:
    """Wait for missing workers, for a limited time and until `stopped`; a local run has none. UsageError: they did not come."""
    if not hasattr(runner, "clients"):
        return
    begun_ns, told_s = now_ns(), 0.0
    while (ready := len(runner.clients.ready)) < expected and not stopped():
        waited_s = (now_ns() - begun_ns) / NS_PER_S
        if waited_s > WORKERS_S:
            raise UsageError(
                f"workers: {ready} of {expected} came within {WORKERS_S:g} s; "
                "start the missing ones with --worker --master-host, or lower --expect-workers"
            )
        if waited_s - told_s > _TOLD_S:
            told_s = waited_s
            logger.info("waiting for workers: %d of %d are here", ready, expected)
        gevent.sleep(0.1)


def compare_clocks(run: MasterRun) -> None:
    """Ping every worker a few times; UsageError where one does not answer."""
    for _ in range(_PINGS):
        for member in run.roster.members:
            run.tell(messages.PING, {"sent_ns": now_ns()}, member)
        gevent.sleep(0.02)
    deadline_ns = now_ns() + round(_PING_S * NS_PER_S)
    while any(member.rtt_ns == 0 for member in run.roster.members):
        if now_ns() > deadline_ns:
            missing = ", ".join(member.name for member in run.roster.members if member.rtt_ns == 0)
            raise UsageError(f"workers {missing}: no answer to a ping; do they run this version of inferload?")
        gevent.sleep(0.2)
        for member in run.roster.members:
            if member.rtt_ns == 0:  # Locust calls a worker ready a moment before it takes our messages
                run.tell(messages.PING, {"sent_ns": now_ns()}, member)


def check_alike(members: Sequence[Member], digest: str) -> None:
    """UsageError where a worker runs another version of inferload, or was started with another scenario, than this process.

    What it counts may then mean something else; and whoever named a scenario means that it is run. `digest`: of the master's.
    """
    versions, named = [], []
    for member in members:
        who, facts = f"{member.name} on {member.facts.get('host')}", member.facts
        if facts.get("version") != __version__:
            versions.append(f"{who} runs {facts.get('version') or 'an older one'}")
        if facts.get("scenario") not in (None, digest):
            named.append(f"{who} was started with scenario {facts['scenario'][:12]}")
    wrong = []
    if versions:
        wrong.append(f"{', '.join(versions)}, and the master inferload {__version__}; install the same on all")
    if named:
        wrong.append(f"{', '.join(named)}, and the master with {digest[:12]}; workers need no --scenario: leave it out")
    if wrong:
        raise UsageError(f"workers: {'. '.join(wrong)}")


def hand_out(run: MasterRun) -> None:
    """Give every worker its assignment and wait until all are ready; UsageError where one cannot take its part."""
    for member in run.roster.members:
        run.tell(messages.PREPARE, _assignment(run, member).to_wire(), member)
    ready_s = _READY_DATA_S if run.preflight.data.has_files else _READY_S
    deadline_ns = now_ns() + round(ready_s * NS_PER_S)
    while late := [member for member in run.roster.members if not (member.ready and run.takes_users(member))]:
        if now_ns() > deadline_ns:
            missing = ", ".join(member.name for member in late)
            raise UsageError(f"workers {missing}: not ready within {ready_s:g} s; see their logs")
        gevent.sleep(0.01)
    for member in run.roster.members:
        if member.facts.get("error"):
            raise UsageError(f"worker {member.name} on {member.facts.get('host')}: {member.facts['error']}")


def _assignment(run: MasterRun, member: Member) -> Assignment:
    spec, facts = run.spec, run.preflight.facts
    return Assignment(
        run_id=run.run_id,
        salt=run.salt,
        scenario_text=spec.scenario.resolved_text(),
        origin=spec.origin,
        stripe=member.stripe,
        stripes=len(run.roster),
        name=member.name,
        target_urls=[target.url for target in spec.targets],
        model=facts.model,
        takes_salt=run.preflight.salts,
        vocabulary=run.preflight.vocabulary.to_wire(),
        run_dir=str(run.directory.path),
        token=run.directory.token,
        offset_ns=member.offset_ns,
        rate=spec.rate,
        origins=None if run.own.origins is None else sorted(run.own.origins),
        data=run.preflight.data.to_wire(),
    )
