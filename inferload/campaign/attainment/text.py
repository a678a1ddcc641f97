"""Lines of a search for a terminal."""

from collections.abc import Mapping
from typing import Any

from inferload.base.numbers import clock, percent, short
from inferload.results.documents.search_document import ConditionResult, Point, SearchDocument

_VERDICTS = {"invalid": "not valid, no limit of the server", "failed": "the run failed"}


def line(point: Point, number: int, used_s: float, unit: str) -> str:
    """One run: its load and verdict, and each condition with its interval."""
    text = f"{number:3}  {clock(used_s)}  {short(point.level)} {unit}: {_VERDICTS.get(point.verdict, point.verdict)}"
    if point.verdict in ("invalid", "failed"):
        return f"{text}: {_cause(point)}"
    if point.verdict == "overloaded":
        assert point.growth is not None
        return f"{text}: turns in flight grew by {short(point.growth.growth_per_s)} a second"
    return f"{text}; " + "; ".join(
        [*(_condition(each) + point.beside(each) for each in point.conditions), *_remarks(point)]
    )


def _cause(point: Point) -> str:
    """Cause of a failed run, or of an invalid run without the remedy, which is in search.md."""
    if not point.causes:
        return "no reason given"
    text = " ".join(point.causes[-1].split())
    return text if point.verdict == "failed" else _without_remedy(text)


def _remarks(point: Point) -> list[str]:
    """First remark and the number of the others; search.md has all, with remedies."""
    more = len(point.remarks) - 1
    return [f"but {_without_remedy(text)}" + (f" (and {more} more)" if more > 0 else "") for text in point.remarks[:1]]


def _without_remedy(text: str) -> str:
    return text.partition(";")[0]


def going(latest: Mapping[str, Any] | None, warmup_s: float, window_s: float) -> str:
    """State of a run under way. `latest`: last line of its progress file, None before the first."""
    if latest is None:
        return "starting"
    phase, in_flight = latest["phase"], latest["in_flight"]
    if phase == "measure" and latest["measured_s"] is not None:
        return f"measure {latest['measured_s']:.0f} of {window_s:.0f} s · {in_flight} in flight"
    if phase == "warmup":
        return f"warm-up {latest['elapsed_s']:.0f} of {warmup_s:.0f} s · {in_flight} in flight"
    return f"{phase or 'about to begin'} · {in_flight} in flight"


def _condition(result: ConditionResult) -> str:
    label = result.label
    if not result.values:
        return f"{label}: not measured"
    if result.share is None:
        interval = "no interval yet" if result.high is None else f"{short(result.low)} to {short(result.high)}"
        return f"{label} {short(result.figure)} ({interval}), limit {result.limit:g}"
    figure = "beyond all that ended" if result.figure is None else short(result.figure)
    interval = f"{percent(result.low)} to {percent(result.high)}"
    return f"{label} {figure}: {percent(result.value)} within ({interval}), {percent(result.share)} required"


def summed_up(document: SearchDocument) -> list[str]:
    """Return the result and the time spent, from search.json."""
    spent = document.spent
    lines = []
    for each in document.every:
        if (answer := each.answer) is not None:
            name = f"{each.tier}: " if each.tier else ""
            lines.append(f"{name}{each.slo}: {answer.text}")
            wrong = percent(1 - answer.level)
            lines.append(f"  {answer.ended_text}; the two decided loads are wrong in at most {wrong} of searches")
    doubted = sum(bool(point.causes or point.remarks) for point in document.points)
    if doubted:
        lines.append(f"  measured with doubts: {doubted} of {spent.loads} loads; see search.md")
    budget = "" if spent.budget_s is None else f" of {spent.budget_s / 60:.3g}"
    lines.append(f"  {spent.looks} runs at {spent.loads} loads took {spent.used_s / 60:.3g}{budget} min")
    return lines
