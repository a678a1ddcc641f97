"""What one window of load showed: each value with the instant that its turn was planned for, and every turn's life."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Samples:
    """Values of one condition's measure; instants in seconds since the window began. inf: a turn that failed."""

    at_s: Floats
    value: Floats


@dataclass(frozen=True, slots=True)
class Window:
    """One stretch of steady load. `samples`: one entry for each condition, of turns planned inside the window.

    `begun_s`, `ended_s`: of all turns, those of the warm-up and the drain too, when each was planned and when it was over,
    in seconds since the window began; inf where nobody saw its end. `good`: turns that ended well inside the window and met
    every limit of a single turn; None: not known. `ok`: which of all turns ended well; None: all that ended did.
    """

    lasts_s: float
    samples: tuple[Samples, ...]
    begun_s: Floats
    ended_s: Floats
    good: int | None = None
    ok: Bools | None = None

    def in_flight(self, at_s: Floats) -> Floats:
        """Turns that were planned and not over, at each instant."""
        begun = np.searchsorted(np.sort(self.begun_s), at_s, side="right")
        ended = np.searchsorted(np.sort(self.ended_s), at_s, side="right")
        return (begun - ended).astype(np.float64)

    @property
    def turns(self) -> int:
        """Turns that were planned inside the window."""
        return int(np.sum((self.begun_s >= 0) & (self.begun_s < self.lasts_s)))

    @property
    def turns_per_s(self) -> float:
        """Turns that ended well inside the window, per second."""
        return float(np.sum(self._well & (self.ended_s >= 0) & (self.ended_s < self.lasts_s))) / self.lasts_s

    @property
    def turn_mean_s(self) -> float | None:
        """Mean time from plan to end of the turns planned inside; None where none of them ended well."""
        inside = self._well & (self.begun_s >= 0) & (self.begun_s < self.lasts_s)
        return float(np.mean(self.ended_s[inside] - self.begun_s[inside])) if inside.any() else None

    @property
    def _well(self) -> Bools:
        """Which turns ended well."""
        ended: Bools = np.isfinite(self.ended_s)
        return ended if self.ok is None else ended & self.ok


def lasting_s(windows: Sequence[Window]) -> float:
    """Seconds of all windows together."""
    return sum(window.lasts_s for window in windows)
