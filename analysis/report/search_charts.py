"""Chart of a search over the load: attainment, latency relative to its limit, throughput and goodput."""

from collections.abc import Sequence

from inferload.results.documents.search_document import ConditionResult, Point, SearchDocument

from ..charts.chart import BLUE, GREEN, GREY, ORANGE, RED, VIOLET, Picture, PlotlyDict

_NOTE = (
    "Bars: intervals at the error level of a run. Cross: turns in flight grew. Green: highest load that holds the "
    "SLO; red: lowest that breaks it. Dashed horizontal: SLO."
)
_COLOURS = (BLUE, ORANGE, GREEN, VIOLET, RED)
_SHARE, _FIGURES, _RATES = "", "2", "3"  # panels by axis suffix
_PANELS = {_SHARE: "within limit, %", _FIGURES: "of its limit, %", _RATES: "turns/s"}
_PANEL_PX, _TOP = 273, 300.0  # upper end of the axis, % of a limit


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
        data += [trace for trace in (_attainment(rows, label, colour), _figures(rows, label, colour)) if trace["x"]]
    data += _throughput(points)
    data += _overloaded(points)
    figure = {"data": data, "layout": _layout(document, points)}
    terms = ("turns per s", "goodput turns per s")
    return Picture("curve", "Attainment and throughput by load", _NOTE, figure, terms)


Rows = list[tuple[Point, ConditionResult]]


def _attainment(rows: Rows, label: str, colour: str) -> PlotlyDict:
    values = [(point.level, _times((entry.value, entry.low, entry.high), 100)) for point, entry in rows if entry.share]
    return _trace(values, f"{label} within its limit", colour, "")


def _figures(rows: Rows, label: str, colour: str) -> PlotlyDict:
    values = [
        (point.level, _times((entry.figure, entry.figure_low, entry.figure_high), 100 / entry.limit))
        for point, entry in rows
        if entry.figure is not None
    ]
    return _trace(values, label, colour, "2")


def _trace(values: list[tuple[float, list[float | None]]], label: str, colour: str, axis: str) -> PlotlyDict:
    """Return a trace of points (load, [value, low, high]) with intervals; unknown ends are not drawn."""
    middles = [_or(three[0], 0.0) for _, three in values]
    lows = [middle - _or(three[1], middle) for (_, three), middle in zip(values, middles, strict=True)]
    highs = [_or(three[2], middle) - middle for (_, three), middle in zip(values, middles, strict=True)]
    bars = {
        "type": "data",
        "symmetric": False,
        "array": [_tidy(max(0.0, high)) for high in highs],
        "arrayminus": [_tidy(max(0.0, low)) for low in lows],
        "color": colour,
        "thickness": 1.2,
        "width": 4,
    }
    points = [(level, middle) for (level, _), middle in zip(values, middles, strict=True)]
    return _line(points, label, colour, axis) | {"error_y": bars, "hovertemplate": "%{y:.4g} %"}


def _line(points: list[tuple[float, float]], name: str, colour: str, axis: str) -> PlotlyDict:
    """Return a trace of points (load, value)."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [level for level, _ in points],
        "y": [_tidy(value) for _, value in points],
        "line": {"color": colour, "width": 1.4},
        "marker": {"color": colour, "size": 7},
        "xaxis": "x",
        "yaxis": f"y{axis}",
        "legend": f"legend{axis}",
        "hovertemplate": "%{y:.4g}",
    }


def _throughput(points: list[Point]) -> list[PlotlyDict]:
    traces = []
    for name, colour, rates in (
        ("successful", GREY, [point.turns_per_s for point in points]),
        ("met every limit (goodput)", BLUE, [point.goodput_turns_per_s for point in points]),
    ):
        known = [(point.level, rate) for point, rate in zip(points, rates, strict=True) if rate is not None]
        if known:
            traces.append(_line(known, name, colour, _RATES))
    return traces


def _overloaded(points: list[Point]) -> list[PlotlyDict]:
    """Return overloaded points, which have no value, as crosses at the failing edge of the first panel."""
    levels = [point.level for point in points if point.verdict == "overloaded"]
    if not levels:
        return []
    marker = {"color": RED, "symbol": "x", "size": 10}
    axes = {"xaxis": "x", "yaxis": "y", "legend": "legend", "cliponaxis": False}
    axes |= {"hovertemplate": "turns in flight grew"}
    data = {"x": levels, "y": [0.0] * len(levels), "marker": marker}
    return [{"type": "scatter", "mode": "markers", "name": "overloaded", **data, **axes}]


def _layout(document: SearchDocument, points: list[Point]) -> PlotlyDict:
    gap = 0.225 / len(_PANELS)
    height = (1 - gap * len(_PANELS)) / len(_PANELS)
    layout: PlotlyDict = {
        "height": 1 + _PANEL_PX * len(_PANELS),
        "margin": {"l": 58, "r": 14, "t": 30, "b": 46},
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "xaxis": {"title": {"text": document.unit}, "type": "log", "anchor": "y3", **_ticks(points)},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": BLUE},
    }
    for number, (name, title) in enumerate(_PANELS.items()):
        top = 1 - number * (height + gap) - gap
        axis = {"domain": [max(0.0, top - height), top], "title": {"text": title, "standoff": 6}, "rangemode": "tozero"}
        layout[f"yaxis{name}"] = axis
        layout[f"legend{name}"] = {"orientation": "h", "x": 1, "xanchor": "right", "y": top, "yanchor": "bottom"}
    layout["yaxis2"]["range"] = [0, _TOP]
    layout["shapes"] = _lines(document)
    return layout


def _ticks(points: list[Point]) -> PlotlyDict:
    """Select tested loads whose labels do not overlap."""
    levels: list[float] = []
    for level in sorted(point.level for point in points):
        if not levels or level / levels[-1] > 1.12:
            levels.append(level)
    return {"tickvals": levels, "ticktext": [f"{level:.3g}" for level in levels]}


def _lines(document: SearchDocument) -> list[PlotlyDict]:
    shares = {entry.share for point in document.points for entry in point.conditions if entry.share is not None}
    shapes = [_across("y2", 100.0), *(_across("y", 100 * share) for share in sorted(shares))]
    answer = document.answer
    for level, colour in () if answer is None else ((answer.holds, GREEN), (answer.breaks, RED)):
        for panel in _PANELS if level is not None else ():  # not through the legends between them
            ends = {"xref": "x", "yref": f"y{panel} domain", "x0": level, "x1": level, "y0": 0, "y1": 1}
            shapes.append({"type": "line", **ends, "line": {"color": colour, "width": 1.4, "dash": "solid"}})
    return shapes


def _across(axis: str, at: float) -> PlotlyDict:
    line = {"color": GREY, "width": 1.2, "dash": "dash"}
    return {"type": "line", "xref": "paper", "yref": axis, "x0": 0, "x1": 1, "y0": at, "y1": at, "line": line}


def _times(values: Sequence[float | None], by: float) -> list[float | None]:
    return [None if value is None else value * by for value in values]


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


def _tidy(value: float) -> float:
    return float(f"{value:.5g}")
