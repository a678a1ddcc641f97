"""How the rate of an open loop changes: steps, a linear ramp, points. Times count from the start of the measure phase."""

import csv
import math
from abc import abstractmethod
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from inferload.errors import UsageError
from inferload.scenario.files.data_files import find
from inferload.scenario.schema.base import Part
from inferload.scenario.schema.distributions import NonNegative, Positive
from inferload.scenario.schema.rate_curves import FOREVER, Curve, Linear, flat


class RateProfile(Part):
    """A rate of the whole fleet that changes. `scale`: what a number of users on the command line comes to."""

    scale: Positive = Field(default=1.0, description="factor on all its rates")

    @abstractmethod
    def curve(self) -> Curve:
        """Sessions per second over time, without the factor."""

    def bounds_s(self) -> tuple[float, ...]:
        """Where its steps begin, the first at 0; empty where it has none."""
        return ()

    @property
    @abstractmethod
    def ends_s(self) -> float:
        """Time of the last change."""

    @property
    @abstractmethod
    def rates_per_s(self) -> tuple[float, ...]:
        """Rates in sessions per second, without the factor; the lowest and the highest are among them."""


class RateStep(Part):
    """One rate for a while."""

    sessions_per_s: Positive = Field(description="session starts per second over all workers")
    for_s: Positive = Field(description="how long")


class Steps(RateProfile):
    """One rate after the other; the last one stays. Each is numbered from 0, and has its figures apart."""

    kind: Literal["steps"] = Field(description="steps: one rate after the other, each with its own figures")
    steps: Annotated[tuple[RateStep, ...], Field(strict=False, min_length=1)] = Field(
        description="list of {sessions_per_s, for_s}"
    )

    def curve(self) -> Curve:
        """Flat pieces."""
        return Curve(
            [*(flat(one.for_s, one.sessions_per_s) for one in self.steps), flat(FOREVER, self.steps[-1].sessions_per_s)]
        )

    def bounds_s(self) -> tuple[float, ...]:
        """Where each step begins."""
        return (0.0, *accumulate(one.for_s for one in self.steps[:-1]))

    @property
    def ends_s(self) -> float:
        """The end of the last step."""
        return sum(one.for_s for one in self.steps)

    @property
    def rates_per_s(self) -> tuple[float, ...]:
        """The rate of each step."""
        return tuple(step.sessions_per_s for step in self.steps)


class LinearRamp(RateProfile):
    """From one rate to another in a straight line; one of them may be 0. The first holds until `start_s`."""

    kind: Literal["linear"] = Field(description="linear: from one rate to another in a straight line")
    from_sessions_per_s: NonNegative = Field(description="the first rate")
    to_sessions_per_s: NonNegative = Field(description="the last rate")
    start_s: NonNegative = Field(default=0.0, description="when the rate begins to change")
    end_s: Positive = Field(description="when it has come to its last value")

    @model_validator(mode="after")
    def _forward(self) -> "LinearRamp":
        if self.end_s <= self.start_s:
            raise ValueError(
                f"end_s {self.end_s:g} is not after start_s {self.start_s:g}; a ramp starts before it ends"
            )
        return self

    @model_validator(mode="after")
    def _some_rate(self) -> "LinearRamp":
        if not self.from_sessions_per_s and not self.to_sessions_per_s:
            raise ValueError("from_sessions_per_s and to_sessions_per_s are both 0: nothing would ever start")
        return self

    def curve(self) -> Curve:
        """The ramp between two flats."""
        first, last = self.rates_per_s
        ramp = Linear(self.end_s - self.start_s, first, last)
        return Curve([flat(self.start_s, first), ramp, flat(FOREVER, last)])

    @property
    def ends_s(self) -> float:
        """The ramp's end."""
        return self.end_s

    @property
    def rates_per_s(self) -> tuple[float, float]:
        """First and last rate."""
        return self.from_sessions_per_s, self.to_sessions_per_s


