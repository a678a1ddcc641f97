"""Result of a search: a sentence, and the document that is stored as search.json."""

from collections.abc import Sequence

from inferload.base.numbers import short
from inferload.campaign.attainment.bracket import Settings
from inferload.campaign.attainment.point import Bounds, bounds
from inferload.campaign.attainment.slo import text_of
from inferload.results.documents.search_document import Answer, Point, SearchDocument, Spent, Why

_ENDS: dict[Why, str] = {
    "resolved": "the two decided loads are within the precision",
    "budget": "the time budget is spent",
    "contradiction": "a load holds the SLO above one that does not: attainment does not simply fall with load",
    "all break": "no load that was tried holds the SLO",
    "all hold": "every load that was tried holds the SLO",
    "client": "this client could not measure any load beyond the last one that holds",
    "failures": "consecutive runs failed",
}


def sentence(why: Why, sure: Bounds, unit: str, whole: bool = False) -> str:
    """Return the result as a sentence. `sure`: the decided loads."""
    low, high = (None if level is None else f"{short(level)} {unit}" for level in (sure.low, sure.high))
    if why == "contradiction":
        return f"not resolved: {low} held the SLO, and {high} did not"
    if why == "resolved":
        if whole and (sure.low is None or sure.high is None or sure.high - sure.low <= 1):
            return f"{low} at most hold the SLO" if low else "a single user does not hold the SLO"
        return f"{low} hold the SLO, and {high} do not"
    if low is not None and high is not None:
        return f"not resolved between {low}, which held the SLO, and {high}, which did not"
    if low is not None:
        return f"at least {low} hold the SLO; the highest load that does is not known"
    if high is not None:
        return f"{high} do not hold the SLO; the highest load that does is not known"
    return "not resolved: no load is decided"


def answer(settings: Settings, points: Sequence[Point], why: Why, unit: str) -> Answer:
    sure = bounds(points)
    return Answer(
        text=sentence(why, sure, unit, settings.whole),
        resolved=why == "resolved",
        holds=sure.low,
        breaks=sure.high,
        level=1 - settings.alpha,
        ended=why,
        ended_text=_ENDS[why],
    )


def document(settings: Settings, points: Sequence[Point], why: Why | None, unit: str) -> SearchDocument:
    """Return search.json, without the facts of how it was run. `why` is None for a plain sweep."""
    return SearchDocument(
        slo=text_of(settings.conditions),
        unit=unit,
        answer=None if why is None else answer(settings, points, why, unit),
        spent=Spent(
            budget_s=None if why is None else settings.budget_s,
            used_s=sum(point.spent_s for point in points),
            looks=sum(point.looks for point in points),
            loads=len(points),
        ),
        points=tuple(sorted(points, key=lambda point: point.level)),
    )
