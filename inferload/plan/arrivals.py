"""Lines of the plan on arrivals."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from inferload.numbers import duration, number, plural
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.arrivals import Closed, ConstantRate, Gamma, OpenArrivals, Poisson, Rated, TraceTimes
from inferload.scenario.schema.rate_profiles import RatePoints, RateProfile, RateRamp, RateSteps
from inferload.scenario.schema.user_profiles import UserProfile, UserSteps


def arrivals_in_words(scenario: Scenario) -> list[str]:
    """Return the lines on the start of sessions."""
    arrivals = scenario.arrivals
    if isinstance(arrivals, Closed):
        return _closed(arrivals, scenario)
    return [_OPEN[arrivals.kind](arrivals), *_profile(arrivals, scenario), *_cap(arrivals)]


def _closed(arrivals: Closed, scenario: Scenario) -> list[str]:
    loop = "a user starts its next session when one ends: a slow server reduces the load"
    if arrivals.profile is not None:
        return [f"closed loop: {_users(arrivals.profile)}", *_beyond(arrivals.profile.ends_s, scenario), loop]
    ramp_s = spawn_duration_s(arrivals.users, arrivals.spawn_per_s)
    rate = f"{number(arrivals.spawn_per_s)} started per second"
    spawned = f"{rate}, all running after {duration(ramp_s)}" if ramp_s else "all started at once"
    return [f"closed loop: {plural(arrivals.users, 'user')}, {spawned}", loop]


def spawn_duration_s(users: int, spawn_per_s: float) -> float:
    """Return the time from the first user's start to the last one's. Locust starts a whole number of users at once."""
    at_once = max(1, math.floor(spawn_per_s))
    return (math.ceil(users / at_once) - 1) * at_once / spawn_per_s


def _users(profile: UserProfile) -> str:
    if isinstance(profile, UserSteps):
        return ", then ".join(f"{plural(step.users, 'user')} for {duration(step.for_s)}" for step in profile.steps)
    users = f"{profile.from_users} to {plural(profile.to_users, 'user')}"
    return f"{users} from {duration(profile.start_s)} to {duration(profile.end_s)}"


def _rated(how: str, arrivals: Rated) -> str:
    rate = "at a changing rate" if arrivals.profile is not None else f"{number(arrivals.rate)} per second"
    return f"open loop: sessions start {how}, {rate}, independent of the server"


def _constant(arrivals: ConstantRate) -> str:
    return _rated("at equal intervals", arrivals)


def _poisson(arrivals: Poisson) -> str:
    return _rated("at random times", arrivals)


def _gamma(arrivals: Gamma) -> str:
    shape = arrivals.burstiness
    kind = "Poisson" if shape == 1 else "in bursts" if shape < 1 else "more regular than Poisson"
    return _rated(f"at random times, {kind} (burstiness {number(shape)})", arrivals)


def _trace(arrivals: TraceTimes) -> str:
    source = arrivals.path or "the trace"
    speed = "" if arrivals.speed == 1 else f", {number(arrivals.speed)} times as fast"
    return f"open loop: sessions start at the times of {source}{speed}, independent of the server"


_OPEN: Mapping[str, Callable[[Any], str]] = {
    "constant": _constant,
    "poisson": _poisson,
    "gamma": _gamma,
    "trace": _trace,
}


def _profile(arrivals: OpenArrivals, scenario: Scenario) -> list[str]:
    if not isinstance(arrivals, Rated) or arrivals.profile is None:
        return []
    profile = arrivals.profile
    words = _PROFILES[type(profile)](profile)
    scaled = f", all rates times {number(profile.scale)}" if profile.scale != 1 else ""
    return [f"{words}{scaled}; the warm-up has the first rate", *_beyond(profile.ends_s, scenario)]


def _beyond(ends_s: float, scenario: Scenario) -> list[str]:
    """Return a line if the profile and the measure phase have different lengths."""
    measure_s = scenario.phases.measure_s
    if measure_s is None or ends_s == measure_s:
        return []
    if ends_s > measure_s:
        return [
            f"the profile lasts {duration(ends_s)}, longer than measure_s {duration(measure_s)}: its end is cut off"
        ]
    return [f"the profile ends after {duration(ends_s)}: its last value holds for the rest of the measure phase"]


def _steps(profile: RateSteps) -> str:
    return ", then ".join(f"{number(step.sessions_per_s)}/s for {duration(step.for_s)}" for step in profile.steps)


def _ramp(profile: RateRamp) -> str:
    rates = f"{number(profile.from_sessions_per_s)}/s to {number(profile.to_sessions_per_s)}/s"
    return f"linear ramp {rates}, from {duration(profile.start_s)} to {duration(profile.end_s)}"


def _points(profile: RatePoints) -> str:
    rates = profile.rates_per_s
    source = f" of {profile.path}" if profile.path else ""
    return f"rates by {plural(len(rates), 'point')}{source}, {number(min(rates))}/s to {number(max(rates))}/s"


_PROFILES: Mapping[type[RateProfile], Callable[[Any], str]] = {
    RateSteps: _steps,
    RateRamp: _ramp,
    RatePoints: _points,
}


def _cap(arrivals: OpenArrivals) -> list[str]:
    if arrivals.max_in_flight is None:
        return []
    action = (
        "turns wait, which their lag counts"
        if arrivals.when_full == "delay"
        else "new sessions are dropped and counted; later turns wait"
    )
    return [f"at most {plural(arrivals.max_in_flight, 'turn')} in flight: at that limit {action}"]
