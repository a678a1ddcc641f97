"""Arrival schedule of a scenario: its process and its rate curve."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inferload.errors import UsageError
from inferload.numbers import exact
from inferload.scenario.files.data_files import find
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.arrivals import Closed, Gamma, Rated, TraceTimes
from inferload.scenario.schema.distributions import MOST
from inferload.scenario.schema.rate_profiles import RateSteps
from inferload.scenario.schema.user_profiles import UserSteps
from inferload.workload.arrivals import Schedule, unit_process
from inferload.workload.sessions import Sessions


def units_of(scenario: Scenario, sessions: Sessions) -> Iterator[float]:
    """Return the unit times of an open loop's arrivals, for a trace its times. UsageError for a malformed file of times."""
    arrivals = scenario.arrivals
    if isinstance(arrivals, TraceTimes):
        return sessions.arrivals_s() if arrivals.path is None else iter(read_times_s(arrivals.path, sessions.origin))
    return unit_process(arrivals.kind, scenario.seed, arrivals.burstiness if isinstance(arrivals, Gamma) else 1.0)


def schedule_of(scenario: Scenario, sessions: Sessions, rate: float, worker: int = 0, workers: int = 1) -> Schedule:
    """Return the arrivals of worker k of n in an open loop, with the initial rate of all workers."""
    arrivals = scenario.arrivals
    if isinstance(arrivals, Closed):
        raise ValueError("a closed loop has no schedule")
    units, curve = units_of(scenario, sessions), arrivals.curve(scenario.phases.warmup_s)
    return Schedule(units, rate, worker, workers, curve, sends=sessions.sends)


def step_bounds_s(scenario: Scenario) -> tuple[float, ...]:
    """Return the start times of the load steps, in seconds of the measure phase; empty without steps."""
    arrivals = scenario.arrivals
    profile = arrivals.profile if isinstance(arrivals, Closed | Rated) else None
    return () if profile is None else profile.bounds_s()


def step_levels(scenario: Scenario) -> list[dict[str, Any]]:
    """Return the load of each step: users, or sessions per second."""
    profile = scenario.arrivals.profile if isinstance(scenario.arrivals, Closed | Rated) else None
    if isinstance(profile, UserSteps):
        return [{"users": step.users} for step in profile.steps]
    if isinstance(profile, RateSteps):
        return [{"sessions_per_s": step.sessions_per_s * profile.scale} for step in profile.steps]
    return []


def times_digest(scenario: Scenario, origin: str) -> str | None:
    """Return the SHA-256 (hex) of the file of times; None without one. UsageError for a malformed file."""
    arrivals = scenario.arrivals
    if not isinstance(arrivals, TraceTimes) or arrivals.path is None:
        return None
    times_s = read_times_s(arrivals.path, origin)
    return hashlib.sha256(repr(times_s).encode()).hexdigest()


def read_times_s(path: str, origin: str) -> list[float]:
    """Read the times of a file, one per line. UsageError names the line that is invalid or out of order."""
    file: Path = find(path, origin)
    times_s: list[float] = []
    for number, line in enumerate(file.read_text(encoding="utf-8-sig", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            at_s = float(line)
        except ValueError:
            at_s = float("nan")
        if not 0 <= at_s <= MOST:
            raise UsageError(
                f"{path}:{number}: {line.strip()[:40]!r}: must be a number of seconds from 0 to {MOST:.0f}"
            )
        if times_s and at_s < times_s[-1]:
            raise UsageError(
                f"{path}:{number}: {exact(at_s)} s is before {exact(times_s[-1])} s of an earlier line; sort the file"
            )
        times_s.append(at_s)
    if not times_s:
        raise UsageError(f"{path}: contains no times; write one number of seconds per line")
    return times_s
