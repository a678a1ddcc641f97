"""Base of the profiles of `arrivals`: a planned change of the load. Times count from the start of the measure phase."""

from abc import abstractmethod
from collections.abc import Sequence

from inferload.base.numbers import duration, plural
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


def steps_in_short(lengths_s: Sequence[float]) -> str:
    """Return the number of steps, and their length if all have the same."""
    steps = f"in {plural(len(lengths_s), 'step')}"
    return f"{steps} of {duration(lengths_s[0])}" if len(set(lengths_s)) == 1 else steps
