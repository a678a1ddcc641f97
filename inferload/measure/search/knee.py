"""The knee of the curve of throughput and latency: where more load begins to buy waiting rather than work.

Kleinrock's power, throughput over mean time in the system, is greatest there (L. Kleinrock, "Power and deterministic rules
of thumb for probabilistic problems in computer communications", ICC 1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Knee:
    """The load with the greatest power among those tried, and its neighbours; None where it is at an end of what was tried."""

    level: float
    below: float | None
    above: float | None
    turns_per_s: float
    turn_mean_s: float

    @property
    def enclosed(self) -> bool:
        """Whether both neighbours were tried, so that it lies between them."""
        return self.below is not None and self.above is not None


def knee(curve: Sequence[tuple[float, float, float | None]]) -> Knee | None:
    """From (load, turns per second, mean seconds of a turn) of each load; None where fewer than three are known."""
    known = sorted((level, rate, mean_s) for level, rate, mean_s in curve if mean_s is not None and mean_s > 0)
    if len(known) < 3:
        return None
    at = max(range(len(known)), key=lambda place: known[place][1] / known[place][2])
    level, rate, mean_s = known[at]
    return Knee(
        level,
        known[at - 1][0] if at else None,
        known[at + 1][0] if at + 1 < len(known) else None,
        rate,
        mean_s,
    )
