"""How the number of a closed loop's users changes, as a scenario file says it. Times count from the measure phase."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Literal

from pydantic import Field, model_validator

from inferload.scenario.schema.base import AtLeastOne, Part
from inferload.scenario.schema.distributions import NonNegative, Positive


class UserStep(Part):
    """One number of users for a while."""

    users: AtLeastOne = Field(description="users over all workers")
    for_s: Positive = Field(description="how long")


class UserSteps(Part):
    """One number of users after the other; the last one stays. Each is numbered from 0, and has its figures apart."""

    kind: Literal["steps"] = Field(description="steps: one number of users after the other, each with its own figures")
    steps: Annotated[tuple[UserStep, ...], Field(strict=False, min_length=1)] = Field(
        description="list of {users, for_s}"
    )

    @property
    def highest(self) -> int:
        """The most users of any step."""
        return max(one.users for one in self.steps)

    def bounds_s(self) -> tuple[float, ...]:
        """Where each step begins."""
        return (0.0, *accumulate(one.for_s for one in self.steps[:-1]))

    def changes(self) -> Sequence[tuple[float, int]]:
        """(seconds, users): from when on there are how many."""
        return tuple(zip(self.bounds_s(), (one.users for one in self.steps), strict=True))

    @property
    def ends_s(self) -> float:
        """The end of the last step."""
        return sum(one.for_s for one in self.steps)


class UserRamp(Part):
    """From one number of users to another, a few more or fewer each second."""

    kind: Literal["linear"] = Field(description="linear: from one number of users to another")
    from_users: AtLeastOne = Field(description="users at first")
    to_users: AtLeastOne = Field(description="users in the end")
    start_s: NonNegative = Field(default=0.0, description="when their number begins to change")
    end_s: Positive = Field(description="when all have come, or gone")

    @model_validator(mode="after")
    def _forward(self) -> "UserRamp":
        if self.end_s <= self.start_s:
            raise ValueError(
                f"end_s {self.end_s:g} is not after start_s {self.start_s:g}; a ramp starts before it ends"
            )
        return self

    @property
    def highest(self) -> int:
        """The most users of all."""
        return max(self.from_users, self.to_users)

    def bounds_s(self) -> tuple[float, ...]:
        """It has no steps."""
        return ()

    def changes(self) -> Sequence[tuple[float, int]]:
        """(seconds, users): one user at a time, but not more often than once a second."""
        lasts_s, more = self.end_s - self.start_s, self.to_users - self.from_users
        count = max(1, min(abs(more), int(lasts_s)))
        ramp = [
            (self.start_s + lasts_s * number / count, self.from_users + round(more * number / count))
            for number in range(1, count + 1)
        ]
        return ((0.0, self.from_users), *ramp)

    @property
    def ends_s(self) -> float:
        """The ramp's end."""
        return self.end_s


UserProfile = Annotated[UserSteps | UserRamp, Field(discriminator="kind")]
