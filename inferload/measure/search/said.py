"""A search in lines for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from inferload.measure.search.attainment import Held
from inferload.measure.search.judged import Point
from inferload.numbers import clock, duration, percent, short


def line(point: Point, number: int, used_s: float, unit: str) -> str:
    """One look: its load, each condition with its interval, what follows."""
    text = f"{number:3}  {clock(used_s)}  {short(point.level)} {unit}: {verdict(point)}"
    if point.state in ("invalid", "failed"):
        return f"{text}: {_cause(point)}"
    if point.state == "diverged":
        assert point.growth is not None
        return f"{text}: turns in flight grew by {short(point.growth.per_s)} a second"
    return f"{text}; " + "; ".join([_condition(one) for one in point.held] + _remarks(point))


def _cause(point: Point) -> str:
    """Whole where nothing could be made of it; else what was seen: the remedy stands in search.md, and once is enough."""
    if not point.causes:
        return "no reason given"
    text = " ".join(point.causes[-1].split())
    return text if point.state == "failed" else _seen(text)


def _remarks(point: Point) -> list[str]:
    """The first, and how many more there are: all of them, with what to do, are in search.md."""
    more = len(point.remarks) - 1
    return [f"but {_seen(one)}" + (f" (and {more} more)" if more > 0 else "") for one in point.remarks[:1]]


def _seen(text: str) -> str:
    """What a remark says was seen, without its remedy."""
    return text.partition(";")[0]


def going(latest: Mapping[str, Any] | None, warmup_s: float, window_s: float) -> str:
    """A run that is under way. `latest`: the last line of its progress file; None: there is none yet."""
    if latest is None:
        return "starting"
    phase, in_flight = latest["phase"], latest["in_flight"]
    if phase == "measure" and latest["measured_s"] is not None:
        return f"measure {latest['measured_s']:.0f} of {window_s:.0f} s · {in_flight} in flight"
    if phase == "warmup":
        return f"warm-up {latest['elapsed_s']:.0f} of {warmup_s:.0f} s · {in_flight} in flight"
    return f"{phase or 'about to begin'} · {in_flight} in flight"


def verdict(point: Point) -> str:
    """In words."""
    words = {"invalid": "not valid, and no limit of the server", "failed": "the run could not be made"}
    return words.get(point.state, point.state)


def _condition(one: Held) -> str:
    label = one.condition.label
    if not one.count:
        return f"{label}: not measured"
    if one.condition.share is None:
        interval = f"{short(one.low)} to {short(one.high)}" if isfinite(one.high) else "no interval yet"
        figure = short(one.figure) if one.figure is not None else "without end, as turns failed"
        failed = f", {percent(one.failed)} of the turns failed and are not in it" if one.failed else ""
        return f"{label} {figure} ({interval}), limit {one.condition.limit:g}{failed}"
    figure = "beyond all that ended" if one.figure is None else short(one.figure)
    kept = f"{percent(one.value)} within ({percent(one.low)} to {percent(one.high)}), {percent(one.condition.share)} wanted"
    return f"{label} {figure}: {kept}"


def summed_up(found: Mapping[str, Any]) -> list[str]:
    """The answer, the knee and what it took."""
    spent = found["spent"]
    lines = []
    if found["answer"] is not None:
        lines.append(f"{found['slo']}: {found['answer']['text']}")
        wrong = percent(1 - found["answer"]["level"])
        lines.append(f"  {found['answer']['ended_text']}; the two sure loads are wrong in at most {wrong} of searches")
        if found["answer"]["interval"] is not None:
            lines.append(
                "  the interval of the estimate is by a line through all points near it; in trials it held the truth in 27 of 29"
            )
    if found["knee"] is not None:
        lines.append(f"  knee: {found['knee']['text']}")
    doubted = sum(bool(point["causes"] or point["remarks"]) for point in found["points"])
    if doubted:
        lines.append(
            f"  measured with doubts: {doubted} of {spent['loads']} loads; search.md says which, and what to do"
        )
    budget = "" if spent["budget_s"] is None else f" of {duration(spent['budget_s'])}"
    lines.append(f"  {spent['looks']} runs at {spent['loads']} loads took {duration(spent['used_s'])}{budget}")
    return lines
