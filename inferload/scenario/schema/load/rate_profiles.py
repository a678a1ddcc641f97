"""Schema of the rate profiles of an open loop. Times count from the start of the measure phase."""

import csv
import math
from abc import abstractmethod
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, model_validator

from inferload.base.errors import UsageError
from inferload.base.numbers import duration, exact, number, plural
from inferload.scenario.files.data_files import find
from inferload.scenario.schema.base import ScenarioPart, optional
from inferload.scenario.schema.distributions import NonNegative, Positive
from inferload.scenario.schema.load.load_profiles import LoadProfile, Ramp, Steps
from inferload.scenario.schema.load.rate_curves import FOREVER, Linear, RateCurve, flat


class RateProfile(LoadProfile):
    """Rate over all workers as a function of time. A user count on the command line changes `scale`."""

    scale: Positive = optional(1.0, "factor on all rates of the profile")

    @abstractmethod
    def curve(self) -> RateCurve:
        """Return sessions per second over time, without `scale`."""

    @property
    @abstractmethod
    def rates_per_s(self) -> tuple[float, ...]:
        """Rates in sessions per second, without `scale`, including the lowest and the highest."""


class RateStep(ScenarioPart):
    """One step of a rate profile."""

    sessions_per_s: Positive = Field(description="session starts per second over all workers")
    for_s: Positive = Field(description="duration, in seconds")


class RateSteps(Steps, RateProfile):
    """Step load: constant rates, one after the other. The last rate stays. Results are reported per step."""

    kind: Literal["steps"] = Field(description="steps: constant rates, one after the other")
    steps: Annotated[tuple[RateStep, ...], Field(strict=False, min_length=1)] = Field(
        description="list of {sessions_per_s, for_s}"
    )

    def curve(self) -> RateCurve:
        pieces = [flat(step.for_s, step.sessions_per_s) for step in self.steps]
        return RateCurve([*pieces, flat(FOREVER, self.steps[-1].sessions_per_s)])

    def step_levels(self) -> list[dict[str, float]]:
        """Return the rate of each step, with `scale`."""
        return [{"sessions_per_s": step.sessions_per_s * self.scale} for step in self.steps]

    @property
    def rates_per_s(self) -> tuple[float, ...]:
        return tuple(step.sessions_per_s for step in self.steps)

    def in_words(self) -> str:
        return ", then ".join(f"{number(step.sessions_per_s)}/s for {duration(step.for_s)}" for step in self.steps)


class RateRamp(Ramp, RateProfile):
    """Linear ramp from one rate to another, of which one may be 0. The first rate holds until `start_s`."""

    kind: Literal["linear"] = Field(description="linear: a linear ramp from one rate to another")
    from_sessions_per_s: NonNegative = Field(description="rate before the ramp, in sessions per second")
    to_sessions_per_s: NonNegative = Field(description="rate after the ramp, in sessions per second")
    start_s: NonNegative = optional(0.0, "start of the ramp, in seconds of the measure phase")
    end_s: Positive = Field(description="end of the ramp, in seconds of the measure phase; after start_s")

    @model_validator(mode="after")
    def _some_rate(self) -> "RateRamp":
        if not self.from_sessions_per_s and not self.to_sessions_per_s:
            raise ValueError(
                "from_sessions_per_s and to_sessions_per_s are both 0: no session would start; raise one of them"
            )
        return self

    def curve(self) -> RateCurve:
        first, last = self.rates_per_s
        ramp = Linear(self.end_s - self.start_s, first, last)
        return RateCurve([flat(self.start_s, first), ramp, flat(FOREVER, last)])

    @property
    def rates_per_s(self) -> tuple[float, float]:
        return self.from_sessions_per_s, self.to_sessions_per_s

    def in_words(self) -> str:
        rates = f"{number(self.from_sessions_per_s)}/s to {number(self.to_sessions_per_s)}/s"
        return f"linear ramp {rates}, from {duration(self.start_s)} to {duration(self.end_s)}"


