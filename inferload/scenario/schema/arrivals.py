"""Schema of `arrivals`: closed loops, and open loops by their arrival process."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from inferload.scenario.schema.base import AtLeastOne, ScenarioPart
from inferload.scenario.schema.distributions import Positive
from inferload.scenario.schema.rate_curves import ALWAYS_ONE, RateCurve
from inferload.scenario.schema.rate_profiles import Profile
from inferload.scenario.schema.user_profiles import UserProfile

WhenFull = Literal["delay", "drop"]


class Closed(ScenarioPart):
    """Closed loop: a number of users, each with one session at a time. A user starts its next session when one ends."""

    kind: Literal["closed"] = Field(description="closed loop: a number of users")
    users: AtLeastOne = Field(description="users over all workers; each has one session at a time")
    spawn_per_s: Positive = Field(description="users started per second, until all run")
    profile: UserProfile | None = Field(
        default=None,
        description="number of users over time: {kind: steps | linear, ...}, at most users; null: constant",
    )

    @property
    def most_users(self) -> int:
        """Most users of the profile, or the constant number."""
        return self.users if self.profile is None else self.profile.highest

    @model_validator(mode="after")
    def _within(self) -> "Closed":
        if self.profile is not None and self.profile.highest > self.users:
            raise ValueError(f"profile has up to {self.profile.highest} users, but users is {self.users}; raise users")
        return self


class OpenArrivals(ScenarioPart):
    """Keys of all open loops: session starts do not depend on the server."""

    kind: str

    max_in_flight: AtLeastOne | None = Field(
        default=None, description="most turns in flight over all workers; null: no limit"
    )
    when_full: WhenFull = Field(
        default="delay",
        description="at max_in_flight: delay: turns wait, which their lag counts; drop: new sessions are dropped and counted",
    )


class Rated(OpenArrivals):
    """Keys of open loops with a rate: a constant or a profile."""

    sessions_per_s: Positive | None = Field(
        default=None, description="session starts per second over all workers; give this or profile"
    )
    profile: Profile | None = Field(
        default=None,
        description="rate over time, from the start of the measure phase: {kind: steps | linear | points, ...}",
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> "Rated":
        if (self.sessions_per_s is None) == (self.profile is None):
            problem = "neither is given" if self.profile is None else "both are given"
            raise ValueError(f"sessions_per_s or profile: {problem}; give exactly one")
        return self

    @property
    def rate(self) -> float:
        """Initial rate of the unit process: sessions per second, or the factor on the profile."""
        return self.profile.scale if self.profile is not None else self.sessions_per_s or 0.0

    @property
    def rate_key(self) -> str:
        """Key of the rate, below `arrivals`."""
        return "sessions_per_s" if self.profile is None else "profile.scale"

    @property
    def highest_per_s(self) -> float:
        """Greatest planned rate, in sessions per second."""
        return self.rate if self.profile is None else self.rate * self.profile.curve().highest

    def curve(self, warmup_s: float) -> RateCurve:
        """Return the rate over the whole load: the first rate during the warm-up, then the profile."""
        return ALWAYS_ONE if self.profile is None else self.profile.curve().after(warmup_s)


class TraceTimes(OpenArrivals):
    """Open loop with recorded start times."""

    kind: Literal["trace"] = Field(description="open loop: sessions at recorded times")
    speed: Positive = Field(default=1.0, description="factor on the recorded speed; 2: twice as fast")
    path: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="text file with one start time per line, in seconds; null: the times of the replayed trace",
    )

    @property
    def rate(self) -> float:
        """Seconds of the trace per second."""
        return self.speed

    @property
    def rate_key(self) -> str:
        """Key of the rate, below `arrivals`."""
        return "speed"

    @property
    def highest_per_s(self) -> float:
        """Speed of the trace."""
        return self.speed

    def curve(self, warmup_s: float) -> RateCurve:
        """Return the constant curve: the speed has no profile."""
        return ALWAYS_ONE


class ConstantRate(Rated):
    """Open loop with equal intervals."""

    kind: Literal["constant"] = Field(description="open loop: sessions at equal intervals")


class Poisson(Rated):
    """Open loop with exponentially distributed intervals: many independent clients."""

    kind: Literal["poisson"] = Field(description="open loop: sessions at random, independent times")


class Gamma(Rated):
    """Open loop with gamma-distributed intervals, as in `vllm bench serve --burstiness`."""

    kind: Literal["gamma"] = Field(description="open loop: gamma-distributed intervals between sessions")
    burstiness: Positive = Field(
        description="shape of the gamma distribution: below 1: bursts; 1: poisson; above 1: more regular"
    )


Arrivals = Annotated[Closed | ConstantRate | Poisson | Gamma | TraceTimes, Field(discriminator="kind")]
