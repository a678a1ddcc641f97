"""Front of throughput and interactivity: the loads of the sides that no other one beats in both.

Definitions of InferenceX (SemiAnalysisAI/InferenceX, utils/process_result.py): interactivity is 1000 / TPOT in ms, here of the
median TPOT, and throughput per GPU is output tokens/s over the number of GPUs. All GPUs count, also where prefill has some of its
own: there InferenceX divides by those of decode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, cycle
from typing import Any, Literal

from inferload.base.numbers import number, short
from inferload.figures.rate_figures import OUTPUT
from inferload.figures.table import Cell, Table
from inferload.results.statistics.paired_runs import effect

from ..charts import chart
from ..charts.load import COLOURS, TPOT_MEDIAN
from .compare import Comparison
from .sides import LoadFigures, Run, Side

Position = Literal["on the front", "below the front", "not decided"]
LOAD_KEYS = ("arrivals.", "phases.")  # settings of load and duration: the points of a front may differ in them
_COLUMNS = ("configuration", "load", "runs", "tok/s/user", "95 % CI", "tok/s/GPU", "95 % CI", "position")
_NOTE = (
    "tok/s/user: 1000 / median TPOT in ms. On the front: no other load is better in both; below: another one is; not decided: the "
    "intervals, over the runs of a load and without a correction for the number of loads, leave it open"
)
_MARKS = "Filled: on the front; cross: below it; hollow: not decided. Bars: 95 % intervals"
_SYMBOLS = {"on the front": "circle", "below the front": "x", "not decided": "circle-open"}


@dataclass(frozen=True, slots=True)
class Estimate:
    """Geometric mean over runs with its 95 % interval by t; ends are None for a single run."""

    mean: float
    low: float | None
    high: float | None

    @property
    def interval(self) -> str:
        return "one run" if self.low is None else f"{number(self.low)} to {number(self.high)}"

    def above(self, other: "Estimate") -> bool:
        return self.low is not None and other.high is not None and self.low > other.high


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A side at a load. `user`: tok/s of a user; `output`: tok/s of a GPU, or of the server."""

    side: str
    load: str
    runs: int
    user: Estimate
    output: Estimate
    position: Position = "not decided"

    @property
    def row(self) -> Sequence[Cell]:
        of_user, of_output = (self.user.mean, self.user.interval), (self.output.mean, self.output.interval)
        return (self.side, self.load, self.runs, *of_user, *of_output, self.position)

    def better(self, other: "FrontPoint") -> tuple[bool, bool]:
        """Return whether it is above another point for a user, and in output."""
        return self.user.above(other.user), self.output.above(other.output)


@dataclass(frozen=True, slots=True)
class Front:
    """`unit`: of the output: per GPU, or per server if a number of GPUs is not known. `notes`: GPUs, and sides left out."""

    points: tuple[FrontPoint, ...]
    unit: str
    notes: tuple[str, ...]

    @property
    def table(self) -> Table:
        rows, columns = [point.row for point in self.points], [*_COLUMNS[:5], self.unit, *_COLUMNS[6:]]
        return Table("front", "Front", columns, rows, ". ".join([_NOTE, *self.notes]) + ".")

    def picture(self, key: str) -> chart.Picture:
        """Return the chart: filled on the front, a cross below it, hollow if not decided."""
        names, data = dict.fromkeys(point.side for point in self.points), []
        for (dark, _), name in zip(cycle(COLOURS), names, strict=False):
            shown = [point for point in self.points if point.side == name]
            users, outputs = [point.user for point in shown], [point.output for point in shown]
            x, y = (chart.numbers([each.mean for each in values]) for values in (users, outputs))
            look = {
                "error_x": _bars(users, dark),
                "error_y": _bars(outputs, dark),
                "line": {"color": dark, "width": 1},
                "marker": {"size": 9, "color": dark, "symbol": [_SYMBOLS[point.position] for point in shown]},
                "text": [f"{name}, {point.load}" for point in shown],
                "hovertemplate": "%{text}: %{x:,.4~g} tok/s/user, %{y:,.4~g} tok/s<extra></extra>",
            }
            data.append(chart.scatter("lines+markers", name, x, y, **look))
        axes = [chart.axis(title, rangemode="tozero") for title in ("tok/s/user", self.unit)]
        return chart.Picture(key, "Front", _MARKS, {"data": data, "layout": chart.layout(420, *axes)}, (OUTPUT.key,))

    @property
    def document(self) -> dict[str, Any]:
        return {"unit": self.unit, "points": [asdict(point) for point in self.points], "notes": self.notes}


