"""Charts for plotly.js: description, colours, common layout and axes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inferload.base.numbers import number
from inferload.results.latency_limits import IN_RANGE, LatencyLimit
from inferload.turns.sketch import Floats

PlotlyDict = dict[str, Any]

BLUE, PALE_BLUE, ORANGE, PALE_ORANGE, RED, PALE_RED, GREEN, PALE_GREEN = (
    "#2f78c4", "#8ab6e8", "#d9772b", "#efb07f", "#c8423b", "#e29a95", "#2f9468", "#8ccbae",
)  # fmt: skip
GREY, VIOLET, PALE_VIOLET, TEAL, PALE_TEAL = "#8a8f98", "#8463b8", "#bda9de", "#2a9d9d", "#8fd0d0"

# From low to high; low values are transparent for light and dark pages.
HEAT = [
    [0.0, "rgba(47,120,196,0.10)"],
    [0.35, "rgba(47,120,196,0.75)"],
    [0.7, "rgba(132,99,184,0.95)"],
    [1.0, "rgba(217,119,43,1)"],
]
SHARES = [[0.0, RED], [0.5, "#c9a13b"], [1.0, GREEN]]

_DASHES_OF_LIMITS = ("dash", "dot", "dashdot", "6px,2px", "2px,6px")
_MARGINS_PX, _TOP_PX = 82, 34  # above and below the panels, and above them


@dataclass(frozen=True, slots=True)
class Picture:
    """Chart of a page. `note`: explanation; `terms`: linked definitions."""

    key: str
    title: str
    note: str
    figure: PlotlyDict
    terms: tuple[str, ...] = ()

    @property
    def height(self) -> int:
        """Height in pixels."""
        return int(self.figure["layout"]["height"])


# Thousands separators on all axes, as in the tables.
PLAIN_NUMBERS: PlotlyDict = {"separatethousands": True, "exponentformat": "none"}
LEGEND: PlotlyDict = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom"}  # above a panel


def layout(height: int, x: PlotlyDict, y: PlotlyDict, **more: Any) -> PlotlyDict:
    """Return a layout with one x and one y axis; report.js sets the theme colours."""
    base: PlotlyDict = {
        "height": height,
        "margin": {"l": 72, "r": 18, "t": _TOP_PX, "b": _MARGINS_PX - _TOP_PX},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": BLUE},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {"zeroline": False} | PLAIN_NUMBERS | x,
        "yaxis": {"zeroline": False} | PLAIN_NUMBERS | y,
        "legend": LEGEND,
        "hovermode": "closest",
    }
    return base | more


def stacked(x: PlotlyDict, panels: Sequence[PlotlyDict], panel_px: int, legend_px: int) -> PlotlyDict:
    """Return a layout of panels one below another, each with a legend above it, on one x axis below the last.

    `panels`: their y axes; `panel_px`: height of each, with its legend.
    """
    plan = layout(_MARGINS_PX + panel_px * len(panels), x | {"anchor": f"y{suffix(len(panels) - 1)}"}, {})
    for nth, panel in enumerate(panels):
        top = round(1 - (nth + legend_px / panel_px) / len(panels), 5)
        bottom = round(1 - (nth + 1) / len(panels), 5)
        plan[f"yaxis{suffix(nth)}"] = PLAIN_NUMBERS | panel | {"domain": [bottom, top]}
        plan[f"legend{suffix(nth)}"] = LEGEND | {"y": top}
    return plan | {"hovermode": "x unified", "hoversubplots": "axis"}


def suffix(nth: int) -> str:
    """Return the suffix of the axes and the legend of a panel, counted from 0."""
    return str(nth + 1) if nth else ""


def scatter(mode: str, name: str, x: Sequence[object], y: Sequence[object], **more: Any) -> PlotlyDict:
    """Return points (markers), a line (lines), or both (lines+markers). `more`: further properties."""
    return {"type": "scatter", "mode": mode, "name": name, "x": x, "y": y, **more}


def error_bars(estimates: Sequence[tuple[float, float | None, float | None]], scale: float = 1.0) -> PlotlyDict:
    """Return the bars of estimates (value, low, high), none at an end that is None. `scale`: of the axis to the values."""
    lows = numbers([0.0 if low is None else scale * (value - low) for value, low, _ in estimates])
    highs = numbers([0.0 if high is None else scale * (high - value) for value, _, high in estimates])
    return {"type": "data", "symmetric": False, "arrayminus": lows, "array": highs}


def axis(title: str, **more: Any) -> PlotlyDict:
    """Return an axis with a title. `more`: further properties."""
    return {"title": {"text": title, "standoff": 6}, **more}


def numbers(values: Sequence[float] | Floats, digits: int = 4) -> list[float | None]:
    """Round values to significant digits for JSON; None for NaN."""
    return [None if value is None or not np.isfinite(value) else float(f"{value:.{digits}g}") for value in values]


@dataclass(slots=True)
class Limits:
    """Limits in the panels of a chart: lines, and marks at the edge of a panel whose values they are far above."""

    shapes: list[PlotlyDict] = field(default_factory=list)
    edges: list[PlotlyDict] = field(default_factory=list)
    above: list[str] = field(default_factory=list)

    def add(self, limits: Sequence[LatencyLimit], most: float, panel: str = "") -> list[float]:
        """Draw the limits of a panel with values up to `most`. Return those to which its axis has to extend."""
        near = [limit for limit in limits if limit.limit_ms <= IN_RANGE * most]
        far = sorted((limit for limit in limits if limit not in near), key=lambda limit: limit.limit_ms)
        self.shapes += [_limit_line(limit, panel, nth) for nth, limit in enumerate(near)]
        self.above += [limit.text for limit in far]
        if far:
            values = ", ".join(dict.fromkeys(number(limit.limit_ms) for limit in far))
            place = {"xref": "paper", "x": 1, "xanchor": "right", "yref": f"y{panel} domain", "y": 1, "yanchor": "top"}
            self.edges.append({"text": f"↑ {values}", "showarrow": False, "font": {"color": RED}} | place)
        return [limit.limit_ms for limit in near]

    @property
    def note(self) -> str:
        """Sentence on the limits that are marked at an edge; empty without any."""
        return f" Limits above the axis, marked at its upper edge: {'; '.join(self.above)}." if self.above else ""


def _limit_line(limit: LatencyLimit, panel: str, nth: int) -> PlotlyDict:
    """Return a horizontal line at a limit, named in the legend of its panel. Its colour tells SLO and gate apart.

    `panel`: suffix of its axis; `nth`: of the limits of a panel, which have a dash each.
    """
    dash = _DASHES_OF_LIMITS[nth % len(_DASHES_OF_LIMITS)]
    line = across(limit.limit_ms, panel, VIOLET if limit.is_gate else RED, dash)
    return line | {"name": limit.text, "showlegend": True, "legend": f"legend{panel}"}


def across(at: float, panel: str, colour: str, dash: str = "dash") -> PlotlyDict:
    """Return a horizontal line over the width of a panel."""
    line = {"color": colour, "width": 1.4, "dash": dash}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": f"y{panel}", "y0": at, "y1": at, "line": line}


def instant_line(at_s: float) -> PlotlyDict:
    at_s, line = round(at_s, 3), {"color": GREY, "width": 1, "dash": "dot"}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": at_s, "x1": at_s, "y0": 0, "y1": 1, "line": line}


def shades(spans: Sequence[tuple[float, float]]) -> list[PlotlyDict]:
    """Return shaded areas over all panels, without those that end before they begin."""
    look: PlotlyDict = {"layer": "below", "line": {"width": 0}, "fillcolor": "rgba(128,134,145,0.16)"}
    look |= {"type": "rect", "xref": "x", "yref": "paper", "y0": 0, "y1": 1}
    return [look | {"x0": round(low, 3), "x1": round(high, 3)} for low, high in spans if high > low]


def decades(low: float, high: float, *, is_small: bool = False) -> PlotlyDict:
    """Return ticks and range of a logarithmic axis; fewer ticks per decade for more decades, and on a small axis."""
    low, high = max(low, 1e-3), max(high, low * 1.01, 1e-3)
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    spanned = np.log10(high / low)
    steps: tuple[float, ...] = (1, 1.5, 2, 3, 4, 5, 6, 8) if spanned < 1 else (1, 2, 5) if spanned < 4 else (1,)
    steps = steps[:1] if is_small and spanned > 1 else steps
    values = [float(f"{step:g}e{power}") for power in range(first, last + 1) for step in steps]
    bounds = [float(np.log10(low)) - 0.04, float(np.log10(high)) + 0.06]
    return {"type": "log", "tickvals": values, "ticktext": [f"{value:,g}" for value in values], "range": bounds}
