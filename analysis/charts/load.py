"""Chart of throughput against latency, with the limits of the SLO.

A curve is a configuration at several loads: steps of a run, points of a search, or runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from inferload.figures.rate_figures import OUTPUT
from inferload.figures.turn_figures import ITL, TPOT, TTFT
from inferload.results.documents.figures_document import Step
from inferload.results.documents.summary_document import Results
from inferload.results.latency_limits import latency_limits
from inferload.results.tables.cells import step_level

from ..data.figures import value_of
from . import chart

KEY = "load"
_AXES = {TTFT.key: "", ITL.key: "2", TPOT.key: "2"}  # panels of the limits of an SLO
THROUGHPUT, TPOT_MEDIAN = OUTPUT.key, f"p50({TPOT.key})"  # the latter: of the front
_PANELS = tuple(
    (figure.title, f"p50({figure.key})", f"p95({figure.key})", axis) for figure, axis in ((TTFT, ""), (ITL, "2"))
)
FIGURES = (THROUGHPUT, *(name for panel in _PANELS for name in panel[1:3]))

_ALONE = ((chart.BLUE, chart.PALE_BLUE), (chart.ORANGE, chart.PALE_ORANGE))  # colours of the panels for a single curve
COLOURS = (
    *_ALONE, (chart.GREEN, chart.PALE_GREEN), (chart.VIOLET, chart.PALE_VIOLET),
    (chart.TEAL, chart.PALE_TEAL), (chart.RED, chart.PALE_RED),
)  # fmt: skip
_SPREAD = 20.0  # ratio of highest to lowest value from which an axis is logarithmic
_PANEL_PX, _LEGEND_PX = 258, 42


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """Figures (by gate name) at a load. `load`: None if it is not a single number."""

    name: str
    load: float | None
    figures: Mapping[str, float | None]

    def has(self, figure: str) -> bool:
        """Return True if a figure and the throughput are known."""
        return None not in (self.figures.get(THROUGHPUT), self.figures.get(figure))


@dataclass(frozen=True, slots=True)
class Curve:
    """Configuration at several loads. `unit`: of the load."""

    label: str
    unit: str
    points: tuple[LoadPoint, ...]


def of_steps(steps: Sequence[Step]) -> Curve:
    """Return the curve of the steps of a run, from summary.json."""
    unit = "users" if any(step.users is not None for step in steps) else "sessions/s"
    points = []
    for step in steps:
        load = step.sessions_per_s if step.users is None else step.users
        name = str(step.step) if load is None else step_level(step.users, step.sessions_per_s)
        figures = {figure: value_of(figure, Results.of_part(step)) for figure in FIGURES}
        points.append(LoadPoint(name, None if load is None else float(load), figures))
    return Curve("", unit, tuple(sorted(points, key=lambda point: (point.load is None, point.load or 0.0))))


def picture(curves: Sequence[Curve], slo: Mapping[str, float], point: str = "step") -> chart.Picture | None:
    """Return the chart of all curves; None if fewer than two points are known. `point`: name of a point in the note."""
    data = [trace for index, curve in enumerate(curves) for trace in _lines(curve, index, len(curves))]
    shown = {name for trace in data for name in trace["text"]}
    if len(shown) < 2:
        return None
    axes, drawn, limits = [], chart.Limits(), latency_limits({"": slo}, ())
    for title, _, _, panel in _PANELS:
        values = [value for trace in data if trace["yaxis"] == f"y{panel}" for value in trace["y"] if value]
        own = [limit for limit in limits if _AXES.get(limit.measure) == panel] if values else []
        near = drawn.add(own, max(values, default=0.0), panel)
        axes.append(chart.axis(f"{title}, ms") | _scale(values, near))
    throughput = chart.axis("output tok/s", rangemode="tozero")
    plan = chart.stacked(throughput, axes, _PANEL_PX, _LEGEND_PX) | {"hovermode": "closest"}
    plan |= {"shapes": drawn.shapes, "annotations": drawn.edges}
    note = f"One point per {point}." + (" Dark: p95, light: p50." if len(curves) > 1 else "") + _left_out(curves)
    terms = (OUTPUT.key, TTFT.key, ITL.key)
    return chart.Picture(KEY, "Throughput against latency", note + drawn.note, {"data": data, "layout": plan}, terms)


def _lines(curve: Curve, index: int, count: int) -> Iterator[chart.PlotlyDict]:
    """Yield the lines of p95 and p50 in both panels, without points with an unknown coordinate."""
    named = False
    for panel, (title_of, *percentiles, axis) in enumerate(_PANELS):
        dark, pale = COLOURS[index % len(COLOURS)] if count > 1 else _ALONE[panel]
        for figure, colour in zip(reversed(percentiles), (dark, pale), strict=True):
            known = [point for point in curve.points if point.has(figure)]
            if not known:
                continue
            statistic = figure.partition("(")[0]
            single = {"name": f"{title_of} {statistic}", "legend": f"legend{axis}", "showlegend": True}
            several = {"name": curve.label, "legendgroup": curve.label, "legend": "legend", "showlegend": not named}
            named = True
            x, y = (chart.numbers([point.figures[name] or 0.0 for point in known]) for name in (THROUGHPUT, figure))
            yield (single if count == 1 else several) | {
                "type": "scatter",
                "mode": "lines+markers",
                "x": x,
                "y": y,
                "text": [point.name if count == 1 else f"{curve.label}, {point.name}" for point in known],
                "line": {"color": colour, "width": 1.8},
                "marker": {"size": 7, "color": colour},
                "yaxis": f"y{axis}",
                "hovertemplate": f"%{{text}}: %{{x:,.4~g}} tok/s, {statistic} %{{y:,.4~g}} ms<extra></extra>",
            }


def _left_out(curves: Sequence[Curve]) -> str:
    """Name the points of each line that are not drawn; empty if all are."""
    missing: dict[str, list[str]] = {}
    for curve in curves:
        for point in curve.points:
            for title_of, *percentiles, _ in _PANELS:
                for figure in percentiles:
                    if not point.has(figure):
                        name = f"{title_of} {figure.partition('(')[0]}"
                        missing.setdefault(name, []).append(", ".join(filter(None, (curve.label, point.name))))
    count = sum(len(curve.points) for curve in curves)
    texts = [f"{of} ({'all points' if len(names) == count else '; '.join(names)})" for of, names in missing.items()]
    return f" Not drawn, too few samples or not measured: {', '.join(texts)}." if texts else ""


def _scale(values: Sequence[float], limits: Sequence[float]) -> chart.PlotlyDict:
    if values and max(values) > _SPREAD * min(values):
        return chart.decades(min(*values, *limits), max(*values, *limits))
    return {"rangemode": "tozero"}
