"""Chart of a search over the load: attainment, latency relative to its limit, throughput and goodput."""

from collections.abc import Sequence

from inferload.results.documents.search_document import Point, SearchDocument

from ..charts import chart
from ..charts.chart import BLUE, GREEN, GREY, ORANGE, RED, VIOLET, Picture, PlotlyDict

_NOTE = (
    "Bars: intervals at the error level of a run. Cross: turns in flight grew. Green: highest load that holds the "
    "SLO; red: lowest that breaks it. Dashed horizontal: SLO."
)
_COLOURS = (BLUE, ORANGE, GREEN, VIOLET, RED)
_SHARE, _FIGURES, _RATES = (chart.suffix(panel) for panel in range(3))
_TITLES = ("within limit, %", "of its limit, %", "turns/s")  # of the panels
_PANEL_PX, _LEGEND_PX, _TOP = 273, 62, 300.0  # the last: upper end of the axis, % of a limit

Estimate = tuple[float, float | None, float | None]  # value and ends of its interval


def picture(document: SearchDocument) -> Picture | None:
    """Return the chart of a search; None without a measured point."""
    points = [point for point in document.points if point.turns_per_s is not None]
    if not points:
        return None
    labels = list(dict.fromkeys(entry.label for point in points for entry in point.conditions))
    data = []
    for index, label in enumerate(labels):
        colour = _COLOURS[index % len(_COLOURS)]
        rows = [
            (point, entry) for point in points for entry in point.conditions if entry.label == label and entry.values
        ]
        shares = [(point.level, (entry.value or 0.0, entry.low, entry.high)) for point, entry in rows if entry.share]
        figures = [
            (point.level, (entry.figure, entry.figure_low, entry.figure_high))
            for point, entry in rows
            if entry.figure is not None
        ]
        data += _estimates(shares, 100.0, f"{label} within its limit", colour, _SHARE)
        data += _estimates(figures, 100 / rows[0][1].limit if rows else 0.0, label, colour, _FIGURES)
    rates = [(point.level, point.turns_per_s, point.goodput_turns_per_s) for point in points]
    data += _line([(level, rate) for level, rate, _ in rates], "successful", GREY, _RATES)
    data += _line([(level, rate) for level, _, rate in rates], "met every limit (goodput)", BLUE, _RATES)
    data += _overloaded(points)
    figure = {"data": data, "layout": _layout(document, points)}
    return Picture("curve", "Attainment and throughput by load", _NOTE, figure, ("turns per s", "goodput turns per s"))


def _estimates(
    found: Sequence[tuple[float, Estimate]], scale: float, name: str, colour: str, panel: str
) -> list[PlotlyDict]:
    """Return the line of estimates at a load with their intervals. `scale`: of the axis to the estimates."""
    bars = chart.error_bars([estimate for _, estimate in found], scale)
    bars |= {"color": colour, "thickness": 1.2, "width": 4}
    lines = _line([(level, scale * estimate[0]) for level, estimate in found], name, colour, panel)
    return [line | {"error_y": bars, "hovertemplate": "%{y:.4g} %"} for line in lines]


def _line(points: Sequence[tuple[float, float | None]], name: str, colour: str, panel: str) -> list[PlotlyDict]:
    """Return the line of the known points (load, value); none without any."""
    known = [(level, value) for level, value in points if value is not None]
    if not known:
        return []
    x, y = map(list, zip(*known, strict=True))
    look = {
        "line": {"color": colour, "width": 1.4},
        "marker": {"color": colour, "size": 7},
        "hovertemplate": "%{y:.4g}",
    }
    place = {"yaxis": f"y{panel}", "legend": f"legend{panel}"}
    return [chart.scatter("lines+markers", name, x, chart.numbers(y, 5), **look, **place)]


def _overloaded(points: Sequence[Point]) -> list[PlotlyDict]:
    """Return overloaded points, which have no value, as crosses at the failing edge of the first panel."""
    levels = [point.level for point in points if point.verdict == "overloaded"]
    look = {"marker": {"color": RED, "symbol": "x", "size": 10}, "hovertemplate": "turns in flight grew"}
    crosses = chart.scatter("markers", "overloaded", levels, [0.0] * len(levels), yaxis="y", cliponaxis=False, **look)
    return [crosses] if levels else []


def _layout(document: SearchDocument, points: Sequence[Point]) -> PlotlyDict:
    axes = [chart.axis(title, rangemode="tozero") for title in _TITLES]
    axes[1]["range"] = [0, _TOP]
    plan = chart.stacked(chart.axis(document.unit, type="log", **_ticks(points)), axes, _PANEL_PX, _LEGEND_PX)
    shares = {entry.share for point in document.points for entry in point.conditions if entry.share is not None}
    plan["shapes"] = [
        chart.across(at, panel, GREY)
        for panel, at in ((_FIGURES, 100.0), *((_SHARE, 100 * share) for share in sorted(shares)))
    ]
    answer = document.answer
    for level, colour in () if answer is None else ((answer.holds, GREEN), (answer.breaks, RED)):
        if level is not None:  # not through the legends between the panels
            line = chart.instant_line(level) | {"line": {"color": colour, "width": 1.4}}
            plan["shapes"] += [line | {"yref": f"y{panel} domain"} for panel in (_SHARE, _FIGURES, _RATES)]
    return plan


def _ticks(points: Sequence[Point]) -> PlotlyDict:
    """Select tested loads whose labels do not overlap."""
    levels: list[float] = []
    for level in sorted(point.level for point in points):
        if not levels or level / levels[-1] > 1.12:
            levels.append(level)
    return {"tickvals": levels, "ticktext": [f"{level:.3g}" for level in levels]}
