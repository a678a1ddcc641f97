"""Set-up of the workers before the load: wait for them, compare clocks and versions, send assignments."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gevent

from inferload import __version__
from inferload.errors import UsageError
from inferload.master.lifecycle.workers import Member
from inferload.measure.clock import NS_PER_S, now_ns
from inferload.process import protocol
from inferload.process.protocol import Assignment

if TYPE_CHECKING:
    from inferload.master.lifecycle.master_run import MasterRun

logger = logging.getLogger(__name__)

WORKERS_S = 60.0  # time limit for all workers to connect
_LOG_S = 5.0  # between two log lines of the wait
_PINGS = 5
_PING_S = 15.0
_READY_S = 30.0
_READY_DATA_S = 300.0  # if workers read files first


def wait_for_workers(runner: Any, expected: int, stopped: Callable[[], bool]) -> None:
    """Wait for the expected workers, until `stopped` at most; UsageError after WORKERS_S. Return at once in a local run."""
    if not hasattr(runner, "clients"):
        return
    begun_ns, logged_s = now_ns(), 0.0
    while (ready := len(runner.clients.ready)) < expected and not stopped():
        waited_s = (now_ns() - begun_ns) / NS_PER_S
        if waited_s > WORKERS_S:
            raise UsageError(
                f"workers: {ready} of {expected} connected within {WORKERS_S:g} s; "
                "start the missing ones with --worker --master-host, or lower --expect-workers"
            )
        if waited_s - logged_s > _LOG_S:
            logged_s = waited_s
            logger.info("waiting for workers: %d of %d are connected", ready, expected)
        gevent.sleep(0.1)


def compare_clocks(run: MasterRun) -> None:
    """Ping every worker several times to determine clock offsets; UsageError if one does not reply."""
    for _ in range(_PINGS):
        for member in run.roster.members:
            run.send(protocol.PING, {"sent_ns": now_ns()}, member)
        gevent.sleep(0.02)
    deadline_ns = now_ns() + round(_PING_S * NS_PER_S)
    while any(member.rtt_ns == 0 for member in run.roster.members):
        if now_ns() > deadline_ns:
            missing = ", ".join(member.name for member in run.roster.members if member.rtt_ns == 0)
            raise UsageError(f"workers {missing}: no answer to a ping; do they run this version of inferload?")
        gevent.sleep(0.2)
        for member in run.roster.members:
            if member.rtt_ns == 0:  # Locust reports a worker as ready shortly before it accepts messages
                run.send(protocol.PING, {"sent_ns": now_ns()}, member)


def check_alike(members: Sequence[Member], digest: str) -> None:
    """Raise UsageError if a worker has another version of inferload, or was started with another scenario. `digest`: the master's.

    Counts of another version may have another meaning.
    """
    versions, scenarios = [], []
    for member in members:
        worker, facts = f"{member.name} on {member.facts.get('host')}", member.facts
        if facts.get("version") != __version__:
            versions.append(f"{worker} runs {facts.get('version') or 'an older one'}")
        if facts.get("scenario") not in (None, digest):
            scenarios.append(f"{worker} was started with scenario {facts['scenario'][:12]}")
    problems = []
    if versions:
        problems.append(f"{', '.join(versions)}, and the master inferload {__version__}; install the same on all")
    if scenarios:
        problems.append(
            f"{', '.join(scenarios)}, and the master with {digest[:12]}; workers need no --scenario: leave it out"
        )
    if problems:
        raise UsageError(f"workers: {'. '.join(problems)}")


def send_assignments(run: MasterRun) -> None:
    """Send every worker its assignment, and wait until all are ready; UsageError if one cannot take part."""
    for member in run.roster.members:
        run.send(protocol.PREPARE, _assignment(run, member).to_wire(), member)
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
