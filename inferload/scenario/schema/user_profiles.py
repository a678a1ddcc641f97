"""Schema of the user profiles of a closed loop. Times count from the start of the measure phase."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from inferload.base.numbers import duration, plural
from inferload.scenario.schema.base import AtLeastOne, ScenarioPart
from inferload.scenario.schema.distributions import NonNegative, Positive
from inferload.scenario.schema.load_profiles import LoadProfile, Ramp, Steps


class Users(LoadProfile):
    """Number of users over all workers as a function of time."""

    @property
    @abstractmethod
    def highest(self) -> int:
        """Most users at any time."""

    @abstractmethod
    def changes(self) -> Sequence[tuple[float, int]]:
        """Return (seconds, users) of each change, the first at 0."""


class UserStep(ScenarioPart):
    """One step of a user profile."""

    users: AtLeastOne = Field(description="users over all workers")
    for_s: Positive = Field(description="duration, in seconds")


class UserSteps(Steps, Users):
    """Step load: numbers of users, one after the other. The last number stays. Results are reported per step."""

    kind: Literal["steps"] = Field(description="steps: numbers of users, one after the other")
    steps: Annotated[tuple[UserStep, ...], Field(strict=False, min_length=1)] = Field(
        description="list of {users, for_s}"
    )

    @property
    def highest(self) -> int:
        return max(step.users for step in self.steps)

    def changes(self) -> Sequence[tuple[float, int]]:
        """Return (seconds, users) of each change."""
        return tuple(zip(self.bounds_s(), (step.users for step in self.steps), strict=True))

    def step_levels(self) -> list[dict[str, float]]:
        return [{"users": step.users} for step in self.steps]

    def in_words(self) -> str:
        return ", then ".join(f"{plural(step.users, 'user')} for {duration(step.for_s)}" for step in self.steps)


class UserRamp(Ramp, Users):
    """Linear ramp from one number of users to another."""

    kind: Literal["linear"] = Field(description="linear: a linear ramp from one number of users to another")
    from_users: AtLeastOne = Field(description="users before the ramp")
    to_users: AtLeastOne = Field(description="users after the ramp")
    start_s: NonNegative = Field(default=0.0, description="start of the ramp, in seconds of the measure phase")
    end_s: Positive = Field(description="end of the ramp, in seconds of the measure phase; after start_s")

    @property
    def highest(self) -> int:
        return max(self.from_users, self.to_users)

    def changes(self) -> Sequence[tuple[float, int]]:
        """Return (seconds, users) of each change: one user at a time, at most one change per second."""
        lasts_s, added = self.end_s - self.start_s, self.to_users - self.from_users
        count = max(1, min(abs(added), int(lasts_s)))
        ramp = [
            (self.start_s + lasts_s * number / count, self.from_users + round(added * number / count))
            for number in range(1, count + 1)
        ]
        return ((0.0, self.from_users), *ramp)

    def in_words(self) -> str:
        """Return the users and times of both ends."""
        users = f"{self.from_users} to {plural(self.to_users, 'user')}"
        return f"{users} from {duration(self.start_s)} to {duration(self.end_s)}"


UserProfile = Annotated[UserSteps | UserRamp, Field(discriminator="kind")]
