"""Order, filter and trend of the run list, chosen by the query of the page. No I/O."""

import math
from collections.abc import Mapping, Sequence
from typing import Self
from urllib.parse import urlencode

from msgspec import Struct, structs
from msgspec.structs import replace

from inferload.base.numbers import number, short
from inferload.results.run_list import FIGURES, ListedRun

STARTED, OUTCOME = "run", "outcome"  # columns beside those of the figures; a run is sorted by its start
COLUMNS = (STARTED, OUTCOME, *FIGURES)
_LONGEST = 200  # characters of a query value
_TICKS = 5  # most on an axis of values
_DATES = 4  # most on the axis of runs


class Point(Struct, frozen=True):
    """Run in a trend. `x`, `y`: in percent of the drawing, from its lower left corner."""

    run: ListedRun
    value: str
    x: float
    y: float
    dated: bool  # its start is a tick of the axis


class Trend(Struct, frozen=True):
    """A figure over the runs of a scenario, by their start. `left_out`: runs without a valid value.

    `ticks`: of the axis of values, each with its height in percent.
    """

    points: tuple[Point, ...]
    ticks: tuple[tuple[str, float], ...]
    left_out: int

    @property
    def line(self) -> str:
        return " ".join(f"{point.x:.2f},{100 - point.y:.2f}" for point in self.points)


class RunView(Struct, frozen=True):
    """Selection of runs. `figure`, `scenario` (the series of its runs): of the trend; empty: no trend."""

    text: str = ""
    sort: str = STARTED
    descending: bool = True
    figure: str = ""
    scenario: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """Return the view of a query; an unknown value is the default."""
        sort, figure = query.get("sort", ""), query.get("figure", "")
        return cls(
            text=query.get("text", "")[:_LONGEST],
            sort=sort if sort in COLUMNS else STARTED,
            descending=query.get("order") != "ascending",
            figure=figure if figure in FIGURES else "",
            scenario=query.get("scenario", "")[:_LONGEST],
        )

    def selected(self, runs: Sequence[ListedRun]) -> list[ListedRun]:
        """Return the runs with all words of the text, in order; runs without the figure are last."""
        words = self.text.casefold().split()
        found = [run for run in runs if all(word in run.words for word in words)]
        known = [run for run in found if self._key(run) is not None]
        unknown = [run for run in found if self._key(run) is None]
        return sorted(known, key=self._key, reverse=self.descending) + unknown  # type: ignore[arg-type]

    def _key(self, run: ListedRun) -> float | str | None:
        if self.sort in FIGURES:
            return run.value(self.sort)
        return run.started_at if self.sort == STARTED else run.state

    def aria_sort(self, column: str) -> str:
        """Return the order of a column as the value of `aria-sort`."""
        return ("descending" if self.descending else "ascending") if column == self.sort else "none"

    def sorted_by(self, column: str) -> str:
        """Return the query that sorts by a column, in the other order if it is the current one."""
        return replace(self, sort=column, descending=column != self.sort or not self.descending).query

    @property
    def query(self) -> str:
        order = "descending" if self.descending else "ascending"
        values = {**structs.asdict(self), "order": order}
        del values["descending"]
        return urlencode({name: value for name, value in values.items() if value})

    def trend(self, runs: Sequence[ListedRun]) -> Trend | None:
        """Return the trend of the figure over the runs of the scenario; None if no trend is chosen."""
        if not self.figure or not self.scenario:
            return None
        of_scenario = sorted((run for run in runs if run.series == self.scenario), key=lambda run: run.started_at)
        values = [(run, run.value(self.figure)) for run in of_scenario]
        known = [(run, value) for run, value in values if value is not None and not run.invalid]
        ticks, last = axis(max((value for _, value in known), default=0.0)), len(known) - 1
        dated = {round(last * tick / (_DATES - 1)) for tick in range(_DATES)}
        points = tuple(
            Point(run, short(value), 100 * index / last if last else 50.0, 100 * value / ticks[-1], index in dated)
            for index, (run, value) in enumerate(known)
        )
        heights = tuple((number(tick), 100 * tick / ticks[-1]) for tick in ticks)
        return Trend(points, heights, len(values) - len(known))


def axis(highest: float) -> list[float]:
    """Return the ticks of an axis from 0: at most `_TICKS` steps of 1, 2 or 5 times a power of ten, to at least `highest`."""
    if highest <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(highest / _TICKS))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if highest <= _TICKS * step)
    return [step * index for index in range(math.ceil(highest / step) + 1)]
