"""Base of the profiles of `arrivals`: a planned change of the load. Times count from the start of the measure phase."""

from abc import abstractmethod
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from inferload.base.numbers import duration, exact, plural
from inferload.scenario.schema.base import ScenarioPart


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
