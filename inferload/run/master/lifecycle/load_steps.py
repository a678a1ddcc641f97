"""Planned changes of the load on the master: mark each step, and change the users of a closed loop."""

import logging
from collections.abc import Callable, Iterable, Iterator

from inferload.base.clock import NS_PER_S
from inferload.base.errors import UsageError
from inferload.results.tables.cells import step_level
from inferload.run.master.lifecycle.marks import Marks
from inferload.run.master.workers.workers import Member
from inferload.run.process.greenlets import sleep_until
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.load.arrivals import Arrivals
from inferload.workload.sessions import Sessions

logger = logging.getLogger(__name__)


def check(scenario: Scenario, sessions: Sessions, workers: int) -> None:
    """Raise UsageError if arrivals are not possible, or if there are more workers than turns in flight."""
    scenario.arrivals.unit_times(scenario.seed, sessions)
    most = scenario.arrivals.most_in_flight
    if most is not None and most < workers:
        raise UsageError(
            f"arrivals.max_in_flight: {most}: less than the number of workers, {workers}, each of which needs a share; "
            f"raise it to {workers} or more, or start fewer workers"
        )


def check_times(scenario: Scenario, origin: str, members: Iterable[Member]) -> None:
    """Raise UsageError if a worker's file of arrival times differs from the master's."""
    digest = scenario.arrivals.times_digest(origin)
    for member in members:
        if member.facts.get("times_digest") != digest:
            raise UsageError(
                f"arrivals.path: the file of worker {member.name} on {member.facts.get('host')} differs from the master's; "
                "copy the same one to every machine"
            )


def follow(scenario: Scenario, measure_ns: int, marks: Marks, set_users: Callable[[int], None]) -> None:
    """Apply each change of the profile at its time, which counts from the measure phase. Return at the profile's end."""
    for at_s, users, text in _events(scenario.arrivals):
        at_ns = measure_ns + round(at_s * NS_PER_S)
        sleep_until(at_ns)
        if text:
            marks.add("step", text, at_ns)
            logger.info("%s", text)
        if users is not None and at_s > 0:
            set_users(users)


def _events(arrivals: Arrivals) -> Iterator[tuple[float, int | None, str]]:
    """Yield (seconds, users in a closed loop, text of the mark) of each change."""
    texts = [f"step {number} begins: {step_level(**level)}" for number, level in enumerate(arrivals.step_levels)]
    for number, (at_s, users) in enumerate(arrivals.user_changes):
        yield at_s, users, texts[number] if texts else ""
    if not arrivals.user_changes:
        for at_s, text in zip(arrivals.step_bounds_s, texts, strict=True):
            yield at_s, None, text
