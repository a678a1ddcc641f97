"""When sessions start, as a scenario file says it: the kinds of arrivals, and the profiles by which they change."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from inferload.scenario.schema.base import AtLeastOne, Part
from inferload.scenario.schema.distributions import Positive
from inferload.scenario.schema.rate_curves import ALWAYS_ONE, Curve
from inferload.scenario.schema.rate_profiles import Profile
from inferload.scenario.schema.user_profiles import UserProfile

WhenFull = Literal["delay", "drop"]


class Closed(Part):
    """Closed loop: so many users, each starting a new session when its last one ends."""

    kind: Literal["closed"] = Field(description="closed loop: a number of users")
    users: AtLeastOne = Field(description="users over all workers; each has one session at a time")
    spawn_per_s: Positive = Field(description="users started per second until all are there")
    profile: UserProfile | None = Field(
        default=None, description="how the number of users changes: {kind: steps | linear, ...}; users is its greatest"
    )

    @model_validator(mode="after")
    def _within(self) -> "Closed":
        if self.profile is not None and self.profile.highest > self.users:
            raise ValueError(f"profile comes to {self.profile.highest} users, and users is {self.users}; raise users")
        return self


class OpenArrivals(Part):
    """What all open loops have: sessions start by the clock, however slow the server is."""

    kind: str

    max_in_flight: AtLeastOne | None = Field(
        default=None, description="most turns in flight over all workers; null: no limit, as an open loop is meant"
    )
    when_full: WhenFull = Field(
        default="delay", description="at that limit, delay: a turn waits, counted as its lag; drop: a new session is"
    )


class Rated(OpenArrivals):
    """Open loops whose rate is set: one for ever, or a profile."""

    sessions_per_s: Positive | None = Field(
        default=None, description="session starts per second over all workers; or a profile instead"
    )
    profile: Profile | None = Field(
        default=None,
        description="how the rate changes from the start of the measure phase: {kind: steps | linear | points, ...}",
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> "Rated":
        if (self.sessions_per_s is None) == (self.profile is None):
            what = "neither is given" if self.profile is None else "both are given"
            raise ValueError(f"sessions_per_s or profile: {what}; one of them says the rate")
        return self

    @property
    def rate(self) -> float:
        """What the unit process is stretched by at first: sessions per second, or a factor on the profile."""
        return self.profile.scale if self.profile is not None else self.sessions_per_s or 0.0

    @property
    def rate_key(self) -> str:
        """Where in the file the rate stands, below `arrivals`."""
        return "sessions_per_s" if self.profile is None else "profile.scale"

    @property
    def highest_per_s(self) -> float:
        """The greatest rate that is planned, in sessions per second."""
        return self.rate if self.profile is None else self.rate * self.profile.curve().highest

    def curve(self, warmup_s: float) -> Curve:
        """The rate over the whole load: its first one in the warm-up, then the profile."""
        return ALWAYS_ONE if self.profile is None else self.profile.curve().after(warmup_s)

    def mean_per_s(self, warmup_s: float, until_s: float) -> float:
        """Mean sessions per second from the start of the load up to a time."""
        return self.rate * self.curve(warmup_s).area(until_s) / until_s if until_s else self.rate


class TraceTimes(OpenArrivals):
    """Open loop with recorded times."""

    kind: Literal["trace"] = Field(description="open loop: sessions at recorded times")
    speed: Positive = Field(default=1.0, description="how much faster than recorded sessions begin")
    path: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="a file with a time in each line, seconds from 0 on; null: the replayed trace's own times",
    )

    @property
    def rate(self) -> float:
        """Seconds of the trace per second."""
        return self.speed

    @property
    def rate_key(self) -> str:
        """Where in the file the rate stands, below `arrivals`."""
        return "speed"

    @property
    def highest_per_s(self) -> float:
        """What a user stands for: the trace at its own speed."""
        return self.speed

    def curve(self, warmup_s: float) -> Curve:
        """The speed does not change by plan."""
        return ALWAYS_ONE


class ConstantRate(Rated):
    """Open loop with equal intervals."""

    kind: Literal["constant"] = Field(description="open loop: sessions at equal intervals")


class Poisson(Rated):
    """Open loop as many independent callers make it."""

    kind: Literal["poisson"] = Field(description="open loop: sessions at random, independent instants")


class Gamma(Rated):
    """Open loop with gamma gaps, as `vllm bench serve --burstiness` makes it."""

    kind: Literal["gamma"] = Field(description="open loop: sessions at random, in bursts or more even than chance")
    burstiness: Positive = Field(
        description="shape of the gaps as vLLM's benchmark means it: below 1 in bursts, 1 is poisson, above 1 more even"
    )


Arrivals = Annotated[Closed | ConstantRate | Poisson | Gamma | TraceTimes, Field(discriminator="kind")]
