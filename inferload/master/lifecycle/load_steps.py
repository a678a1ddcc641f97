"""Planned changes of the load on the master: mark each step, and change the users of a closed loop."""

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import gevent

from inferload.errors import UsageError
from inferload.measure.clock import NS_PER_S, now_ns
from inferload.results.terminal_tables import step_level
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.arrivals import Closed, OpenArrivals, TraceTimes
from inferload.workload.schedules import step_bounds_s, step_levels, times_digest, units_of

if TYPE_CHECKING:
    from inferload.master.lifecycle.master_run import MasterRun

logger = logging.getLogger(__name__)


def check(run: "MasterRun") -> None:
    """Raise UsageError if arrivals are not possible, or if there are more workers than turns in flight."""
    scenario, workers = run.spec.scenario, len(run.roster)
    if isinstance(scenario.arrivals, TraceTimes):
        units_of(scenario, run.preflight.sessions)
    arrivals = scenario.arrivals
    most = arrivals.max_in_flight if isinstance(arrivals, OpenArrivals) else None
    if most is not None and most < workers:
        raise UsageError(
            f"arrivals.max_in_flight: {most}: less than the number of workers, {workers}, each of which needs a share; "
            f"raise it to {workers} or more, or start fewer workers"
        )


def check_times(run: "MasterRun") -> None:
    """Raise UsageError if a worker's file of arrival times differs from the master's."""
    digest = times_digest(run.spec.scenario, run.spec.origin)
    for member in run.roster.members:
        if member.facts.get("times_digest") != digest:
            raise UsageError(
                f"arrivals.path: the file of worker {member.name} on {member.facts.get('host')} differs from the master's; "
                "copy the same one to every machine"
            )


def follow(run: "MasterRun", start_users: Callable[[int, float], None]) -> None:
    """Apply each change of the profile at its time, which counts from the measure phase. Return at the profile's end."""
    measure_ns = next(window.start_ns for window in run.windows if window.phase == "measure")
    for at_s, users, text in _events(run.spec.scenario):
        at_ns = measure_ns + round(at_s * NS_PER_S)
        while (left_ns := at_ns - now_ns()) > 0:
            gevent.sleep(left_ns / NS_PER_S)
        if text:
            run.marks.add("step", text, run.anchor.to_wall_ns(at_ns))
            logger.info("%s", text)
        if users is not None and at_s > 0:
            run.steering.planned_users(users)
            start_users(users, run.spec.spawn_per_s)


def _events(scenario: Scenario) -> Iterator[tuple[float, int | None, str]]:
    """Yield (seconds, users in a closed loop, text of the mark) of each change."""
    levels = [step_level(level) for level in step_levels(scenario)]
    bounds = step_bounds_s(scenario)
    if isinstance(scenario.arrivals, Closed) and scenario.arrivals.profile is not None:
        for number, (at_s, users) in enumerate(scenario.arrivals.profile.changes()):
            yield at_s, users, f"step {number} begins: {levels[number]}" if bounds else ""
        return
    for number, at_s in enumerate(bounds):
        yield at_s, None, f"step {number} begins: {levels[number]}"
