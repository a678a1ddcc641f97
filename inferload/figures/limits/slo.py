"""SLO of turns: limits, their results, and their words.

A limit is a row of `SLO_MEASURES`. The keys of `slo` in a scenario, the judgement of turns, pages and texts read it.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from msgspec import Struct, field

from inferload.base.clock import NS_PER_MS
from inferload.base.numbers import listed, number
from inferload.figures.turn_batch import TurnBatch
from inferload.figures.turn_figures import E2E, ITL, TPOT, TTFT, TurnFigure
from inferload.turns.sketch import Bools, rank
from inferload.turns.states import FAILED, UNFINISHED

# (turns, limit in ms, name of the instant from which times count) -> turns above the limit, and turns of which it is not known.
Judge = Callable[[TurnBatch, float, str], tuple[Bools, Bools]]


class SloMeasure(Struct, frozen=True, kw_only=True):
    """Measure of a turn that an SLO can limit.

    `text`: definition in the scenario's reference. `title`: in tables; empty: that of the figure. `from_plan`: in an open loop it
    counts from the planned instant.
    """

    figure: TurnFigure
    text: str
    judge: Judge
    title: str = ""
    from_plan: bool = False

    @property
    def description(self) -> str:
        """Text with the unit and the start."""
        start = "; in an open loop from the planned start of the turn" if self.from_plan else ""
        return f"{self.text}, in ms{start}"


def _until(instant: str, *, of_whole: bool = False) -> Judge:
    """Judge the time until an instant: turns that reach it too late, or never.

    A cancelled turn that did not reach it has its end instead. `of_whole`: the instant ends the answer, so that no cancelled turn
    reaches it.
    """

    def judge(turns: TurnBatch, limit_ms: float, start: str) -> tuple[Bools, Bools]:
        begun, end, closed = (turns.numbers[name] for name in (start, instant, "closed_ns"))
        end_ns = np.where(turns.cancelled & (of_whole | ~end.known), closed.values, end.values)
        in_time = begun.known & (end.known | turns.cancelled) & ((end_ns - begun.values) / NS_PER_MS <= limit_ms)
        return ~in_time, _none(turns)

    return judge


def _tpot(turns: TurnBatch, limit_ms: float, _start: str) -> tuple[Bools, Bools]:
    """Judge the TPOT, which is not known without the number of tokens. A short turn has none."""
    exceeded = _none(turns)
    values, row = TPOT.values(turns)
    exceeded[row] = values > limit_ms
    several = turns.events > 1
    return exceeded & several, several & ~turns.cancelled & ~turns.streamed.known


def _gaps(turns: TurnBatch, limit_ms: float, _start: str) -> tuple[Bools, Bools]:
    """Judge the 99th percentile of the gaps of each turn."""
    late = _none(turns)
    gaps_ms, turn = turns.gaps_ms
    of_turn = np.bincount(turn, minlength=len(turns))
    too_long = np.bincount(turn[gaps_ms > limit_ms], minlength=len(turns))
    for row in np.flatnonzero(too_long).tolist():
        late[row] = of_turn[row] - too_long[row] < rank(0.99, int(of_turn[row]))
    return late, _none(turns)


def _none(turns: TurnBatch) -> Bools:
    return np.zeros(len(turns), dtype=np.bool_)


SLO_MEASURES = (
    SloMeasure(figure=TTFT, text="time to first token", judge=_until("first_ns"), from_plan=True),
    SloMeasure(figure=TPOT, text="mean time per output token after the first", judge=_tpot),
    SloMeasure(figure=E2E, text="end-to-end time of the turn", judge=_until("last_ns", of_whole=True), from_plan=True),
    SloMeasure(
        figure=ITL,
        text="p99 of the inter-token latency within the turn",
        judge=_gaps,
        title="p99 of the gaps within the turn",
    ),
)
# What each limit of one turn is about.
LIMITS = MappingProxyType({row.figure.key: row.title or row.figure.title for row in SLO_MEASURES})
FROM_PLAN = listed([row.figure.title for row in SLO_MEASURES if row.from_plan])


class Judged(Struct, frozen=True):
    """Result of each turn. `missed`: turns by limit that they missed, or by FAILED or UNFINISHED. `known`: with a known result."""

    missed: Mapping[str, Bools]
    known: Bools

    @property
    def met(self) -> Bools:
        """Turns that met every limit."""
        return self.known & ~_any(self.missed, len(self.known))


class Slo(Struct, frozen=True):
    """Limits per turn in ms by key, all inclusive. `from_plan`: those of `FROM_PLAN` count from the planned instant."""

    limits: Mapping[str, float] = field(default_factory=dict)
    from_plan: bool = False

    def judge(self, turns: TurnBatch) -> Judged:
        """Return which limits each turn missed; unknown if it missed none, and one needs tokens that are unknown.

        A cancelled turn missed those that it had exceeded when it was cancelled. A turn that failed or is unfinished missed its
        state alone.
        """
        missed, unknown = {}, _none(turns)
        for row in SLO_MEASURES:
            if (limit_ms := self.limits.get(row.figure.key)) is not None:
                start = "planned_ns" if self.from_plan and row.from_plan else "sent_ns"
                late, unsure = row.judge(turns, limit_ms, start)
                missed[row.figure.key] = late & turns.ok
                unknown |= unsure
        missed |= {FAILED.key: ~turns.ok & ~turns.unfinished, UNFINISHED.key: turns.unfinished}
        return Judged(missed, _any(missed, len(turns)) | ~unknown)


def _any(missed: Mapping[str, Bools], turns: int) -> Bools:
    some: Bools = np.any([np.zeros(turns, dtype=np.bool_), *missed.values()], axis=0)
    return some


def limits_text(limits: Mapping[str, float]) -> str:
    """`TTFT <= 1,000 ms, p99 of the gaps within the turn <= 50 ms`, of limits by name."""
    return ", ".join(limit_text(name, limits[name]) for name in LIMITS if name in limits)


def limit_text(name: str, limit: float | None) -> str:
    """Return a limit of one turn in words; without its value if it is None."""
    return LIMITS[name] if limit is None else f"{LIMITS[name]} <= {number(limit)} ms"
