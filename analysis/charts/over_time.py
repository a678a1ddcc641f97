"""Chart of the timeline: panels of client and server figures on a common time axis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from inferload.base.rundir import Mark
from inferload.figures.servers.server_figure import ServerFigure
from inferload.figures.servers.server_figures import GENERATION_RATE, SERVER_FIGURES
from inferload.figures.turn_figures import HEADLINES
from inferload.results.latency_limits import LatencyLimit

from ..data.frame import Column, Frame, known
from ..data.frames import PhaseSpan
from ..data.timeline import LOG, server_suffixes
from . import chart

_PANEL_PX, _LEGEND_PX = 132, 38  # height of a panel with its legend, and of its legend
_MAX_POINTS = 4000
_MIN_LABEL_SHARE = 0.08  # minimum share of the width of a phase with a centred label
_DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True, slots=True)
class PanelLine:
    """Line of a panel: a column of the timeline. `server`: a line for each server; `share`: in percent."""

    column: str
    label: str
    colour: str
    server: bool = False
    share: bool = False
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """Panel with its own y axis. `measure`: whose limits it shows."""

    title: str
    lines: tuple[PanelLine, ...]
    measure: str = ""


def _percentiles(column: str) -> tuple[PanelLine, ...]:
    looks = (("p50", chart.BLUE), ("p95", chart.PALE_BLUE))
    return tuple(PanelLine(f"{column}_{name}", name, colour) for name, colour in looks)


# Panels of clients. Figures of servers with the same heading are added to them.
_OF_CLIENTS = (
    Panel(
        "Locust, per s",
        (
            PanelLine("locust_requests_per_s", "requests", chart.BLUE),
            PanelLine("locust_failures_per_s", "failures", chart.RED),
        ),
    ),
    Panel("Locust response, ms", _percentiles("locust_response_ms")),
    *(Panel(each.panel, _percentiles(each.key), each.key) for each in HEADLINES if each.panel is not None),
    Panel("output, tok/s", (PanelLine("output_tok", "client", chart.BLUE),)),
    Panel("servers of the load", (PanelLine("targets", "servers", chart.GREY, steps=True),)),
    Panel(
        "requests",
        (PanelLine("in_flight", "in flight", chart.BLUE), PanelLine("users", "users", chart.GREY, steps=True)),
    ),
)
_SERVER_COLOURS = (chart.ORANGE, chart.GREEN, chart.TEAL, chart.VIOLET, chart.PALE_ORANGE)


def panels() -> tuple[Panel, ...]:
    """Return all panels: those of clients, with figures of servers, and then those of servers alone."""
    by_title = {panel.title: panel for panel in _OF_CLIENTS}
    for row in SERVER_FIGURES:
        if row.panel is not None:
            panel = by_title.setdefault(row.panel, Panel(row.panel, ()))
            by_title[row.panel] = replace(panel, lines=(*panel.lines, _server_line(row, panel)))
    return tuple(by_title.values())


def _server_line(row: ServerFigure, panel: Panel) -> PanelLine:
    """Return the line of a server's figure: red if high values are bad, otherwise the next colour of the panel."""
    beside = sum(line.server and line.colour != chart.RED for line in panel.lines)
    colour = chart.RED if row.better == "lower" else _SERVER_COLOURS[beside % len(_SERVER_COLOURS)]
    return PanelLine(row.key, row.label, colour, True, row.form == "share", row.form == "count")


