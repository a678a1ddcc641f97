"""Cells of tables: statistics with their marks and intervals, shares, steps."""

from collections.abc import Iterable, Sequence

from inferload.base.numbers import number, percent, short
from inferload.figures.figure import Head
from inferload.figures.table import Cell, Detailed
from inferload.results.documents.figures_document import Distribution


def statistic_head(name: str) -> Head:
    return Head(name.replace("p999", "p99.9"), "p50" if name.startswith("p") else name)


def statistic(block: Distribution, name: str) -> Cell:
    """Return one statistic; a percentile with fewer than 10 samples beyond it has a mark, and its interval as a detail."""
    value = block.statistic(name)
    if not block.is_marked(name):
        return value
    interval = block.intervals.get(name)
    return Detailed(f"{short(value)} ~", f"({bounds_text(*interval)})" if interval else "")


def bounds_text(low: float | None, high: float | None) -> str:
    """Format an interval; unknown ends are open."""
    if low is None and high is None:
        return "open"
    if low is None or high is None:
        return f"under {number(high)}" if low is None else f"over {number(low)}"
    return f"{number(low)} to {number(high)}"


def step_level(users: float | None = None, sessions_per_s: float | None = None) -> str:
    """Return the planned load of a step: users, or sessions per second."""
    if users is not None:
        return "1 user" if users == 1 else f"{users} users"
    return f"{short(sessions_per_s)} sessions/s"


def share(value: float | None) -> str | None:
    return None if value is None else percent(value)


def marks_note(rows: Iterable[Sequence[Cell]]) -> str:
    marked = any(isinstance(cell, Detailed) for row in rows for cell in row)
    text = " ~: fewer than 10 samples beyond the percentile; a page has its 95 % interval, for independent samples, in brackets."
    return text if marked else ""
