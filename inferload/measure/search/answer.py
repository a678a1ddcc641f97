"""The answer of a search, as data and as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from inferload.measure.search.edge import Edge
from inferload.measure.search.judged import BROKEN, Bounds, Point, bounds
from inferload.measure.search.knee import Knee, knee
from inferload.measure.search.plan import Settings, Why, crossing, edge_of, pinned
from inferload.measure.search.wanted import text_of
from inferload.numbers import short

FORMAT = 1
_ENDS: dict[Why, str] = {
    "resolved": "the interval is as narrow as was asked for",
    "budget": "the time was spent",
    "contradiction": "a higher load held the SLO where a lower one did not: it does not simply get worse with load",
    "all break": "no load that was tried holds the SLO",
    "all hold": "every load that was tried holds the SLO",
    "client": "beyond the last load that holds, this client could not measure any more",
    "failures": "one run after the other came to nothing",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The highest load that holds. `estimate`: where the fit loses the SLO; `low`, `high`: what is sure; None: not known.

    `edge`: the interval of the estimate, by all windows together; None where they do not show it.
    """

    why: Why
    estimate: float | None
    low: float | None
    high: float | None
    resolved: bool
    edge: Edge | None = None
    pinned: bool = True  # the two sure loads are as near to each other as was asked for

    def text(self, unit: str, whole: bool = False) -> str:
        """One sentence."""
        low, high = (None if at is None else f"{short(at)} {unit}" for at in (self.low, self.high))
        between = "" if self.edge is None else f" ({short(self.edge.low)} to {short(self.edge.high)})"
        if self.why == "contradiction":
            return f"not resolved: {low} held the SLO, and {high} did not"
        if self.resolved and not self.pinned:
            did = [f"{low} did" if low else "", f"{high} did not" if high else ""]
            sure = " and ".join(one for one in did if one) or "no single load did or did not"
            return f"about {short(self.estimate)} {unit} at most hold the SLO{between}; for sure {sure}"
        if self.resolved and whole:
            return f"{low or f'not even 1 {unit}'} at most holds the SLO" if low else f"not even 1 {unit} holds the SLO"
        if self.resolved:
            return f"about {short(self.estimate)} {unit} at most hold the SLO ({low} did, {high} did not)"
        guess = "" if self.estimate is None else f"; most likely about {short(self.estimate)} {unit}{between}"
        if low is not None and high is not None:
            return f"not resolved between {low}, which held the SLO, and {high}, which did not{guess}"
        if low is not None:
            return f"at least {low} hold the SLO; where it ends is not known{guess}"
        if high is not None:
            return f"{high} do not hold the SLO; what does is not known{guess}"
        return f"not resolved: no load is sure to hold the SLO, and none is sure not to{guess}"


def answer(settings: Settings, points: Sequence[Point], why: Why) -> Answer:
    """From all points."""
    sure: Bounds = bounds(points)
    seen = edge_of(settings, points)
    found = crossing(points) if seen is None else seen.at
    if found is not None and not sure.contradict:
        found = min(max(found, sure.low or 0.0), sure.high or float("inf"))
    if settings.whole and found is not None:
        found = float(int(found))
    return Answer(why, found, sure.low, sure.high, why == "resolved", seen, pinned(settings, sure))


def knee_of(points: Sequence[Point]) -> Knee | None:
    """Of the loads that reached a steady state."""
    curve = [
        (p.level, p.turns_per_s, p.turn_mean_s) for p in points if p.state not in ("diverged", "invalid", "failed")
    ]
    return knee([(level, rate, mean_s) for level, rate, mean_s in curve if rate is not None])


def document(settings: Settings, points: Sequence[Point], why: Why | None, unit: str) -> dict[str, Any]:
    """What stands in search.json beside the facts of how it was run. `why` is None for a plain sweep."""
    found = None if why is None else answer(settings, points, why)
    bend = knee_of(points)
    return {
        "format": FORMAT,
        "slo": text_of(settings.conditions),
        "unit": unit,
        "answer": found
        and {
            "text": found.text(unit, settings.whole),
            "resolved": found.resolved,
            "estimate": found.estimate,
            "interval": found.edge and [found.edge.low, found.edge.high],
            "holds": found.low,
            "breaks": found.high,
            "level": 1 - settings.alpha,
            "ended": why,
            "ended_text": _ENDS[why] if why else None,
        },
        "knee": bend and {"level": bend.level, "below": bend.below, "above": bend.above, "text": knee_text(bend, unit)},
        "spent": {
            "budget_s": settings.budget_s if why is not None else None,
            "used_s": sum(point.spent_s for point in points),
            "looks": sum(point.looks for point in points),
            "loads": len(points),
            "error": sum(point.alpha for point in points) if why is not None else None,
            "error_allowed": settings.alpha if why is not None else None,
        },
        "points": [point_document(point) for point in sorted(points, key=lambda one: one.level)],
    }


def knee_text(found: Knee, unit: str) -> str:
    """One sentence."""
    if not found.enclosed:
        side = "lowest" if found.below is None else "highest"
        return (
            f"throughput over latency is greatest at {short(found.level)} {unit}, the {side} steady load that was tried"
        )
    return (
        f"throughput over latency is greatest at {short(found.level)} {unit} "
        f"(tried beside it: {short(found.below)} and {short(found.above)})"
    )


def point_document(point: Point) -> dict[str, Any]:
    """One load, as it stands in search.json."""
    growth = point.growth
    return {
        "level": point.level,
        "verdict": point.state,
        "looks": point.looks,
        "measured_s": point.measured_s,
        "spent_s": point.spent_s,
        "turns": point.turns,
        "turns_per_s": point.turns_per_s,
        "turn_mean_s": point.turn_mean_s,
        "goodput_turns_per_s": point.goodput_turns_per_s,
        "ended_early": point.ended_early,
        "in_flight_growth": growth
        and {"per_s": growth.per_s, "error_per_s": growth.error_per_s, "share": growth.share, "p": growth.p},
        # Above its capacity a server has no attainment, only a duration.
        "conditions": [] if point.state == "diverged" else [_held(one) for one in point.held],
        "error": point.alpha,
        "causes": list(point.causes),
        "remarks": list(point.remarks),
        "runs": list(point.runs),
    }


def _held(one: Any) -> dict[str, Any]:
    return {
        "condition": one.condition.text,
        "label": one.condition.label,
        "limit": one.condition.limit,
        "share": one.condition.share,
        "value": _finite(one.value),
        "low": _finite(one.low),
        "high": _finite(one.high),
        "figure": _finite(one.figure),
        "figure_low": _finite(one.figure_low),
        "figure_high": _finite(one.figure_high),
        "verdict": one.verdict,
        "failed": one.failed,
        "values": one.count,
        "effective": _finite(one.effective),
        "relaxation_s": _finite(one.relaxation_s),
        "batches": one.batches,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


__all__ = ["BROKEN", "Answer", "answer", "document", "knee_of", "knee_text", "point_document"]