def picture(
    timeline: Frame,
    targets: tuple[str, ...],
    phases: tuple[PhaseSpan, ...],
    marks: Sequence[Mark],
    limits: Sequence[LatencyLimit] = (),
) -> chart.Picture | None:
    """Return the chart of all panels and lines with values; None without any."""
    suffixes = server_suffixes(targets)
    if any(column.endswith(LOG) for column in timeline):
        suffixes |= {LOG: LOG}
    every = max(1, -(-len(timeline) // _MAX_POINTS))
    thinned = _thinned(timeline, every)
    shown = [(panel, lines) for panel in panels() if (lines := _lines(thinned, panel, suffixes))]
    if not shown:
        return None
    times = chart.axis("time since the start of the run, s", range=[0, len(timeline)])
    data: list[chart.PlotlyDict] = []
    axes: list[chart.PlotlyDict] = []
    drawn = chart.Limits()
    for number, (panel, lines) in enumerate(shown):
        name = chart.suffix(number)
        most = max((value for line in lines for value in line.values if value is not None), default=0.0)
        near = drawn.add([limit for limit in limits if limit.measure == panel.measure], most, name)
        axes.append(chart.axis(panel.title, rangemode="tozero"))
        axes[-1] |= {"range": [0, 1.08 * max(most, *near)]} if near else {}
        data += [trace(line, name) | {"x0": every / 2, "dx": every} for line in lines]
    plan = chart.stacked(times, axes, _PANEL_PX, _LEGEND_PX)
    plan["shapes"] = [*_shades(phases, len(timeline)), *(chart.instant_line(mark.t_s) for mark in marks), *drawn.shapes]
    plan["annotations"] = [label for span in phases if (label := _phase_label(span, len(timeline)))] + drawn.edges
    note = f"{one_value_per(every)} Shaded: outside the measure phase."
    note += " Dotted lines: events, listed below." if marks else ""
    note += (" Dashed: limits of SLO and gates." if drawn.shapes else "") + drawn.note
    terms = (
        *(panel.measure for panel in _OF_CLIENTS if panel.measure),
        *(row.key for row in SERVER_FIGURES if row.headline and row.panel is not None),
    )
    return chart.Picture("over-time", "Timeline", note, {"data": data, "layout": plan}, terms)


def one_value_per(every: int) -> str:
    """Return the sentence on the seconds that a value is of."""
    return f"One value per {'1 s' if every == 1 else f'{every} s (means, p95: maximum)'}."


def _thinned(timeline: Frame, every: int) -> Frame:
    """Aggregate `every` seconds: means, and the maximum of p95 to keep spikes."""
    if every == 1:
        return timeline
    return Frame({name: grouped(name, column, every) for name, column in timeline.items() if column.dtype != object})


def grouped(name: str, column: Column, every: int) -> Column:
    groups = np.pad(column.astype(np.float64), (0, -len(column) % every), constant_values=np.nan).reshape(-1, every)
    if name.partition("@")[0].endswith("_p95"):
        return np.asarray(np.fmax.reduce(groups, axis=1))
    counts = known(groups).sum(axis=1)
    return np.asarray(np.divide(np.nansum(groups, axis=1), counts, out=np.full(len(groups), np.nan), where=counts > 0))


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """Line of a panel with its values."""

    line: PanelLine
    name: str
    dash: str
    values: list[float | None]

    @property
    def joined(self) -> bool:
        """True if two consecutive values are known; isolated values are drawn as markers."""
        return any(a is not None and b is not None for a, b in pairwise(self.values))


def _lines(timeline: Frame, panel: Panel, suffixes: Mapping[str, str]) -> list[DrawnLine]:
    series = []
    for line in panel.lines:
        for index, suffix in enumerate(suffixes.values() if line.server else ("",)):
            column = line.column + suffix
            if column not in timeline or not known(timeline[column]).any():
                continue
            counts = line.steps or line.column == GENERATION_RATE.key
            if line.server and counts and not (timeline[column] > 0).any():  # a count of events without one
                continue
            values = timeline[column] * (100 if line.share else 1)
            dash = _DASHES[index % len(_DASHES)]
            series.append(DrawnLine(line, f"{line.label} {suffix}".strip(), dash, chart.numbers(values, 5)))
    return series


def trace(drawn: DrawnLine, axis: str = "") -> chart.PlotlyDict:
    shape = "hvh" if drawn.line.steps else "linear"
    return {
        "type": "scatter",
        "mode": "lines" if drawn.joined else "markers",
        "name": drawn.name,
        "y": drawn.values,
        "line": {"color": drawn.line.colour, "width": 1.6, "dash": drawn.dash, "shape": shape},
        "marker": {"color": drawn.line.colour, "size": 4},
        "xaxis": "x",
        "yaxis": f"y{axis}",
        "legend": f"legend{axis}",
        "hovertemplate": "%{y}",
    }


def _shades(phases: Sequence[PhaseSpan], seconds: int) -> list[chart.PlotlyDict]:
    """Return shaded areas outside the measure phase; none without a measure phase."""
    measured = next((span for span in phases if span.phase == "measure"), None)
    if measured is None:
        return []
    end_s = seconds if measured.end_s is None else measured.end_s
    return chart.shades([(0.0, measured.start_s), (end_s, float(seconds))])


def _phase_label(span: PhaseSpan, seconds: int) -> chart.PlotlyDict | None:
    """Return the label above the middle of a phase; of a short one at an end of the chart there, of other short ones none."""
    end_s = seconds if span.end_s is None else min(span.end_s, seconds)
    at_s, anchor = (span.start_s + end_s) / 2, "center"
    if end_s - span.start_s < _MIN_LABEL_SHARE * seconds:
        if span.start_s < _MIN_LABEL_SHARE * seconds:
            at_s, anchor = span.start_s, "left"
        elif end_s > (1 - _MIN_LABEL_SHARE) * seconds:
            at_s, anchor = float(seconds), "right"
        else:
            return None
    position = {"xref": "x", "yref": "paper", "x": round(at_s, 3), "y": 1, "xanchor": anchor, "yanchor": "bottom"}
    return position | {"text": span.phase, "showarrow": False, "font": {"size": 11, "color": chart.GREY}}
