"""When sessions start, in words and numbers, for the plan."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from inferload.numbers import duration, number, plural
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.arrivals import Closed, ConstantRate, Gamma, OpenArrivals, Poisson, Rated, TraceTimes
from inferload.scenario.schema.rate_profiles import RatePoints, RateProfile, RateRamp, RateSteps
from inferload.scenario.schema.user_profiles import UserProfile, UserSteps


def arrivals_in_words(scenario: Scenario) -> list[str]:
    """How sessions start, a line each."""
    arrivals = scenario.arrivals
    if isinstance(arrivals, Closed):
        return _closed(arrivals, scenario)
    return [_OPEN[arrivals.kind](arrivals), *_profile(arrivals, scenario), *_cap(arrivals)]


def _closed(arrivals: Closed, scenario: Scenario) -> list[str]:
    waits = "each starts a new session when its last one is over: a slow server is asked less"
    if arrivals.profile is not None:
        return [f"closed loop: {_users(arrivals.profile)}", *_beyond(arrivals.profile.ends_s, scenario), waits]
    ramp_s = spawn_duration_s(arrivals.users, arrivals.spawn_per_s)
    rate = f"{number(arrivals.spawn_per_s)} started a second"
    spawned = f"{rate}, all there after {duration(ramp_s)}" if ramp_s else "all started at once"
    return [f"closed loop: {plural(arrivals.users, 'user')}, {spawned}", waits]


def spawn_duration_s(users: int, spawn_per_s: float) -> float:
    """From the first user's start to the last one's: Locust starts a second's whole number of users at once."""
    at_once = max(1, math.floor(spawn_per_s))
    return (math.ceil(users / at_once) - 1) * at_once / spawn_per_s


def _users(profile: UserProfile) -> str:
    if isinstance(profile, UserSteps):
        return ", then ".join(f"{plural(one.users, 'user')} for {duration(one.for_s)}" for one in profile.steps)
    users = f"{profile.from_users} to {plural(profile.to_users, 'user')}"
    return f"{users} from {duration(profile.start_s)} to {duration(profile.end_s)}"


def _rated(how: str, arrivals: Rated) -> str:
    rate = "at a rate that changes" if arrivals.profile is not None else f"{number(arrivals.rate)} per second"
    return f"open loop: sessions start {how}, {rate}, whether the server keeps up or not"


def _constant(arrivals: ConstantRate) -> str:
    return _rated("at equal intervals", arrivals)


def _poisson(arrivals: Poisson) -> str:
    return _rated("at random instants", arrivals)


def _gamma(arrivals: Gamma) -> str:
    shape = arrivals.burstiness
    sort = "as random as can be" if shape == 1 else "in bursts" if shape < 1 else "more even than chance"
    return _rated(f"at random instants, {sort} (burstiness {number(shape)})", arrivals)


def _trace(arrivals: TraceTimes) -> str:
    whose = f"of {arrivals.path}" if arrivals.path else "of the trace"
    speed = "" if arrivals.speed == 1 else f", {number(arrivals.speed)} times as fast"
    return f"open loop: sessions start at the times {whose}{speed}, whether the server keeps up or not"


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
    scaled = f", all of it times {number(profile.scale)}" if profile.scale != 1 else ""
    return [f"{words}{scaled}; the first rate holds in the warm-up", *_beyond(profile.ends_s, scenario)]


def _beyond(ends_s: float, scenario: Scenario) -> list[str]:
    """A profile that ends after the measure phase or before it."""
    measure_s = scenario.phases.measure_s
    if measure_s is None or ends_s == measure_s:
        return []
    if ends_s > measure_s:
        return [f"the profile takes {duration(ends_s)}: what comes after measure_s, {duration(measure_s)}, is cut off"]
    return [f"the profile is over after {duration(ends_s)}: its last value holds for the rest of the measure phase"]


def _steps(profile: RateSteps) -> str:
    return ", then ".join(f"{number(one.sessions_per_s)}/s for {duration(one.for_s)}" for one in profile.steps)


def _ramp(profile: RateRamp) -> str:
    rates = f"{number(profile.from_sessions_per_s)}/s to {number(profile.to_sessions_per_s)}/s"
    return f"{rates} in a straight line, from {duration(profile.start_s)} to {duration(profile.end_s)}"


def _points(profile: RatePoints) -> str:
    rates = profile.rates_per_s
    where = f" of {profile.path}" if profile.path else ""
    return f"rates by {plural(len(rates), 'point')}{where}, {number(min(rates))}/s to {number(max(rates))}/s"


_PROFILES: Mapping[type[RateProfile], Callable[[Any], str]] = {
    RateSteps: _steps,
    RateRamp: _ramp,
    RatePoints: _points,
}


def _cap(arrivals: OpenArrivals) -> list[str]:
    if arrivals.max_in_flight is None:
        return []
    then = (
        "a turn waits until one ends, which its lag counts"
        if arrivals.when_full == "delay"
        else "a new session is dropped, and counted; later turns wait"
    )
    return [f"at most {plural(arrivals.max_in_flight, 'turn')} in flight: at that limit {then}"]
