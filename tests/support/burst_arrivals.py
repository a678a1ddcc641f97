"""A kind of arrivals that inferload does not have: sessions at once, at equal intervals."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Literal

from pydantic import Field

from inferload.base.numbers import duration, number
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.base import AtLeastOne
from inferload.scenario.schema.distributions import Positive
from inferload.scenario.schema.load.arrival_kind import LoadSummary, OpenArrivals, RecordedSessions
from inferload.scenario.schema.load.rate_curves import ALWAYS_ONE, RateCurve


class Bursts(OpenArrivals):
    """Open loop with several sessions at once, at equal intervals."""

    kind: Literal["bursts"] = Field(description="open loop: several sessions at once, at equal intervals")
    sessions: AtLeastOne = Field(description="sessions that start at once, over all workers")
    every_s: Positive = Field(description="interval, in seconds")

    @property
    def rate(self) -> float:
        """Sessions per second."""
        return self.sessions / self.every_s

    @property
    def rate_key(self) -> str:
        """Name of the rate."""
        return "sessions_per_s"

    @property
    def uneven(self) -> str:
        """Bursts have no constant rate."""
        return "sessions start in bursts"

    def at_rate(self, rate: float) -> dict[str, Any]:
        """Return the interval."""
        return {"every_s": self.sessions / rate}

    def rate_curve(self, warmup_s: float) -> RateCurve:
        """Return the constant curve."""
        return ALWAYS_ONE

    def unit_times(self, seed: int, sessions: RecordedSessions) -> Iterator[float]:
        """Yield each time as often as sessions start at it."""
        return (float(index // self.sessions * self.sessions) for index in count())

    def starts_in_words(self) -> str:
        """Return size and interval."""
        return f"{self.sessions} at once every {duration(self.every_s)}"

    def in_short(self, changed: Sequence[float]) -> LoadSummary:
        """Return the rate."""
        return LoadSummary(f"{number(self.rate)}/s in bursts", "")


def register() -> None:
    """Add the kind to the scenarios of this process, as a row of `Arrivals` does."""
    field: Any = Scenario.model_fields["arrivals"]
    field.annotation |= Bursts
    Scenario.model_rebuild(force=True)


@contextmanager
def registered() -> Iterator[None]:
    """Have the kind for a while."""
    field: Any = Scenario.model_fields["arrivals"]
    before = field.annotation
    register()
    try:
        yield
    finally:
        field.annotation = before
        Scenario.model_rebuild(force=True)