class RatePoint(ScenarioPart):
    """Rate at a time."""

    time_s: NonNegative = Field(description="time, in seconds of the measure phase")
    sessions_per_s: NonNegative = Field(description="session starts per second at that time")


class RatePoints(RateProfile):
    """Rates at points in time, interpolated between them. The last rate stays."""

    kind: Literal["points"] = Field(description="points: rates at points in time")
    points: Annotated[tuple[RatePoint, ...], Field(strict=False, min_length=1)] = Field(
        description="list of {time_s, sessions_per_s}, the first with time_s 0; give this or path"
    )
    path: str | None = optional(None, "CSV file with the columns time_s and sessions_per_s")
    between: Literal["linear", "hold"] = optional(
        "linear", "interpolation: linear, or hold: the rate of the earlier point"
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any, info: ValidationInfo) -> Any:
        """Copy the rows of the file into the scenario, so that workers need no file."""
        if not isinstance(data, dict) or not isinstance(data.get("path"), str) or "points" in data:
            return data
        return {**data, "points": read_points(data["path"], (info.context or {}).get("origin", ""))}

    @model_validator(mode="after")
    def _in_order(self) -> "RatePoints":
        times_s = [point.time_s for point in self.points]
        if times_s[0] != 0:
            raise ValueError(f"points[0].time_s is {exact(times_s[0])}; it must be 0")
        for index, (before_s, time_s) in enumerate(pairwise(times_s), 1):
            if time_s <= before_s:
                raise ValueError(
                    f"points[{index}].time_s {exact(time_s)} is not after {exact(before_s)}; sort the points by time"
                )
        if not any(self.rates_per_s):
            raise ValueError("sessions_per_s of all points is 0: no session would start; raise one of them")
        return self

    def curve(self) -> RateCurve:
        """Return one piece per pair of neighbours."""
        hold = self.between == "hold"
        pieces = [
            Linear(b.time_s - a.time_s, a.sessions_per_s, a.sessions_per_s if hold else b.sessions_per_s)
            for a, b in pairwise(self.points)
        ]
        return RateCurve([*pieces, flat(FOREVER, self.points[-1].sessions_per_s)])

    @property
    def ends_s(self) -> float:
        return self.points[-1].time_s

    @property
    def rates_per_s(self) -> tuple[float, ...]:
        return tuple(point.sessions_per_s for point in self.points)

    def in_words(self) -> str:
        """Return the number of points, their file, and the lowest and the highest rate."""
        rates = self.rates_per_s
        source = f" of {self.path}" if self.path else ""
        return f"rates by {plural(len(rates), 'point')}{source}, {number(min(rates))}/s to {number(max(rates))}/s"

    def in_short(self) -> str:
        return "by a profile"


def read_points(path: str, origin: str) -> list[dict[str, float]]:
    """Return the rows of a CSV file of rates. ValueError (one line) for a malformed file."""
    try:
        text = find(path, origin).read_text(encoding="utf-8-sig")
    except (UsageError, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"path: {error}") from None
    rows = csv.DictReader(text.splitlines())
    columns = ("time_s", "sessions_per_s")
    if not set(columns) <= set(rows.fieldnames or ()):
        raise ValueError(
            f"{path}:1: columns are {', '.join(rows.fieldnames or ()) or 'none'}; required are {' and '.join(columns)}"
        )
    points = []
    for row in rows:
        try:
            point = {column: float(row[column]) for column in columns}
        except (TypeError, ValueError):
            point = dict.fromkeys(columns, math.nan)
        if not all(0 <= value < math.inf for value in point.values()):
            cells = ", ".join(str(row[column]) for column in columns)
            raise ValueError(
                f"{path}:{rows.line_num}: {cells}: time_s and sessions_per_s must be numbers of at least 0"
            )
        points.append(point)
    if not points:
        raise ValueError(f"{path}: no points; add at least one row")
    return points


Profile = Annotated[RateSteps | RateRamp | RatePoints, Field(discriminator="kind")]
