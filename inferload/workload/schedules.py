"""From a scenario to the schedule of its arrivals: which process, which curve."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inferload.errors import UsageError
from inferload.scenario.files.data_files import find
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.arrivals import Closed, Gamma, Rated, TraceTimes
from inferload.scenario.schema.rate_profiles import RateSteps
from inferload.scenario.schema.user_profiles import UserSteps
from inferload.workload.arrivals import Schedule, unit_process
from inferload.workload.sessions import Sessions


def units_of(scenario: Scenario, sessions: Sessions) -> Iterator[float]:
    """The unit times of an open loop's arrivals; of a trace, its own seconds. UsageError where a file of times is none."""
    arrivals = scenario.arrivals
    if isinstance(arrivals, TraceTimes):
        return sessions.arrivals_s() if arrivals.path is None else iter(read_times_s(arrivals.path, sessions.origin))
    return unit_process(arrivals.kind, scenario.seed, arrivals.burstiness if isinstance(arrivals, Gamma) else 1.0)


def schedule_of(scenario: Scenario, sessions: Sessions, rate: float, worker: int = 0, workers: int = 1) -> Schedule:
    """The arrivals of worker k of n in an open loop that begins at this rate (of the whole fleet)."""
    arrivals = scenario.arrivals
    if isinstance(arrivals, Closed):
        raise ValueError("a closed loop has no schedule")
    units, curve = units_of(scenario, sessions), arrivals.curve(scenario.phases.warmup_s)
    return Schedule(units, rate, worker, workers, curve, wanted=sessions.sends)


def step_bounds_s(scenario: Scenario) -> tuple[float, ...]:
    """Where the load's steps begin, in seconds of the measure phase; empty where it has none."""
    arrivals = scenario.arrivals
    profile = arrivals.profile if isinstance(arrivals, Closed | Rated) else None
    return () if profile is None else profile.bounds_s()


def step_levels(scenario: Scenario) -> list[dict[str, Any]]:
    """What each step asks for, in the order of the steps: users, or sessions per second."""
    profile = scenario.arrivals.profile if isinstance(scenario.arrivals, Closed | Rated) else None
    if isinstance(profile, UserSteps):
        return [{"users": one.users} for one in profile.steps]
    if isinstance(profile, RateSteps):
        return [{"sessions_per_s": one.sessions_per_s * profile.scale} for one in profile.steps]
    return []


def times_digest(scenario: Scenario, origin: str) -> str | None:
    """What tells that two machines read the same file of times; None where there is none. UsageError where it is wrong."""
    arrivals = scenario.arrivals
    if not isinstance(arrivals, TraceTimes) or arrivals.path is None:
        return None
    times_s = read_times_s(arrivals.path, origin)
    return hashlib.sha256(repr(times_s).encode()).hexdigest()


def read_times_s(path: str, origin: str) -> list[float]:
    """The times of a file, one in each line; UsageError names the line that is none, or goes back."""
    file: Path = find(path, origin)
    times_s: list[float] = []
    for number, line in enumerate(file.read_text(encoding="utf-8-sig", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            at_s = float(line)
        except ValueError:
            at_s = float("nan")
        if not 0 <= at_s < float("inf"):
            raise UsageError(f"{path}:{number}: {line.strip()[:40]!r}: must be a number of seconds from 0 on")
        if times_s and at_s < times_s[-1]:
            raise UsageError(
                f"{path}:{number}: {at_s:g} s is before {times_s[-1]:g} s, the time before it; sort the file"
            )
        times_s.append(at_s)
    if not times_s:
        raise UsageError(f"{path}: no time in it; one number of seconds a line")
    return times_s
