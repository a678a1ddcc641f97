"""Chart of the timelines of several sides in the same panels. The common time is that since the start of each measure phase."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from inferload.figures.servers.server_figures import GENERATION_RATE, RUNNING, SERVER_FIGURES

from ..data.frame import Frame
from . import chart, over_time
from .load import COLOURS as PAIRS
from .over_time import DrawnLine, Panel

KEY = "sides-over-time"
COLOURS = tuple(dark for dark, _ in PAIRS)
_PANEL_PX, _HEADING_PX = 138, 26
_MOST_POINTS = 2000  # of a line
_SPREAD = 20.0  # ratio of the values of two sides from which a latency has a logarithmic axis
_LOOKS = (("solid", 1.8), ("dot", 1.4))  # dash and width of the lines of a panel
# Lines beside a like one, and those that explain no difference in what users see.
_LEFT_OUT = {"users", GENERATION_RATE.key, RUNNING.key, *(row.key for row in SERVER_FIGURES if not row.headline)}


@dataclass(frozen=True, slots=True)
class SideTimeline:
    """Timeline of a run of a side. `start_s`, `end_s`: of its measure phase. `notes`: data that is missing, or from a sample."""

    label: str
    run: str
    timeline: Frame
    start_s: float
    end_s: float
    notes: tuple[str, ...] = ()

    def has(self, column: str, least: float = 0.0) -> bool:
        return bool((self.timeline.numbers(column) >= least).any())


def picture(sides: Sequence[SideTimeline]) -> chart.Picture | None:
    """Return the chart of the panels that at least two sides have, None without any; as many sides as COLOURS at most."""
    shown = [panel for panel in (_reduced(each, sides) for each in over_time.panels()) if panel.lines]
    if not shown:
        return None
    every = -(-max(len(side.timeline) for side in sides) // _MOST_POINTS)
    ends_s = [len(side.timeline) - side.start_s for side in sides]
    times = chart.axis(
        "time since the start of each measure phase, s", range=[-max(s.start_s for s in sides), max(ends_s)]
    )
    data = [_entry(side.label, colour) for side, colour in zip(sides, COLOURS, strict=False)]
    axes = []
    for number, panel in enumerate(shown):
        traces = [
            _trace(side, panel, position, colour, every) | {"yaxis": f"y{chart.suffix(number)}"}
            for side, colour in zip(sides, COLOURS, strict=False)
            for position in range(len(panel.lines))
        ]
        data += traces
        axes.append({"nticks": 5} | _scale(panel, traces))
    plan = chart.stacked(times, axes, _PANEL_PX, _HEADING_PX) | {"legend": chart.LEGEND}  # one of all panels
    tops = [plan[f"yaxis{chart.suffix(number)}"]["domain"][1] for number in range(len(shown))]
    plan["annotations"] = [_heading(panel, top) for panel, top in zip(shown, tops, strict=True)]
    plan["shapes"] = _shapes(sides, max(ends_s))
    runs = "; ".join(f"{side.label}: {side.run}" for side in sides if side.run != side.label)
    note = f"{over_time.one_value_per(every)} Shaded: outside the measure phases."
    note += f" Of one run a side: {runs}." if runs else ""
    note += "".join(f" {side.label}: {each}." for side in sides for each in side.notes)
    measured = tuple(panel.measure for panel in shown if panel.measure)
    return chart.Picture(KEY, "Timelines", note, {"data": data, "layout": plan}, measured)


def _reduced(panel: Panel, sides: Sequence[SideTimeline]) -> Panel:
    """Return a panel with the lines that at least two sides have, two at most; without lines if all values are 0."""
    lines = [line for line in panel.lines if line.column not in _LEFT_OUT]
    lines = [line for line in lines if sum(side.has(line.column) for side in sides) > 1]
    above_0 = any(side.has(line.column, np.nextafter(0, 1)) for side in sides for line in lines)
    return replace(panel, lines=tuple(lines[: len(_LOOKS)]) if above_0 else ())


def _entry(label: str, colour: str) -> chart.PlotlyDict:
    """Return the entry of a side in the legend, which shows and hides all its lines."""
    return chart.scatter("lines", label, [None], [None], legendgroup=label, line={"color": colour, "width": 3})


def _trace(side: SideTimeline, panel: Panel, position: int, colour: str, every: int) -> chart.PlotlyDict:
    line, (dash, width) = replace(panel.lines[position], colour=colour), _LOOKS[position]
    values = over_time.grouped(line.column, side.timeline.numbers(line.column), every) * (100 if line.share else 1)
    drawn = over_time.trace(DrawnLine(line, line.label, dash, chart.numbers(values)))
    return drawn | {
        "mode": "lines+markers",  # a line shows no value without a neighbour
        "marker": {"color": colour, "size": 3},
        "legendgroup": side.label,
        "showlegend": False,
        "x0": round(every / 2 - side.start_s, 3),
        "dx": every,
        "line": drawn["line"] | {"width": width},
        "hovertemplate": f"{side.label}: %{{y}}",
    }


def _scale(panel: Panel, traces: Sequence[chart.PlotlyDict]) -> chart.PlotlyDict:
    """Return the range of a panel: logarithmic for a latency whose sides are far apart, since the lower one would be flat."""
    known = [[value for value in trace["y"] if value] for trace in traces if any(trace["y"])]
    middles = [float(np.median(values)) for values in known]
    if panel.measure and max(middles) > _SPREAD * min(middles):
        return chart.decades(min(map(min, known)), max(map(max, known)), is_small=True)
    return {"rangemode": "tozero"}


def _heading(panel: Panel, top: float) -> chart.PlotlyDict:
    names = ", ".join(f"{look}: {line.label}" for look, line in zip(("solid", "dotted"), panel.lines, strict=False))
    title = f"{panel.title[0].upper()}{panel.title[1:]}"
    return {
        "text": f"{title} ({names})" if len(panel.lines) > 1 else title,
        "xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": top, "yanchor": "bottom", "showarrow": False,
    }  # fmt: skip


def _shapes(sides: Sequence[SideTimeline], last_s: float) -> list[chart.PlotlyDict]:
    """Return shaded areas outside all measure phases, and the end of each measure phase if they differ."""
    lengths = [side.end_s - side.start_s for side in sides]
    spans = ((-max(side.start_s for side in sides), 0.0), (max(lengths), last_s))
    shapes = chart.shades(spans)
    if max(lengths) - min(lengths) > 1:
        looks = [{"color": colour, "width": 1, "dash": "dash"} for colour in COLOURS]
        shapes += [chart.instant_line(end_s) | {"line": look} for end_s, look in zip(lengths, looks, strict=False)]
    return shapes
