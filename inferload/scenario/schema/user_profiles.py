"""Schema of the user profiles of a closed loop. Times count from the start of the measure phase."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Literal

from pydantic import Field, model_validator

from inferload.numbers import exact
from inferload.scenario.schema.base import AtLeastOne, ScenarioPart
from inferload.scenario.schema.distributions import NonNegative, Positive


class UserStep(ScenarioPart):
    """One step of a user profile."""

    users: AtLeastOne = Field(description="users over all workers")
    for_s: Positive = Field(description="duration, in seconds")


class UserSteps(ScenarioPart):
    """Step load: numbers of users, one after the other. The last number stays. Results are reported per step."""

    kind: Literal["steps"] = Field(description="steps: numbers of users, one after the other")
    steps: Annotated[tuple[UserStep, ...], Field(strict=False, min_length=1)] = Field(
        description="list of {users, for_s}"
    )

    @property
    def highest(self) -> int:
        """Most users of any step."""
        return max(step.users for step in self.steps)

    def bounds_s(self) -> tuple[float, ...]:
        """Return the start time of each step."""
        return (0.0, *accumulate(step.for_s for step in self.steps[:-1]))

    def changes(self) -> Sequence[tuple[float, int]]:
        """Return (seconds, users) of each change."""
        return tuple(zip(self.bounds_s(), (step.users for step in self.steps), strict=True))

    @property
    def ends_s(self) -> float:
        """End of the last step."""
        return sum(step.for_s for step in self.steps)


class UserRamp(ScenarioPart):
    """Linear ramp from one number of users to another."""

    kind: Literal["linear"] = Field(description="linear: a linear ramp from one number of users to another")
    from_users: AtLeastOne = Field(description="users before the ramp")
    to_users: AtLeastOne = Field(description="users after the ramp")
    start_s: NonNegative = Field(default=0.0, description="start of the ramp, in seconds of the measure phase")
    end_s: Positive = Field(description="end of the ramp, in seconds of the measure phase; after start_s")

    @model_validator(mode="after")
    def _forward(self) -> "UserRamp":
        if self.end_s <= self.start_s:
            raise ValueError(f"end_s {exact(self.end_s)} is not after start_s {exact(self.start_s)}; raise end_s")
        return self

    @property
    def highest(self) -> int:
        """Most users of the ramp."""
        return max(self.from_users, self.to_users)

    def bounds_s(self) -> tuple[float, ...]:
        """Return no times: a ramp has no steps."""
        return ()

    def changes(self) -> Sequence[tuple[float, int]]:
        """Return (seconds, users) of each change: one user at a time, at most one change per second."""
        lasts_s, added = self.end_s - self.start_s, self.to_users - self.from_users
        count = max(1, min(abs(added), int(lasts_s)))
        ramp = [
            (self.start_s + lasts_s * number / count, self.from_users + round(added * number / count))
            for number in range(1, count + 1)
        ]
        return ((0.0, self.from_users), *ramp)

    @property
    def ends_s(self) -> float:
        """End of the ramp."""
        return self.end_s


UserProfile = Annotated[UserSteps | UserRamp, Field(discriminator="kind")]