def of_comparisons(comparisons: Sequence[Comparison]) -> Front | None:
    """Return the front of all sides of the comparisons, each with all its counted runs; None as `of_sides`."""
    if any(comparison.occasions is not None for comparison in comparisons):
        return None
    return of_sides([side for each in comparisons for side in (each.baseline, each.candidate)])


def of_sides(sides: Sequence[Side]) -> Front | None:
    """Return the front; None unless a side has several loads. Sides with wrong answers, or another workload, take no part."""
    runs_of = {side.label: _runs(side) for side in sides}
    first = next(chain(*runs_of.values()), None)
    if first is None:
        return None
    left_out, counted = [], {}
    for label, runs in runs_of.items():
        wrong = any(run.wrong for run in runs)
        if wrong or any(_workload(run) != _workload(first) for run in runs):
            reason = "wrong answers" if wrong else "another workload, cache arm or client"
            left_out.append(f"Left out: {label} ({reason})")
        else:
            counted[label] = _by_load(runs)
    if all(len(loads) < 2 for loads in counted.values()):
        return None
    gpus = {label: _gpus(runs_of[label]) for label in counted}
    unknown = ", ".join(label for label, count in gpus.items() if count is None)
    known = f"GPUs: {', '.join(f'{label} {count}' for label, count in gpus.items())}"
    note = f"Per server: GPUs of {unknown} not known or not the same in all runs (--gpus)" if unknown else known
    points = [
        point
        for label, loads in counted.items()
        for load, values in loads.items()
        if (point := _point(label, load, values, 1 if unknown else gpus[label] or 1)) is not None
    ]
    placed = tuple(replace(point, position=_position(point, points)) for point in points)
    return Front(placed, "tok/s/server" if unknown else "tok/s/GPU", (note, *left_out))


def _position(point: FrontPoint, points: Sequence[FrontPoint]) -> Position:
    others = [other for other in points if other is not point]
    if any(all(other.better(point)) for other in others):
        return "below the front"
    return "on the front" if all(any(point.better(other)) for other in others) else "not decided"


def _runs(side: Side) -> list[Run]:
    """Return the runs of the points of a side, those of a search in place of it, without invalid ones."""
    return [run for run in chain.from_iterable(run.points or (run,) for run in side.counted) if run.level != "invalid"]


def _workload(run: Run) -> Mapping[str, Any]:
    settings = {key: value for key, value in run.settings.items() if not key.startswith(LOAD_KEYS)}
    return settings | {"client": run.server.get("client"), "arm": run.arm, "clock": run.server.get("clock")}


def _by_load(runs: Sequence[Run]) -> dict[str, list[LoadFigures]]:
    found: dict[tuple[str, float], list[LoadFigures]] = {}
    for run in runs:
        alone = LoadFigures(run.concurrency, "requests", run.figures) if run.concurrency else None
        for level in run.loads or filter(None, [alone]):
            found.setdefault((level.unit, level.load), []).append(level)
    return {f"{short(load)} {unit}": found[unit, load] for unit, load in sorted(found)}


def _gpus(runs: Sequence[Run]) -> int | None:
    """Return the GPUs of all runs: of --gpus or the variant, else those of the exporters; None if unknown or not the same."""
    energies = [None if run.summary is None else run.summary.energy for run in runs]
    counts = {
        run.prices.gpus or (None if energy is None else energy.gpus) for run, energy in zip(runs, energies, strict=True)
    }
    return (counts.pop() or None) if len(counts) == 1 else None


def _point(side: str, load: str, repeats: Sequence[LoadFigures], gpus: int) -> FrontPoint | None:
    known = [(each.figures.get(TPOT_MEDIAN), each.figures.get(OUTPUT.key)) for each in repeats]
    values = [(1000 / tpot_ms, output / gpus) for tpot_ms, output in known if tpot_ms and output]
    if len(values) < len(known):
        return None
    user, output = map(_estimate, zip(*values, strict=True))
    return FrontPoint(side, load, len(values), user, output)


def _estimate(values: Sequence[float]) -> Estimate:
    over_runs = effect([1.0] * len(values), values)
    return Estimate(over_runs.ratio, over_runs.low, over_runs.high)


def _bars(estimates: Sequence[Estimate], colour: str) -> chart.PlotlyDict:
    bars = chart.error_bars([(each.mean, each.low, each.high) for each in estimates])
    return bars | {"color": colour, "thickness": 1}
