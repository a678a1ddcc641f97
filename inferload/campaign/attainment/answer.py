"""Result of a search: a sentence, and the document that is stored as search.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import msgspec

from inferload.base.numbers import short
from inferload.campaign.attainment.attainment import ConditionResult
from inferload.campaign.attainment.bracket import Settings, Why
from inferload.campaign.attainment.point import Point, bounds
from inferload.campaign.attainment.slo import text_of
from inferload.figures.rate_figures import GOODPUT, TURNS

FORMAT = 2
_ENDS: dict[Why, str] = {
    "resolved": "the two decided loads are within the precision",
    "budget": "the time budget is spent",
    "contradiction": "a load holds the SLO above one that does not: attainment does not simply fall with load",
    "all break": "no load that was tried holds the SLO",
    "all hold": "every load that was tried holds the SLO",
    "client": "this client could not measure any load beyond the last one that holds",
    "failures": "consecutive runs failed",
}


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Decided loads: the highest that holds the SLO and the lowest that does not. None: not known."""

    why: Why
    low: float | None
    high: float | None

    @property
    def resolved(self) -> bool:
        """True if the decided loads are within the precision."""
        return self.why == "resolved"

    def text(self, unit: str, whole: bool = False) -> str:
        """One sentence."""
        low, high = (None if level is None else f"{short(level)} {unit}" for level in (self.low, self.high))
        if self.why == "contradiction":
            return f"not resolved: {low} held the SLO, and {high} did not"
        if self.resolved and whole and (self.low is None or self.high is None or self.high - self.low <= 1):
            return f"{low} at most hold the SLO" if low else "a single user does not hold the SLO"
        if self.resolved:
            return f"{low} hold the SLO, and {high} do not"
        if low is not None and high is not None:
            return f"not resolved between {low}, which held the SLO, and {high}, which did not"
        if low is not None:
            return f"at least {low} hold the SLO; the highest load that does is not known"
        if high is not None:
            return f"{high} do not hold the SLO; the highest load that does is not known"
        return "not resolved: no load is decided"


def answer(points: Sequence[Point], why: Why) -> SearchResult:
    """Result from all points."""
    sure = bounds(points)
    return SearchResult(why, sure.low, sure.high)


def document(settings: Settings, points: Sequence[Point], why: Why | None, unit: str) -> dict[str, Any]:
    """Content of search.json, without the facts of how it was run. `why` is None for a plain sweep."""
    result = None if why is None else answer(points, why)
    return {
        "format": FORMAT,
        "slo": text_of(settings.conditions),
        "unit": unit,
        "answer": result
        and {
            "text": result.text(unit, settings.whole),
            "resolved": result.resolved,
            "holds": result.low,
            "breaks": result.high,
            "level": 1 - settings.alpha,
            "ended": why,
            "ended_text": _ENDS[result.why],
        },
        "spent": {
            "budget_s": settings.budget_s if why is not None else None,
            "used_s": sum(point.spent_s for point in points),
            "looks": sum(point.looks for point in points),
            "loads": len(points),
        },
        "points": [_point(point) for point in sorted(points, key=lambda point: point.level)],
    }


def _point(point: Point) -> dict[str, Any]:
    return {
        "level": point.level,
        "verdict": point.state,
        "looks": point.looks,
        "measured_s": point.measured_s,
        "spent_s": point.spent_s,
        "turns": point.turns,
        TURNS.key: point.turns_per_s,
        GOODPUT.key: point.goodput_turns_per_s,
        "growth": msgspec.to_builtins(point.growth),
        # Above its capacity a server has no attainment, only a duration.
        "conditions": [] if point.state == "overloaded" else [_condition(condition) for condition in point.held],
        "causes": list(point.causes),
        "remarks": list(point.remarks),
        "runs": list(point.runs),
    }


def _condition(result: ConditionResult) -> dict[str, Any]:
    return {
        "condition": result.condition.text,
        "label": result.condition.label,
        "limit": result.condition.limit,
        "share": result.condition.share,
        "value": _finite(result.value),
        "low": _finite(result.low),
        "high": _finite(result.high),
        "figure": _finite(result.figure),
        "figure_low": _finite(result.figure_low),
        "figure_high": _finite(result.figure_high),
        "verdict": result.verdict,
        "values": result.count,
        "effective": _finite(result.effective),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
