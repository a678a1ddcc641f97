"""What all parts of a scenario file are made of: mappings that refuse unknown keys, and plain values with their limits."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from inferload.scenario.schema.distributions import Positive

Whole = Annotated[int, Field(strict=True, ge=0)]
AtLeastOne = Annotated[int, Field(strict=True, ge=1)]
Flag = Annotated[bool, Field(strict=True)]
Share = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]


class Part(BaseModel):
    """A mapping of the file: unknown keys are errors, nothing changes once loaded."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def add_up(shares: Sequence[float]) -> None:
    """ValueError where shares of sessions are not 1 together."""
    total = sum(shares)
    if abs(total - 1) > 1e-6:
        raise ValueError(f"shares are {' + '.join(f'{one:g}' for one in shares)} = {total:g}; they must add up to 1")


class SloLimits(Part):
    """Limits that each turn must meet to count as good; null: no such limit."""

    ttft_ms: Positive | None = Field(default=None, description="time to first token; from the plan in an open loop")
    tpot_ms: Positive | None = Field(default=None, description="time per output token after the first")
    e2e_ms: Positive | None = Field(default=None, description="whole answer")
    itl_ms: Positive | None = Field(default=None, description="p99 of the gaps within the turn")
