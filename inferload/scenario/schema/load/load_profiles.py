"""Profiles of `arrivals`, planned changes of the load: their base, and the user profiles of a closed loop.

Times count from the start of the measure phase.
"""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from inferload.base.numbers import duration, exact, plural
from inferload.scenario.schema.base import AtLeastOne, ScenarioPart, optional
from inferload.scenario.schema.distributions import NonNegative, Positive


class LoadProfile(ScenarioPart):
    """Load over all workers as a function of time."""

    def bounds_s(self) -> tuple[float, ...]:
        """Return the start times of the steps, the first 0; empty if the profile has no steps."""
        return ()

    def step_levels(self) -> list[dict[str, float]]:
        """Return the load of each step, by its key in a result; empty if the profile has no steps."""
        return []

    @property
    @abstractmethod
    def ends_s(self) -> float:
        """Time of the last change."""

    @abstractmethod
    def in_words(self) -> str:
        """Return all changes, for the plan."""

    @abstractmethod
    def in_short(self) -> str:
        """Return the kind and the length of the changes, for a tile."""

    def end_in_words(self, measure_s: float | None) -> list[str]:
        """Return a line if the profile and the measure phase have different lengths."""
        if measure_s is None or self.ends_s == measure_s:
            return []
        if self.ends_s > measure_s:
            lengths = f"{duration(self.ends_s)}, longer than measure_s {duration(measure_s)}"
            return [f"the profile lasts {lengths}: its end is cut off"]
        return [
            f"the profile ends after {duration(self.ends_s)}: its last value holds for the rest of the measure phase"
        ]


class Steps(LoadProfile):
    """Loads that follow each other, each with its length."""

    if TYPE_CHECKING:  # a field of each kind
        steps: tuple[Any, ...]

    def bounds_s(self) -> tuple[float, ...]:
        return (0.0, *accumulate(step.for_s for step in self.steps[:-1]))

    @property
    def ends_s(self) -> float:
        return float(sum(step.for_s for step in self.steps))

    def in_short(self) -> str:
        """Return the number of steps, and their length if all have the same."""
        steps, lengths_s = f"in {plural(len(self.steps), 'step')}", {step.for_s for step in self.steps}
        return f"{steps} of {duration(lengths_s.pop())}" if len(lengths_s) == 1 else steps


class Ramp(LoadProfile):
    """Linear change of the load."""

    if TYPE_CHECKING:  # fields of each kind
        start_s: float
        end_s: float

    @model_validator(mode="after")
    def _forward(self) -> Self:
        if self.end_s <= self.start_s:
            raise ValueError(f"end_s {exact(self.end_s)} is not after start_s {exact(self.start_s)}; raise end_s")
        return self

    @property
    def ends_s(self) -> float:
        return self.end_s

    def in_short(self) -> str:
        return f"in {duration(self.end_s - self.start_s)}"


class UserStep(ScenarioPart):
    """One step of a user profile."""

    users: AtLeastOne = Field(description="users over all workers")
    for_s: Positive = Field(description="duration, in seconds")


class UserSteps(Steps):
    """Step load: numbers of users, one after the other. The last number stays. Results are reported per step."""

    kind: Literal["steps"] = Field(description="steps: numbers of users, one after the other")
    steps: Annotated[tuple[UserStep, ...], Field(strict=False, min_length=1)] = Field(
        description="list of {users, for_s}"
    )

    @property
    def highest(self) -> int:
        """Most users at any time."""
        return max(step.users for step in self.steps)

    def changes(self) -> Sequence[tuple[float, int]]:
        """Return (seconds, users) of each change, the first at 0."""
        return tuple(zip(self.bounds_s(), (step.users for step in self.steps), strict=True))

    def step_levels(self) -> list[dict[str, float]]:
        return [{"users": step.users} for step in self.steps]

    def in_words(self) -> str:
        return ", then ".join(f"{plural(step.users, 'user')} for {duration(step.for_s)}" for step in self.steps)


class UserRamp(Ramp):
    """Linear ramp from one number of users to another."""

    kind: Literal["linear"] = Field(description="linear: a linear ramp from one number of users to another")
    from_users: AtLeastOne = Field(description="users before the ramp")
    to_users: AtLeastOne = Field(description="users after the ramp")
    start_s: NonNegative = optional(0.0, "start of the ramp, in seconds of the measure phase")
    end_s: Positive = Field(description="end of the ramp, in seconds of the measure phase; after start_s")

    @property
    def highest(self) -> int:
        """Most users at any time."""
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
        users = f"{self.from_users} to {plural(self.to_users, 'user')}"
        return f"{users} from {duration(self.start_s)} to {duration(self.end_s)}"


UserProfile = Annotated[UserSteps | UserRamp, Field(discriminator="kind")]