class Point(Part):
    """A rate at a time."""

    time_s: NonNegative = Field(description="seconds since the measure phase began")
    sessions_per_s: NonNegative = Field(description="the rate then")


class Points(RateProfile):
    """Rates at times, with straight lines or steps between them; the last one stays."""

    kind: Literal["points"] = Field(description="points: rates at times, of your own")
    points: Annotated[tuple[Point, ...], Field(strict=False, min_length=1)] = Field(
        description="list of {time_s, sessions_per_s}; the first at 0; or a path instead"
    )
    path: str | None = Field(default=None, description="CSV with the columns time_s and sessions_per_s: the points")
    between: Literal["linear", "hold"] = Field(
        default="linear", description="between two points: a straight line, or the rate of the one before"
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any, info: ValidationInfo) -> Any:
        """What the file says becomes part of the scenario: no other machine needs the file."""
        if not isinstance(data, dict) or not isinstance(data.get("path"), str) or "points" in data:
            return data
        return {**data, "points": read_points(data["path"], (info.context or {}).get("origin", ""))}

    @model_validator(mode="after")
    def _in_order(self) -> "Points":
        times_s = [point.time_s for point in self.points]
        if times_s[0] != 0:
            raise ValueError(f"the first point's time_s is {times_s[0]:g}; it must be 0")
        for number, (one, other) in enumerate(pairwise(times_s), 1):
            if other <= one:
                raise ValueError(f"points[{number}].time_s {other:g} is not after the one before it, {one:g}")
        if not any(self.rates_per_s):
            raise ValueError("every point's sessions_per_s is 0: nothing would ever start")
        return self

    def curve(self) -> Curve:
        """A piece for each pair of neighbours."""
        hold = self.between == "hold"
        pieces = [
            Linear(b.time_s - a.time_s, a.sessions_per_s, a.sessions_per_s if hold else b.sessions_per_s)
            for a, b in pairwise(self.points)
        ]
        return Curve([*pieces, flat(FOREVER, self.points[-1].sessions_per_s)])

    @property
    def ends_s(self) -> float:
        """The last point's time."""
        return self.points[-1].time_s

    @property
    def rates_per_s(self) -> tuple[float, ...]:
        """The rate of each point."""
        return tuple(point.sessions_per_s for point in self.points)


def read_points(path: str, origin: str) -> list[dict[str, float]]:
    """The rows of a CSV file of rates; ValueError in one line where it is none."""
    try:
        text = find(path, origin).read_text(encoding="utf-8-sig")
    except (UsageError, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"path: {error}") from None
    rows = csv.DictReader(text.splitlines())
    columns = ("time_s", "sessions_per_s")
    if not set(columns) <= set(rows.fieldnames or ()):
        raise ValueError(
            f"{path}:1: columns are {', '.join(rows.fieldnames or ()) or 'none'}; it must have {' and '.join(columns)}"
        )
    points = []
    for row in rows:
        try:
            point = {column: float(row[column]) for column in columns}
        except (TypeError, ValueError):
            point = dict.fromkeys(columns, math.nan)
        if not all(0 <= value < math.inf for value in point.values()):
            said = ", ".join(str(row[column]) for column in columns)
            raise ValueError(f"{path}:{rows.line_num}: {said}: time_s and sessions_per_s must be numbers from 0 on")
        points.append(point)
    if not points:
        raise ValueError(f"{path}: no points in it; it must have at least one")
    return points


_REMOVED = {
    "sine": "kind: points with a point for each bend",
    "spike": "kind: points with between: hold",
    "exponential": "kind: points with a point for each bend",
}


def _not_removed(data: Any) -> Any:
    """Refuse a kind that earlier versions had, in one line with its replacement."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if isinstance(kind, str) and kind in _REMOVED:
        raise ValueError(f"kind {kind} was removed; use {_REMOVED[kind]}")
    return data


Profile = Annotated[
    Annotated[Steps | LinearRamp | Points, Field(discriminator="kind")],
    BeforeValidator(_not_removed),
]
