"""The picture of a run: client and server stacked on one time axis. A plain description that plotly.js draws."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from .frames import PhaseSpan
from .timeline import server_suffixes

Figure = dict[str, Any]

_GAP = 0.055  # of the picture's height, between two panels: room for a panel's legend
_BLUE, _PALE_BLUE, _ORANGE, _PALE_ORANGE, _RED, _GREEN, _GREY = (
    "#2f78c4", "#8ab6e8", "#d9772b", "#efb07f", "#c8423b", "#2f9468", "#8a8f98",
)  # fmt: skip
_DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True, slots=True)
class Line:
    """One series: a column of the timeline (of each server, where `server`) and how it is drawn. Shares become percent."""

    column: str
    label: str
    colour: str
    server: bool = False
    share: bool = False
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One axis with its lines."""

    title: str
    lines: tuple[Line, ...]


PANELS = (
    Panel("TTFT, ms", (Line("ttft_ms_p50", "p50", _BLUE), Line("ttft_ms_p95", "p95", _PALE_BLUE))),
    Panel("ITL, ms", (Line("itl_ms_p50", "p50", _BLUE), Line("itl_ms_p95", "p95", _PALE_BLUE))),
    Panel(
        "tok/s",
        (
            Line("output_tok", "output, seen by the client", _BLUE),
            Line("generation_tok_per_s", "generated, said by the server", _ORANGE, server=True),
        ),
    ),
    Panel(
        "requests",
        (
            Line("in_flight", "in flight", _BLUE),
            Line("requests_running", "running", _ORANGE, server=True),
            Line("requests_waiting", "waiting", _RED, server=True),
            Line("users", "users", _GREY, steps=True),
        ),
    ),
    Panel(
        "KV cache, %",
        (
            Line("kv_cache_usage", "usage", _ORANGE, server=True, share=True),
            Line("prefix_cache_hit_rate", "prefix hits", _GREEN, server=True, share=True),
        ),
    ),
)


def figure(
    timeline: pd.DataFrame, targets: tuple[str, ...], phases: tuple[PhaseSpan, ...], marks: list[Mapping[str, Any]]
) -> Figure | None:
    """Data and layout for plotly.js; None where the timeline has nothing to draw. Lines without a value are left out."""
    suffixes = server_suffixes(targets)
    height = (1 - _GAP * len(PANELS)) / len(PANELS)
    data: list[Figure] = []
    layout: Figure = _layout(timeline)
    for number, panel in enumerate(PANELS):
        name = "" if number == 0 else str(number + 1)
        top = 1 - number * (height + _GAP) - _GAP
        axis = {"text": panel.title, "standoff": 6}
        layout[f"yaxis{name}"] = {"domain": [max(0.0, top - height), top], "title": axis, "rangemode": "tozero"}
        layout[f"legend{name}"] = {"orientation": "h", "x": 1, "xanchor": "right", "y": top, "yanchor": "bottom"}
        data += _traces(timeline, panel, name, suffixes)
    if not data:
        return None
    layout["shapes"] = [_shade(span, timeline) for span in phases] + [_mark(mark) for mark in marks]
    layout["annotations"] = [_phase_label(span) for span in phases]
    return {"data": data, "layout": layout}


def _layout(timeline: pd.DataFrame) -> Figure:
    return {
        "height": 900,
        "margin": {"l": 62, "r": 18, "t": 34, "b": 44},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": _GREY, "activecolor": _BLUE},
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "xaxis": {
            "title": {"text": "seconds since the run's start"},
            "anchor": f"y{len(PANELS)}",
            "range": [0, len(timeline)],
            "zeroline": False,
        },
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }


def _traces(timeline: pd.DataFrame, panel: Panel, axis: str, suffixes: Mapping[str, str]) -> list[Figure]:
    traces = []
    for line in panel.lines:
        for place, suffix in enumerate(suffixes.values() if line.server else ("",)):
            column = line.column + suffix
            if column not in timeline or timeline[column].isna().all():
                continue
            values = timeline[column].astype(float) * (100 if line.share else 1)
            dash = _DASHES[place % len(_DASHES)]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": f"{line.label} {suffix}".strip(),
                    "x": [float(t_s) + 0.5 for t_s in timeline["t_s"]],
                    "y": [None if pd.isna(value) else float(f"{value:.5g}") for value in values],
                    "line": {
                        "color": line.colour,
                        "width": 1.6,
                        "dash": dash,
                        "shape": "hvh" if line.steps else "linear",
                    },
                    "xaxis": "x",
                    "yaxis": f"y{axis}",
                    "legend": f"legend{axis}",
                    "hovertemplate": "%{y}",
                }
            )
    return traces


def _shade(span: PhaseSpan, timeline: pd.DataFrame) -> Figure:
    """What is not measured is shaded; the measure phase stays clear."""
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": round(span.start_s, 3),
        "x1": round(len(timeline) if span.end_s is None else span.end_s, 3),
        "y0": 0,
        "y1": 1 - _GAP,
        "layer": "below",
        "line": {"width": 0},
        "fillcolor": "rgba(128,134,145,0.16)" if span.phase != "measure" else "rgba(0,0,0,0)",
    }


def _mark(mark: Mapping[str, Any]) -> Figure:
    at_s = round(float(mark["t_s"]), 3)
    line = {"color": _GREY, "width": 1, "dash": "dot"}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": at_s, "x1": at_s, "y0": 0, "y1": 1 - _GAP, "line": line}


def _phase_label(span: PhaseSpan) -> Figure:
    """The phase's name at its beginning, along the picture's upper edge."""
    place = {"xref": "x", "yref": "paper", "x": round(span.start_s, 3), "y": 1, "xanchor": "left", "yanchor": "top"}
    return place | {"text": span.phase, "showarrow": False, "font": {"size": 11, "color": _GREY}}
