"""Limits of `compare --max-change`, as `p95(ttft_ms) +15%`: two single values and no test."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferload.errors import UsageError
from inferload.numbers import number
from inferload.verdict.gates import GateError

from ..data.figures import figure
from .sides import Side

NOT_STATISTICAL = "not statistical: compares two single values"

_LIMIT = re.compile(r"\s*(?P<name>.*\S)\s+(?P<percent>[+-](?:\d+\.?\d*|\.\d+))\s*%\s*")


@dataclass(frozen=True, slots=True)
class MaxChange:
    """A limit on the change of a figure: a share of 0.15 is exceeded by a rise over 15 %, one of -0.05 by a fall over 5 %."""

    text: str
    name: str
    share: float


@dataclass(frozen=True, slots=True)
class Checked:
    """A limit and the change that was measured. `change`: candidate / baseline - 1; None if that is not known."""

    limit: MaxChange
    change: float | None
    passed: bool
    values: str

    @property
    def text(self) -> str:
        """One line."""
        outcome = "passed" if self.passed else "FAILED"
        return f"--max-change {self.limit.text!r} {outcome}: {self.values} ({NOT_STATISTICAL})"

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the comparison's JSON."""
        return {"limit": self.limit.text, "passed": self.passed, "change": self.change, "text": self.text}


def parse(text: str) -> MaxChange:
    """Read a limit; UsageError says where it goes wrong."""
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--max-change {text!r}: no figure with a signed percentage; write it as 'p95(ttft_ms) +15%' or 'turns_per_s -5%'"
        )
    try:
        name = figure(found["name"]).name
    except GateError as error:
        raise UsageError(f"--max-change {text!r}: {error}") from error
    return MaxChange(text.strip(), name, float(found["percent"]) / 100)


def check(limit: MaxChange, baseline: Side, candidate: Side, refusals: Sequence[str]) -> Checked:
    """Check a limit; a value that is not measured fails it, and so do `refusals`: why the sides do not compare."""
    if refusals:
        return Checked(limit, None, False, f"not comparable because of {refusals[0]}")
    before, after = baseline.mean(limit.name), candidate.mean(limit.name)
    for side, value in ((baseline, before), (candidate, after)):
        if value is None:
            return Checked(limit, None, False, f"{limit.name} is not measured on {side.label}")
    return _judged(limit, before or 0.0, after or 0.0)


def _judged(limit: MaxChange, before: float, after: float) -> Checked:
    rises = math.copysign(1, limit.share) > 0
    bound = before * (1 + limit.share)
    passed = after <= bound if rises else after >= bound
    change = after / before - 1 if before else None if after else 0.0
    shown = "" if change is None else f", {change:+.1%}"
    return Checked(limit, change, passed, f"{number(before, 4)} to {number(after, 4)}{shown}")
