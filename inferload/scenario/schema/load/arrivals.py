"""Schema of `arrivals`: closed loops, and open loops by their arrival process.

A process is drawn at unit rate, with one arrival per unit of time on average.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import accumulate, count
from random import Random
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from inferload.base.numbers import duration, number, plural
from inferload.scenario.schema.base import AtLeastOne, one_of, optional
from inferload.scenario.schema.distributions import Positive
from inferload.scenario.schema.load import arrival_kind as kinds
from inferload.scenario.schema.load.load_profiles import LoadProfile, UserProfile
from inferload.scenario.schema.load.rate_curves import ALWAYS_ONE, RateCurve
from inferload.scenario.schema.load.rate_profiles import Profile
from inferload.scenario.schema.load.trace_times import TraceTimes


class Closed(kinds.ArrivalKind):
    """Closed loop: a number of users, each with one session at a time. A user starts its next session when one ends."""

    open_loop = False
    unit = load_key = "users"

    kind: Literal["closed"] = Field(description="closed loop: a number of users")
    users: AtLeastOne = Field(description="users over all workers; each has one session at a time")
    spawn_per_s: Positive = Field(description="users started per second, until all run")
    profile: UserProfile | None = optional(
        None, f"number of users over time: {one_of(UserProfile)}, at most users; null: constant"
    )

    @model_validator(mode="after")
    def _within(self) -> "Closed":
        if self.profile is not None and self.profile.highest > self.users:
            raise ValueError(f"profile has up to {self.profile.highest} users, but users is {self.users}; raise users")
        return self

    @property
    def most_users(self) -> int:
        """Most users of the profile, or the constant number."""
        return self.users if self.profile is None else self.profile.highest

    @property
    def highest_load(self) -> float:
        return float(self.most_users)

    @property
    def locust_users(self) -> kinds.LocustUsers:
        return kinds.LocustUsers(self.user_changes[0][1] if self.user_changes else self.users, self.spawn_per_s)

    def with_users(self, users: int) -> dict[str, Any]:
        return {"users": users}

    def at_load(self, load: float) -> dict[str, Any]:
        """Return constant users, who start in the same time as those of this scenario."""
        return {"users": int(load), "spawn_per_s": load / (self.users / self.spawn_per_s), "profile": None}

    @property
    def load_profile(self) -> LoadProfile | None:
        return self.profile

    @property
    def user_changes(self) -> Sequence[tuple[float, int]]:
        return () if self.profile is None else self.profile.changes()

    def in_words(self, measure_s: float | None) -> list[str]:
        """Return the number of users over time."""
        loop = "a user starts its next session when one ends: a slow server reduces the load"
        if self.profile is not None:
            return [f"closed loop: {self.profile.in_words()}", *self.profile.end_in_words(measure_s), loop]
        ramp_s = spawn_duration_s(self.users, self.spawn_per_s)
        rate = f"{number(self.spawn_per_s)} started per second"
        spawned = f"{rate}, all running after {duration(ramp_s)}" if ramp_s else "all started at once"
        return [f"closed loop: {plural(self.users, 'user')}, {spawned}", loop]

    def in_short(self, changed: Sequence[float]) -> kinds.LoadSummary:
        """Return the lowest and the highest number of users."""
        planned = [users for _, users in self.user_changes] or [self.users]
        change = "" if self.profile is None else self.profile.in_short()
        return kinds.LoadSummary(user_range([*planned, *changed]), change)


class Rated(kinds.OpenArrivals):
    """Keys of open loops with a rate: a constant or a profile. `name`: of the process, for a tile."""

    load_key = "sessions_per_s"
    name: ClassVar[str]

    sessions_per_s: Positive | None = optional(None, "session starts per second over all workers; give this or profile")
    profile: Profile | None = optional(None, f"rate over time, from the start of the measure phase: {one_of(Profile)}")

    @model_validator(mode="after")
    def _one_of_them(self) -> "Rated":
        if (self.sessions_per_s is None) == (self.profile is None):
            problem = "neither is given" if self.profile is None else "both are given"
            raise ValueError(f"sessions_per_s or profile: {problem}; give exactly one")
        return self

    @property
    def rate(self) -> float:
        """Sessions per second, or the factor on the profile."""
        return self.profile.scale if self.profile is not None else self.sessions_per_s or 0.0

    @property
    def rate_key(self) -> str:
        """Key of the constant rate, or of the factor on the profile."""
        return "sessions_per_s" if self.profile is None else "profile.scale"

    @property
    def rate_unit(self) -> str:
        """Unit of the constant rate, or of the factor on the profile."""
        return self.unit if self.profile is None else "times the profile"

    @property
    def highest_load(self) -> float:
        return self.rate if self.profile is None else self.rate * self.profile.curve().highest

    def at_load(self, load: float) -> dict[str, Any]:
        """Return a constant rate without a profile."""
        return {"sessions_per_s": load, "profile": None}

    @property
    def load_profile(self) -> LoadProfile | None:
        return self.profile

    @property
    def uneven(self) -> str | None:
        """Profiles other than steps have no constant rate."""
        if self.profile is None or self.profile.bounds_s():
            return None
        return f"the rate changes without steps (arrivals.profile.kind {self.profile.kind})"

    def rate_curve(self, warmup_s: float) -> RateCurve:
        """Return the first rate during the warm-up, then the profile; without a profile the constant 1."""
        return ALWAYS_ONE if self.profile is None else self.profile.curve().after(warmup_s)

    def unit_times(self, seed: int, sessions: kinds.RecordedSessions) -> Iterator[float]:
        """Return the times of the process, drawn by the seed."""
        return self.process(Random(f"{seed}/arrivals"))

    @abstractmethod
    def process(self, rng: Random) -> Iterator[float]:
        """Yield the cumulative unit times of arrivals 0, 1, 2, ..."""

    @abstractmethod
    def intervals_in_words(self) -> str:
        """Return the distribution of the intervals, after "sessions start"."""

    def starts_in_words(self) -> str:
        rate = f"{number(self.rate)} per second" if self.profile is None else "at a changing rate"
        return f"{self.intervals_in_words()}, {rate}"

    def in_words(self, measure_s: float | None) -> list[str]:
        """Return the lines on the start times, the profile and the limit."""
        start, *limit = super().in_words(measure_s)
        if self.profile is None:
            return [start, *limit]
        scale = self.profile.scale
        scaled = f", all rates times {number(scale)}" if scale != 1 else ""
        profile = f"{self.profile.in_words()}{scaled}; the warm-up has the first rate"
        return [start, profile, *self.profile.end_in_words(measure_s), *limit]

    def in_short(self, changed: Sequence[float]) -> kinds.LoadSummary:
        """Return the lowest and the highest rate."""
        profile = self.profile
        planned = [self.rate] if profile is None else [profile.scale * rate for rate in profile.rates_per_s]
        rates = [*planned, *changed]
        low, high = min(rates), max(rates)
        from_to = number(high) if low == high else f"{number(low)} to {number(high)}"
        return kinds.LoadSummary(f"{from_to}/s {self.name}", "" if profile is None else profile.in_short())


class ConstantRate(Rated):
    """Open loop with equal intervals."""

    name = "constant"
    kind: Literal["constant"] = Field(description="open loop: sessions at equal intervals")

    def process(self, rng: Random) -> Iterator[float]:
        """Yield 0.5, 1.5, 2.5, ...: the first n unit intervals contain exactly n arrivals."""
        return (index + 0.5 for index in count())

    def intervals_in_words(self) -> str:
        return "at equal intervals"


class Poisson(Rated):
    """Open loop with exponentially distributed intervals: many independent clients."""

    name = "Poisson"
    kind: Literal["poisson"] = Field(description="open loop: sessions at random, independent times")

    def process(self, rng: Random) -> Iterator[float]:
        """Return unit times with independent exponential intervals of mean 1."""
        return accumulate(rng.expovariate(1.0) for _ in count())

    def intervals_in_words(self) -> str:
        return "at random times"


class Gamma(Rated):
    """Open loop with gamma-distributed intervals, as in `vllm bench serve --burstiness`."""

    name = "gamma"
    kind: Literal["gamma"] = Field(description="open loop: gamma-distributed intervals between sessions")
    burstiness: Positive = Field(
        description="shape of the gamma distribution: below 1: bursts; 1: poisson; above 1: more regular"
    )

    def process(self, rng: Random) -> Iterator[float]:
        """Return unit times with independent gamma intervals of mean 1 and shape `burstiness`."""
        return accumulate(rng.gammavariate(self.burstiness, 1 / self.burstiness) for _ in count())

    def intervals_in_words(self) -> str:
        shape = self.burstiness
        kind = "Poisson" if shape == 1 else "in bursts" if shape < 1 else "more regular than Poisson"
        return f"at random times, {kind} (burstiness {number(shape)})"


Arrivals = Annotated[Closed | ConstantRate | Poisson | Gamma | TraceTimes, Field(discriminator="kind")]


def spawn_duration_s(users: int, spawn_per_s: float) -> float:
    """Return the time from the first user's start to the last one's. Locust starts a whole number of users at once."""
    at_once = max(1, math.floor(spawn_per_s))
    return (math.ceil(users / at_once) - 1) * at_once / spawn_per_s


def user_range(users: Sequence[float]) -> str:
    """Format the lowest and the highest number of users."""
    low, high = min(users), max(users)
    highest = "1 user" if high == 1 else f"{number(high)} users"
    return highest if low == high else f"{number(low)} to {highest}"
