"""HTML page of several configurations: comparisons, tables, throughput against latency."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from inferload.base import rundir
from inferload.base.numbers import short
from inferload.results.open_run import OpenRun

from ...charts import load, sides_over_time
from ...charts.chart import Picture
from ...charts.load import FIGURES, Curve, LoadPoint
from ...charts.sides_over_time import COLOURS, SideTimeline
from ...data import frames, timeline
from ...data import ran as of_load
from ...data.partial_run import Notes
from ...pages import shell
from ...pages.texts import Name, tr
from ..arms import between_arms
from ..best import best_by_goal
from ..compare import Comparison, table_rows
from ..sides import LoadFigures, Run, Side, TableRow, mean_over_runs
from . import text


@dataclass(frozen=True, slots=True)
class Part:
    """Scenario with its configurations as rows of the tables. `curves`: sides of the chart, if not those of the rows.

    `arms`: comparisons of warm with cold runs of a configuration.

    `links`: (name of a run, relative path of its page). `timelines`: of a run of each side.
    """

    name: str
    rows: tuple[TableRow, ...]
    comparisons: tuple[Comparison, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    curves: tuple[Side, ...] = ()
    arms: tuple[Comparison, ...] = ()
    timelines: tuple[SideTimeline, ...] = ()

    @property
    def loads(self) -> list[tuple[str, str]]:
        """Load that ran, in one line for each load; empty for results of other clients."""
        known = [run.ran for side in self.sides for run in side.counted if run.ran is not None]
        return of_load.lines({self.name: known}) if known else []

    @property
    def sides(self) -> tuple[Side, ...]:
        return tuple(side for side, _ in self.rows)


def html(title: str, verdict: str, parts: Sequence[Part]) -> str:
    """Render the page. `verdict`: its first line."""
    shown, drawn = [], []
    for index, part in enumerate(parts):
        contents = text.contents(part.rows, part.comparisons, part.arms)
        pictures = _pictures(part, f"load-{index}")
        pictures += [] if contents.front is None else [contents.front.picture(f"front-{index}")]
        drawn += pictures
        over_time = [replace(each, key=f"time-{index}") for each in [sides_over_time.picture(part.timelines)] if each]
        drawn += over_time
        shown.append({"part": part, "pictures": pictures, "over_time": over_time, **contents._asdict()})
    simulated = any(entry["simulated"] for entry in shown)
    return shell.html("comparison.html.j2", drawn, title=title, verdict=verdict, shown=shown, simulated=simulated)


def _pictures(part: Part, key: str) -> list[Picture]:
    curves = [curve(side) for side in part.curves or part.sides]
    curves = curves if len(curves) > 1 else [replace(curves[0], label="")]
    if part.timelines and all(len(each.points) < 2 for each in curves):  # the tables have each point
        return []
    chart = load.picture(curves, part.sides[0].runs[0].slo, "load, mean over runs")
    return [] if chart is None else [replace(chart, key=key)]


def curve(side: Side) -> Curve:
    """Return the curve over the loads of a side's counted runs or their steps; repeats of a load are averaged."""
    by_load: dict[tuple[str, float], list[LoadFigures]] = {}
    points = []
    for run in side.counted:
        for level in run.loads:
            by_load.setdefault((level.unit, level.load), []).append(level)
        if not run.loads:
            points.append(LoadPoint(run.label, None, run.figures))
    units = {unit for unit, _ in by_load}
    for (unit, value), repeats in sorted(by_load.items()):
        figures = {name: mean_over_runs([repeat.figures.get(name) for repeat in repeats]) for name in FIGURES}
        points.append(LoadPoint(f"{short(value)} {unit}", value if len(units) == 1 else None, figures))
    return Curve(side.label, min(units, default=""), tuple(points))


def of_comparisons(comparisons: Sequence[Comparison]) -> str:
    """Render the page of `inferload compare --write`."""
    scenario = comparisons[0].baseline.runs[0].scenario or "runs"
    part = Part(
        scenario,
        tuple(table_rows(comparisons)),
        tuple(comparisons),
        arms=tuple(between_arms(comparisons)),
        timelines=tuple(_timelines(comparisons)),
    )
    return html(f"{scenario}: comparison", summary_line(comparisons), [part])


def _timelines(comparisons: Sequence[Comparison]) -> Iterator[SideTimeline]:
    """Yield the timeline of a run of each side, of the first pair if there is one; none of classes, or of other clients."""
    runs: dict[str, Run] = {}
    for comparison in comparisons:
        sides = comparison.baseline, comparison.candidate
        first = comparison.pairs[0] if comparison.pairs else tuple(side.counted[0] for side in sides)
        for side, run in zip(sides, first, strict=True):
            runs.setdefault(side.heading, run)
        if comparison.class_name:
            return
    for label, run in [*runs.items()][: len(COLOURS)]:
        found = Notes().unless_damaged("the timeline", partial(_timeline, label, run))
        if found is not None:
            yield found


def _timeline(label: str, run: Run) -> SideTimeline | None:
    """Return the timeline of a run; None without a run directory or a measure phase."""
    if not (run.path / rundir.MANIFEST).is_file():
        return None
    opened = frames.load(OpenRun(run.path))
    span = next((each for each in opened.phases if each.phase == "measure"), None)
    if span is None:
        return None
    end_s = opened.end_s if span.end_s is None else span.end_s
    return SideTimeline(label, run.label, timeline.build(opened), span.start_s, end_s, opened.notes)


def summary_line(comparisons: Sequence[Comparison]) -> Name:
    """Return the headline of a single comparison, else the verdict on each candidate; before it that no side is left."""
    each = text.spoken if len(comparisons) == 1 else text.brief
    return Name(tr("; ").join([*map(tr, text.none_left(best_by_goal(comparisons))), *map(each, comparisons)]))
