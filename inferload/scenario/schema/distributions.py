"""Distributions of counts and durations, as a scenario file writes them, drawn by inverse transform.

Each draw takes exactly one random number, so that what is drawn next does not depend on how a law is sampled. Values
beyond `min` or `max` are set to that bound: the law is clamped, not cut and rescaled, so its mean moves; `inferload plan`
says what is really drawn.
"""

import math
from abc import abstractmethod
from random import Random
from statistics import NormalDist
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from inferload.numbers import number

# The 0.95 quantile of the standard normal law: ln(p95 / p50) of a lognormal law is so many sigmas.
Z95 = NormalDist().inv_cdf(0.95)

# A text of more tokens than this is no request that any server takes, and would only exhaust the client's memory.
MAX_COUNT = 10_000_000

# Stands for a draw of 0, of which no law has a quantile; below the least other one, 2 ** -53.
_LEAST_DRAW = 2.0**-60
_STANDARD = NormalDist()

NonNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class Law(BaseModel):
    """One distribution of non-negative numbers; `min` and `max` clamp, None: no such bound."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min: NonNegative | None = Field(default=None, description="smaller values become this one")
    max: NonNegative | None = Field(default=None, description="greater values become this one")

    @abstractmethod
    def quantile(self, u: float) -> float:
        """The value below which a share u of the unclamped draws lies; 0 < u < 1."""

    def clamped(self, value: float) -> float:
        """The value, set to the nearest bound where it lies beyond; never below 0."""
        low = self.min if self.min is not None else 0.0
        return max(low, value if self.max is None else min(value, self.max))

    def draw(self, rng: Random) -> float:
        """One value; takes one random number."""
        value = self.quantile(rng.random() or _LEAST_DRAW)
        low, high = self.min or 0.0, self.max
        if high is not None and value > high:
            value = high
        return value if value > low else low

    @model_serializer(mode="wrap")
    def _without_open_bounds(self, usual: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """`dist` first, and no word of a bound that is not there."""
        written = usual(self)
        return {"dist": written.pop("dist")} | {key: value for key, value in written.items() if value is not None}

    @model_validator(mode="after")
    def _bounds_in_order(self) -> "Law":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is greater than max {self.max:g}")
        return self


class Constant(BaseModel):
    """Always the same value; in a file just the number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dist: Literal["constant"] = "constant"
    value: NonNegative = Field(description="the value")

    def draw(self, rng: Random) -> float:
        """The value; takes a random number all the same, so that what follows does not shift."""
        rng.random()
        return self.value

    @model_serializer
    def _as_number(self) -> int | float:
        return int(self.value) if self.value.is_integer() else self.value


class Uniform(Law):
    """Every value between `min` and `max` alike."""

    dist: Literal["uniform"]
    min: NonNegative = Field(description="smallest value")
    max: NonNegative = Field(description="greatest value")

    def quantile(self, u: float) -> float:
        """min + u (max - min)."""
        return self.min + u * (self.max - self.min)


class Normal(Law):
    """Gaussian; negative draws become 0 (or `min`)."""

    dist: Literal["normal"]
    mean: NonNegative = Field(description="mean before clamping")
    sd: Positive = Field(description="standard deviation before clamping")

    def quantile(self, u: float) -> float:
        """mean + sd * z(u)."""
        return NormalDist(self.mean, self.sd).inv_cdf(u)


class Lognormal(Law):
    """Skewed to the right, as lengths and pauses of people are; given by its median and its 0.95 quantile."""

    dist: Literal["lognormal"]
    p50: Positive = Field(description="median")
    p95: Positive = Field(description="0.95 quantile; greater than p50")

    def quantile(self, u: float) -> float:
        """p50 * (p95 / p50) ** (z(u) / z(0.95))."""
        return self.p50 * math.exp(math.log(self.p95 / self.p50) * _STANDARD.inv_cdf(u) / Z95)

    @model_validator(mode="after")
    def _spread(self) -> "Lognormal":
        if self.p95 <= self.p50:
            raise ValueError(f"p95 {self.p95:g} must be greater than p50 {self.p50:g}")
        if self.max is not None and self.max < self.p50:
            raise ValueError(f"max {self.max:g} is below p50 {self.p50:g}: more than half of the draws would be max")
        return self


class Geometric(Law):
    """Whole numbers from 1; after each the same chance to go on."""

    dist: Literal["geometric"]
    mean: Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)] = Field(
        description="mean before clamping; at least 1"
    )

    def quantile(self, u: float) -> float:
        """The smallest k with 1 - (1 - 1/mean) ** k >= u."""
        if self.mean == 1:
            return 1.0
        return float(max(1, math.ceil(math.log1p(-u) / math.log1p(-1 / self.mean))))


class Exponential(Law):
    """Pauses without memory."""

    dist: Literal["exponential"]
    mean: Positive = Field(description="mean before clamping")

    def quantile(self, u: float) -> float:
        """-mean * ln(1 - u)."""
        return -self.mean * math.log1p(-u)


def _number_is_constant(value: Any) -> Any:
    """A plain number in the file means that number always. A truth value is no number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"dist": "constant", "value": value}
    return value


def _countable(law: "Distribution") -> "Distribution":
    """Refuse a law of counts that means 0, a fraction always, or texts that no memory holds."""
    if isinstance(law, Constant):
        if not law.value.is_integer() or law.value < 1:
            raise ValueError(f"must be a whole number from 1, is {law.value:g}")
        greatest = law.value
    else:
        greatest = law.clamped(law.quantile(1 - 1e-9))
    if greatest < 1:
        raise ValueError(f"draws at most {greatest:g}; a count is at least 1")
    if greatest > MAX_COUNT:
        raise ValueError(f"may draw {number(greatest)}, over the limit of {MAX_COUNT}; set a smaller max")
    return law


Distribution = Annotated[
    Constant | Uniform | Normal | Lognormal | Geometric | Exponential,
    Field(discriminator="dist"),
    BeforeValidator(_number_is_constant),
]
Duration = Distribution
Count = Annotated[Distribution, AfterValidator(_countable)]


def draw_count(law: Distribution, rng: Random) -> int:
    """A whole number from 1: the draw, rounded to the nearest, half to even."""
    count = round(law.draw(rng))
    return count if count > 1 else 1


def mean_of(law: Distribution) -> float:
    """The mean of what is drawn, bounds and all: of a thousand values with equal chances, so a rare tail counts little."""
    if isinstance(law, Constant):
        return law.value
    return sum(law.clamped(law.quantile((place + 0.5) / _MEAN_OF)) for place in range(_MEAN_OF)) / _MEAN_OF


_MEAN_OF = 1_000
