"""Set-up of the workers before the load: wait for them, compare clocks, versions and files, send assignments."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gevent
from msgspec import structs

from inferload import __version__
from inferload.base.clock import NS_PER_S, is_virtual, now_ns
from inferload.base.errors import UsageError
from inferload.base.numbers import plural
from inferload.locust_adapters.process import WorkerCount
from inferload.results import readers
from inferload.run.master.workers.workers import Member, Send
from inferload.run.process import protocol
from inferload.run.process.program_code import ProgramCode
from inferload.run.process.protocol import Assignment
from inferload.scenario.scenario import Scenario
from inferload.workload.sessions import Sessions

logger = logging.getLogger(__name__)

_LOG_S = 5.0  # between two log lines of the wait
_PINGS = 5
_PING_INTERVAL_S = 0.02  # of workers that are other processes
_NAMED = 3  # files of a worker in a message
_PING_S = 15.0
_READY_S = 30.0
_READY_DATA_S = 300.0  # if workers read files first
_SAME_SIGNAL_S = 1.0  # a signal to the process group can end the workers before the master receives it


def wait_for_workers(runner: Any, workers: WorkerCount, stopped: Callable[[], bool]) -> None:
    """Wait for the expected workers, until `stopped` at most; UsageError after the time limit. Return at once in a local run."""
    if not hasattr(runner, "clients"):
        return
    begun_ns, logged_s, expected = now_ns(), 0.0, workers.expected
    while (ready := len(runner.clients.ready)) < expected and not stopped():
        waited_s = (now_ns() - begun_ns) / NS_PER_S
        if waited_s > workers.wait_s:
            raise UsageError(
                f"workers: {ready} of {expected} connected within {workers.wait_s:g} s; start the missing ones with --worker "
                "--master-host, wait longer with --expect-workers-max-wait, or lower --expect-workers"
            )
        if waited_s - logged_s > _LOG_S:
            logged_s = waited_s
            logger.info("waiting for workers: %d of %d are connected", ready, expected)
        gevent.sleep(0.1)
    if workers.most is not None and ready > workers.most:
        text = "%d workers are connected; the run uses the first %d (--expect-workers, --processes)"
        logger.warning(text, ready, workers.most)


def check_connected(members: Sequence[Member], clients: Mapping[str, Any], check_stop: Callable[[], None]) -> None:
    """Raise UsageError if a worker has disconnected, unless `check_stop` raises before or shortly afterwards."""
    check_stop()
    if gone := [member.name for member in members if member.client_id not in (None, *clients)]:
        gevent.sleep(_SAME_SIGNAL_S)
        check_stop()
        raise UsageError(f"workers {', '.join(gone)}: disconnected before the load; see their logs")


def compare_clocks(members: Sequence[Member], send: Send, check: Callable[[], None]) -> None:
    """Ping every worker several times to determine clock offsets; UsageError if one does not reply.

    `check`: called during the wait; raises an exception to end it.
    """
    for _ in range(_PINGS):
        for member in members:
            send(protocol.PING, {"sent_ns": now_ns()}, member)
        gevent.sleep(_PING_INTERVAL_S if any(member.client_id for member in members) else 0)
    deadline_ns = now_ns() + round(_PING_S * NS_PER_S)
    while any(member.clock.rtt_ns == 0 for member in members):
        check()
        if now_ns() > deadline_ns:
            missing = ", ".join(member.name for member in members if member.clock.rtt_ns == 0)
            raise UsageError(f"workers {missing}: no answer to a ping; do they run this version of inferload?")
        gevent.sleep(0.2)
        for member in members:
            if member.clock.rtt_ns == 0:  # Locust reports a worker as ready shortly before it accepts messages
                send(protocol.PING, {"sent_ns": now_ns()}, member)


def check_alike(members: Sequence[Member], digest: str) -> None:
    """Raise UsageError if a worker has another version of inferload, or was started with another scenario. `digest`: the master's.

    Counts of another version may have another meaning.
    """
    versions, scenarios = [], []
    for member in members:
        worker, facts = f"{member.name} on {member.facts.get('host')}", member.facts
        if facts.get("version") != __version__:
            versions.append(f"{worker} runs {facts.get('version') or 'an unknown version'}")
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


def send_assignments(
    members: Sequence[Member],
    assignment_of: Callable[[Member], Assignment],
    send: Send,
    clients: Mapping[str, Any],
    check: Callable[[], None],
    *,
    reads_files: bool,
) -> None:
    """Send every worker its assignment, and wait until all are ready; UsageError if one cannot take part.

    `clients`: Locust's list of workers, empty in a local run. `check`: called during the wait; raises an exception to end it.
    `reads_files`: workers read files before they are ready.
    """
    for member in members:
        send(protocol.PREPARE, structs.asdict(assignment_of(member)), member)
    ready_s = _READY_DATA_S if reads_files else _READY_S
    deadline_ns = now_ns() + round(ready_s * NS_PER_S)
    while late := [member for member in members if not (member.ready and _takes_users(member, clients))]:
        check()
        if now_ns() > deadline_ns:
            missing = ", ".join(member.name for member in late)
            raise UsageError(f"workers {missing}: not ready within {ready_s:g} s; see their logs")
        gevent.sleep(0.01)
    for member in members:
        if member.facts.get("error"):
            raise UsageError(f"worker {member.name} on {member.facts.get('host')}: {member.facts['error']}")


def check_arrivals(scenario: Scenario, sessions: Sessions, workers: int) -> None:
    """Raise UsageError if arrivals are not possible, or if there are more workers than turns in flight."""
    scenario.arrivals.unit_times(scenario.seed, sessions)
    most = scenario.arrivals.most_in_flight
    if most is not None and most < workers:
        raise UsageError(
            f"arrivals.max_in_flight: {most}: less than the number of workers, {workers}, each of which needs a share; "
            f"raise it to {workers} or more, or start fewer workers"
        )


def check_times(scenario: Scenario, origin: str, members: Sequence[Member]) -> None:
    """Raise UsageError if a worker's file of arrival times differs from the master's."""
    digest = scenario.arrivals.times_digest(origin)
    for member in members:
        if member.facts.get("times_digest") != digest:
            raise UsageError(
                f"arrivals.path: the file of worker {member.name} on {member.facts.get('host')} differs from the master's; "
                "copy the same one to every machine"
            )


def check_programs(members: Sequence[Member], program: ProgramCode) -> None:
    """Raise UsageError if a worker has imported another program than the master, `program`: it would send another load."""
    problems = []
    for member in members:
        differing = program.differences(member.facts["program"])
        if differing:
            more = f" and {plural(len(differing) - _NAMED, 'other file')}" if len(differing) > _NAMED else ""
            problems.append(f"{member.name} on {member.facts.get('host')}: {', '.join(differing[:_NAMED])}{more}")
    if problems:
        raise UsageError(
            f"workers: not the master's program: {'; '.join(problems)}; start every worker with the same locustfile and the same "
            "modules below its folder"
        )


def log_readers(members: Sequence[Member]) -> None:
    """Log the readers of the workers' sockets, with advice where the compiled one could be used and is not."""
    if is_virtual():
        return
    uses = readers.uses_of(member.readers for member in members)
    logger.info("reader of the sockets: %s", readers.text(uses) or "not known")
    for sentence in readers.advice(uses):
        logger.warning("%s", sentence)


def _takes_users(member: Member, clients: Mapping[str, Any]) -> bool:
    """Return True if Locust would give users to a worker, which it does unless the worker is missing."""
    if member.client_id is None:
        return True
    client = clients.get(member.client_id)
    return client is not None and client.state != "missing"
