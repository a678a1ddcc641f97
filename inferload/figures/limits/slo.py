"""SLO of turns: limits, their results, and their words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from inferload.base.clock import NS_PER_MS
from inferload.base.numbers import number
from inferload.figures.turn_batch import Bools, Ints, TurnBatch
from inferload.figures.turn_figures import E2E, ITL, TPOT, TTFT
from inferload.turns.sketch import rank
from inferload.turns.states import FAILED, UNFINISHED

# What each limit of one turn is about.
LIMITS = MappingProxyType(
    {TTFT.key: TTFT.title, TPOT.key: TPOT.title, E2E.key: E2E.title, ITL.key: "p99 of the gaps within the turn"}
)


@dataclass(frozen=True, slots=True)
class Judged:
    """Result of each turn. `missed`: turns by limit that they missed, or by FAILED or UNFINISHED. `known`: with a known result."""

    missed: Mapping[str, Bools]
    known: Bools

    @property
    def met(self) -> Bools:
        """Turns that met every limit."""
        return self.known & ~_any(self.missed, len(self.known))


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits per turn, all inclusive; None: no limit. `from_plan`: TTFT and E2E count from the planned instant."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    itl_ms: float | None = None  # of the 99th percentile of the gaps within the turn
    from_plan: bool = False

    def judge(self, turns: TurnBatch) -> Judged:
        """Return which limits each turn missed; unknown if it missed none, and one needs tokens that are unknown.

        A cancelled turn missed those that it had exceeded when it was cancelled. A turn that failed or is unfinished missed its
        state alone.
        """
        first, last, closed = (turns.numbers[name] for name in ("first_ns", "last_ns", "closed_ns"))
        first_ns = np.where(first.known, first.values, closed.values)
        last_ns = np.where(turns.cancelled, closed.values, last.values)
        tpot_exceeded, tpot_unknown = self._tpot(turns)
        missed = {
            TTFT.key: self._late(turns, first_ns, first.known | turns.cancelled, self.ttft_ms),
            TPOT.key: tpot_exceeded,
            E2E.key: self._late(turns, last_ns, last.known | turns.cancelled, self.e2e_ms),
            ITL.key: self._gaps(turns),
        }
        missed = {name: late & turns.ok for name, late in missed.items()}
        missed |= {FAILED.key: ~turns.ok & ~turns.unfinished, UNFINISHED.key: turns.unfinished}
        return Judged(missed, _any(missed, len(turns)) | ~tpot_unknown)

    def _late(self, turns: TurnBatch, end_ns: Ints, reached: Bools, limit_ms: float | None) -> Bools:
        """Return the turns that reached an instant too late, or never."""
        if limit_ms is None:
            return np.zeros(len(turns), dtype=np.bool_)
        start = turns.numbers["planned_ns" if self.from_plan else "sent_ns"]
        return ~(start.known & reached & ((end_ns - start.values) / NS_PER_MS <= limit_ms))

    def _tpot(self, turns: TurnBatch) -> tuple[Bools, Bools]:
        """Return the turns above the limit, and those with an unknown number of tokens. A short turn has no TPOT."""
        exceeded = np.zeros(len(turns), dtype=np.bool_)
        if self.tpot_ms is None:
            return exceeded, exceeded
        values, row = TPOT.values(turns)
        exceeded[row] = values > self.tpot_ms
        unknown = (turns.events > 1) & ~turns.cancelled & ~turns.numbers["output_tokens"].known
        return exceeded & (turns.events > 1), unknown

    def _gaps(self, turns: TurnBatch) -> Bools:
        """Return the turns with a 99th percentile of the gaps above the limit."""
        late = np.zeros(len(turns), dtype=np.bool_)
        if self.itl_ms is None:
            return late
        gaps_ms, turn = turns.gaps_ms
        of_turn = np.bincount(turn, minlength=len(turns))
        too_long = np.bincount(turn[gaps_ms > self.itl_ms], minlength=len(turns))
        for row in np.flatnonzero(too_long).tolist():
            late[row] = of_turn[row] - too_long[row] < rank(0.99, int(of_turn[row]))
        return late


def _any(missed: Mapping[str, Bools], turns: int) -> Bools:
    some: Bools = np.any([np.zeros(turns, dtype=np.bool_), *missed.values()], axis=0)
    return some


def limits_text(limits: Mapping[str, float]) -> str:
    """`TTFT <= 1,000 ms, p99 of the gaps within the turn <= 50 ms`, of limits by name."""
    return ", ".join(limit_text(name, limits[name]) for name in LIMITS if name in limits)


def limit_text(name: str, limit: float | None) -> str:
    """Return a limit of one turn in words; without its value if it is None."""
    return LIMITS[name] if limit is None else f"{LIMITS[name]} <= {number(limit)} ms"
