"""Distributions of counts and durations, sampled by inverse transform.

Each draw takes exactly one random number, so that later draws do not depend on the distribution. Values beyond `min` or
`max` are clamped to that bound, not truncated and rescaled: clamping changes the mean, and `inferload plan` prints the
drawn values.
"""

import math
from abc import abstractmethod
from functools import cache
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

from inferload.base.numbers import exact, number

_STANDARD = NormalDist()
# 0.95 quantile of the standard normal distribution: ln(p95 / p50) of a lognormal distribution is Z95 sigmas.
Z95 = _STANDARD.inv_cdf(0.95)

# No server accepts a request of more tokens, and its text would exhaust the client's memory.
MAX_COUNT = 10_000_000

# Bounds of the numbers of a scenario, the lower one of those above 0: their products and quotients stay finite.
LEAST, MOST = 1e-9, 1e9

# Replaces a draw of 0, which has no quantile; less than the smallest positive draw, 2 ** -53.
_LEAST_DRAW = 2.0**-60
_GREATEST_DRAW = 1 - 2.0**-53


def not_tiny(value: float) -> float:
    """Refuse a number below LEAST: its reciprocal would overflow."""
    if value < LEAST:
        raise ValueError(f"must be at least {LEAST:g}, is {value:g}")
    return value


NonNegative = Annotated[float, Field(strict=True, ge=0, le=MOST, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, le=MOST, allow_inf_nan=False), AfterValidator(not_tiny)]


class ClampedDistribution(BaseModel):
    """Distribution of non-negative numbers, clamped to `min` and `max`. None: no bound."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min: NonNegative | None = Field(default=None, description="lower bound: smaller values become min; null: 0")
    max: NonNegative | None = Field(default=None, description="upper bound: greater values become max; null: none")

    @abstractmethod
    def quantile(self, u: float) -> float:
        """Return the quantile u of the unclamped distribution, 0 < u < 1."""

    def clamped(self, value: float) -> float:
        """Return the value clamped to `min` (at least 0) and `max`."""
        return max(self.min or 0.0, value if self.max is None else min(value, self.max))

    def draw(self, rng: Random) -> float:
        """Draw one clamped value. Takes one random number."""
        return self.clamped(self.quantile(rng.random() or _LEAST_DRAW))

    @model_serializer(mode="wrap")
    def _without_open_bounds(self, usual: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write `dist` first and leave out bounds that are None."""
        written = usual(self)
        return {"dist": written.pop("dist")} | {key: value for key, value in written.items() if value is not None}

    @model_validator(mode="after")
    def _bounds_in_order(self) -> "ClampedDistribution":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {exact(self.min)} is greater than max {exact(self.max)}; lower min")
        return self


