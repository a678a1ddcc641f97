"""Limits of `compare --max-change`, e.g. `p95(ttft_ms) +15%`: on two values, without a test."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferload.base.errors import UsageError
from inferload.base.numbers import number
from inferload.figures.limits.gate import GateError

from ..data import changes
from ..data.figures import figure
from .sides import Side

NOT_STATISTICAL = "not statistical: compares two values without their spread"

_LIMIT = re.compile(r"\s*(?P<name>.*\S)\s+(?P<percent>[+-](?:\d+\.?\d*|\.\d+))\s*%\s*")


@dataclass(frozen=True, slots=True)
class MaxChange:
    """Limit on the change of a figure. `share`: 0.15 allows an increase of 15 %, -0.05 a decrease of 5 %."""

    text: str
    name: str
    share: float


@dataclass(frozen=True, slots=True)
class CheckedLimit:
    """Limit with the measured change: candidate / baseline - 1, None if unknown."""

    limit: MaxChange
    change: float | None
    passed: bool
    values: str

    @property
    def text(self) -> str:
        outcome = "passed" if self.passed else "FAILED"
        return f"--max-change {self.limit.text!r} {outcome}: {self.values} ({NOT_STATISTICAL})"

    def to_dict(self) -> dict[str, Any]:
        return {"limit": self.limit.text, "passed": self.passed, "change": self.change, "text": self.text}


def parse(text: str) -> MaxChange:
    """Parse a limit; UsageError if it is malformed."""
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--max-change {text!r}: no figure with a signed percentage; write it as 'p95(ttft_ms) +15%' or 'turns_per_s -5%'"
        )
    try:
        name = figure(match["name"]).name
    except GateError as error:
        raise UsageError(f"--max-change {text!r}: {error}") from error
    return MaxChange(text.strip(), name, float(match["percent"]) / 100)


def check(limit: MaxChange, baseline: Side, candidate: Side, refusals: Sequence[str]) -> CheckedLimit:
    """Check a limit; it fails if a value is not measured or `refusals` (reasons against a comparison) exist."""
    if refusals:
        return CheckedLimit(limit, None, False, f"not comparable because of {refusals[0]}")
    before, after = baseline.mean(limit.name), candidate.mean(limit.name)
    if before is None or after is None:
        label = baseline.label if before is None else candidate.label
        return CheckedLimit(limit, None, False, f"{limit.name} is not measured on {label}")
    bound = before * (1 + limit.share)
    passed = after <= bound if math.copysign(1, limit.share) > 0 else after >= bound
    change = after / before - 1 if before else None if after else 0.0
    shown = "" if change is None else f", {change:+.1%}"  # as the limit
    if change is not None and changes.is_factor(1 + change):
        shown += f" ({changes.signed(1 + change)})"
    return CheckedLimit(limit, change, passed, f"{number(before, 4)} to {number(after, 4)}{shown}")
