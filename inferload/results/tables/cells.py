"""Cells of tables: statistics with their marks and intervals, shares, steps."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inferload.base.numbers import number, percent, short, supported, time_unit
from inferload.figures.figure import Figure, Head
from inferload.figures.table import Cell, Detailed
from inferload.results.documents.figures_document import Distribution


def statistic_head(name: str) -> Head:
    return Head(name.replace("p999", "p99.9"), "p50" if name.startswith("p") else name)


class Scale(NamedTuple):
    """Unit in which values are printed, and the factor to it."""

    unit: str
    factor: float = 1.0


def scale_of_blocks(figure: Figure, blocks: Iterable[Distribution], names: Iterable[str]) -> Scale:
    """Return the scale of some statistics of distributions, which stand together: times have a unit that fits."""
    shown = tuple(name for name in names if name != "count")
    values = (block.statistic(name) for block in blocks for name in shown)
    return Scale(*time_unit(values)) if figure.unit == "ms" else Scale(figure.unit)


def statistic(block: Distribution, name: str, factor: float = 1.0) -> Cell:
    """Return one statistic; a percentile with fewer than 10 samples beyond it has a mark, and its interval as a detail."""
    value = block.statistic(name)
    if value is None or name == "count":
        return value
    value *= factor
    if not block.is_marked(name):
        return number(value)
    low, high = (None if end is None else end * factor for end in block.intervals.get(name, (None, None)))
    detail = f"({bounds_text(low, high)})" if name in block.intervals else ""
    return Detailed(f"{supported(value, low, high)} ~", detail)


def row_of(figure: Figure, block: Distribution, names: Sequence[str]) -> Sequence[Cell]:
    """Return the row of a figure: its head with the unit of the row, and statistics."""
    unit, factor = scale_of_blocks(figure, [block], names)
    return (figure.head(unit=unit), *(statistic(block, name, factor) for name in names))


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