class Constant(BaseModel):
    """Constant value. In a file: the number alone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dist: Literal["constant"] = "constant"
    value: NonNegative = Field(description="the value")

    def draw(self, rng: Random) -> float:
        """Return the value. Takes one random number, as all distributions do."""
        rng.random()
        return self.value

    @model_serializer
    def _as_number(self) -> int | float:
        return int(self.value) if self.value.is_integer() else self.value


class Uniform(ClampedDistribution):
    """Uniform distribution between `min` and `max`."""

    dist: Literal["uniform"]
    min: NonNegative = Field(description="smallest value")
    max: NonNegative = Field(description="greatest value")

    def quantile(self, u: float) -> float:
        """min + u (max - min)."""
        return self.min + u * (self.max - self.min)


class Normal(ClampedDistribution):
    """Normal distribution. Negative values become 0 (or `min`)."""

    dist: Literal["normal"]
    mean: NonNegative = Field(description="mean before clamping")
    sd: Positive = Field(description="standard deviation before clamping")

    def quantile(self, u: float) -> float:
        """mean + sd * z(u)."""
        return NormalDist(self.mean, self.sd).inv_cdf(u)


class Lognormal(ClampedDistribution):
    """Lognormal distribution, given by its median and its 0.95 quantile: typical of lengths and pauses."""

    dist: Literal["lognormal"]
    p50: Positive = Field(description="median before clamping")
    p95: Positive = Field(description="0.95 quantile before clamping; greater than p50")

    def quantile(self, u: float) -> float:
        """p50 * (p95 / p50) ** (z(u) / z(0.95))."""
        return self.p50 * math.exp(math.log(self.p95 / self.p50) * _STANDARD.inv_cdf(u) / Z95)

    @model_validator(mode="after")
    def _spread(self) -> "Lognormal":
        if self.p95 <= self.p50:
            raise ValueError(f"p95 {exact(self.p95)} is not greater than p50 {exact(self.p50)}; raise p95")
        if self.max is not None and self.max < self.p50:
            raise ValueError(
                f"max {exact(self.max)} is below p50 {exact(self.p50)}: more than half of the draws would be max; raise max"
            )
        return self


class Geometric(ClampedDistribution):
    """Geometric distribution on the integers from 1."""

    dist: Literal["geometric"]
    mean: Annotated[float, Field(strict=True, ge=1, le=MOST, allow_inf_nan=False)] = Field(
        description="mean before clamping"
    )

    def quantile(self, u: float) -> float:
        """Smallest k with 1 - (1 - 1/mean) ** k >= u."""
        if self.mean == 1:
            return 1.0
        return float(max(1, math.ceil(math.log1p(-u) / math.log1p(-1 / self.mean))))


class Exponential(ClampedDistribution):
    """Exponential distribution: memoryless pauses."""

    dist: Literal["exponential"]
    mean: Positive = Field(description="mean before clamping")

    def quantile(self, u: float) -> float:
        """-mean * ln(1 - u)."""
        return -self.mean * math.log1p(-u)


def _number_is_constant(value: Any) -> Any:
    """Read a plain number as a constant. A bool is not a number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"dist": "constant", "value": value}
    return value


def _countable(distribution: "Distribution") -> "Distribution":
    """Refuse distributions of counts below 1, of a constant fraction, or above `MAX_COUNT`."""
    if isinstance(distribution, Constant) and not (distribution.value.is_integer() and distribution.value >= 1):
        raise ValueError(f"must be a whole number from 1, is {exact(distribution.value)}")
    if greatest(distribution) < 1:
        raise ValueError(f"draws at most {exact(greatest(distribution))}; a count is at least 1")
    return _at_most(MAX_COUNT, distribution, greatest(distribution))


def _lasting(distribution: "Distribution") -> "Distribution":
    """Refuse distributions of durations that may draw more than `MOST` seconds."""
    return _at_most(MOST, distribution, greatest(distribution, _GREATEST_DRAW))


def _at_most(limit: float, distribution: "Distribution", value: float) -> "Distribution":
    if value > limit:
        raise ValueError(f"may draw {number(value)}, over the limit of {limit:.0f}; set a smaller max")
    return distribution


def greatest(distribution: "Distribution", u: float = 1 - 1e-9) -> float:
    """Return the clamped quantile u of a distribution."""
    return distribution.value if isinstance(distribution, Constant) else distribution.clamped(distribution.quantile(u))


Distribution = Annotated[
    Constant | Uniform | Normal | Lognormal | Geometric | Exponential,
    Field(discriminator="dist"),
    BeforeValidator(_number_is_constant),
]
Duration = Annotated[Distribution, AfterValidator(_lasting)]
Count = Annotated[Distribution, AfterValidator(_countable)]


def draw_count(distribution: Distribution, rng: Random) -> int:
    """Draw an integer of at least 1, rounded half to even."""
    count = round(distribution.draw(rng))
    return count if count > 1 else 1


@cache
def mean_of(distribution: Distribution) -> float:
    """Return the mean of the clamped distribution, by the midpoint rule over 1,000 quantiles."""
    if isinstance(distribution, Constant):
        return distribution.value
    quantiles = (distribution.quantile((number + 0.5) / _QUANTILES) for number in range(_QUANTILES))
    return sum(map(distribution.clamped, quantiles)) / _QUANTILES


_QUANTILES = 1_000
