"""A picture as a PNG file, drawn by matplotlib from the same description that plotly.js draws in the page.

It knows the kinds of traces, axes and shapes that the pictures here use, and no others: a new kind is a KeyError in the tests.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import NullLocator, StrMethodFormatter
from matplotlib.transforms import blended_transform_factory

from inferload import rundir

from .picture import Figure, Picture

_DPI, _WIDTH_PX = 110, 1160
_LETTERS = 150  # of a legend in one row, eight for each sign
_DASHES: Mapping[str, Any] = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_INK, _GRID = "#1b1f27", "#dfe3e9"


def draw(picture: Picture, path: Path) -> Path:
    """Write the picture, whole or not at all."""
    layout = picture.figure["layout"]
    height = int(layout["height"]) + 30
    canvas = Canvas(figsize=(_WIDTH_PX / _DPI, height / _DPI), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(canvas)
    canvas.suptitle(picture.title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=_INK)
    barred = any("colorbar" in trace or "colorbar" in trace.get("marker", {}) for trace in picture.figure["data"])
    left, right = (
        (230 if layout["yaxis"].get("automargin") else 92) / _WIDTH_PX,
        1 - (120 if barred else 20) / _WIDTH_PX,
    )
    bottom, top = 56 / height, 1 - (layout["margin"]["t"] + 30) / height
    names = sorted({trace.get("yaxis") or "y" for trace in picture.figure["data"]}, key=lambda name: (len(name), name))
    axes = {}
    for name in names:
        axis = layout["yaxis" + name[1:]]
        low, high = axis.get("domain", (0.0, 1.0))
        place = (left, bottom + low * (top - bottom), right - left, (high - low) * (top - bottom))
        axes[name] = canvas.add_axes(place)
        _axis(axes[name], layout["xaxis"], axis)
    for name, axis in axes.items():
        own = [trace for trace in picture.figure["data"] if (trace.get("yaxis") or "y") == name]
        _traces(canvas, axis, own, layout)
        _shapes(axis, name, layout, top)
        last = axis is axes[names[-1]]
        axis.tick_params(labelbottom=last, colors=_INK, labelsize=8)
        axis.set_xlabel(layout["xaxis"]["title"]["text"] if last else "", fontsize=9, color=_INK)
    with rundir.replacing(path) as file:
        canvas.savefig(file, format="png")
    return path


def _axis(axes: Axes, x: Figure, y: Figure) -> None:
    for side, axis in (("x", x), ("y", y)):
        if axis.get("type") == "log":
            getattr(axes, f"set_{side}scale")("log")
            getattr(axes, f"{side}axis").set_minor_locator(NullLocator())
        elif "type" not in axis and "automargin" not in axis:  # numbers, not words
            getattr(axes, f"{side}axis").set_major_formatter(StrMethodFormatter("{x:,.10g}"))
        if "range" in axis:
            low, high = (10**value if axis.get("type") == "log" else value for value in axis["range"])
            getattr(axes, f"set_{side}lim")(low, high)
        if "tickvals" in axis:
            low, high = sorted(getattr(axes, f"get_{side}lim")())
            inside = [pair for pair in zip(axis["tickvals"], axis["ticktext"], strict=True) if low <= pair[0] <= high]
            getattr(axes, f"set_{side}ticks")([value for value, _ in inside], [text for _, text in inside])
    axes.set_ylabel((y.get("title") or {}).get("text", ""), fontsize=9, color=_INK)
    axes.set_axisbelow(True)
    axes.grid(color=_GRID, linewidth=0.7)
    for spine in axes.spines.values():
        spine.set_color(_GRID)


def _traces(canvas: Canvas, axes: Axes, traces: Sequence[Figure], layout: Figure) -> None:
    stacked: dict[str, float] = {}
    for trace in traces:
        _DRAW[trace["type"]](canvas, axes, trace, stacked)
    y = layout["yaxis"]
    if y.get("rangemode") == "tozero" and y.get("type") != "log":
        axes.set_ylim(bottom=min(0.0, axes.dataLim.y0))
    named = [len(trace["name"]) for trace in traces if trace.get("showlegend", True) and trace.get("name")]
    if named:
        one_row = sum(named) + 8 * len(named) <= _LETTERS
        ncols = len(named) if one_row else max(1, _LETTERS // (max(named) + 8))
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1.0), ncols=ncols, fontsize=8, frameon=False, borderaxespad=0.1
        )


def _scatter(canvas: Canvas, axes: Axes, trace: Figure, _: dict[str, float]) -> None:
    y = _floats(trace["y"])
    x = _floats(trace["x"]) if "x" in trace else trace["x0"] + np.arange(len(y)) * trace["dx"]
    label = trace.get("name") if trace.get("showlegend", True) else None
    if trace.get("fill") == "toself":
        axes.fill(x, y, color=_colour(trace["fillcolor"]), linewidth=0)
        return
    if "lines" in trace["mode"]:
        line = trace["line"]
        style = {
            "linestyle": _DASHES[line.get("dash", "solid")],
            "linewidth": line["width"] * 0.75,
            "color": line["color"],
        }
        steps = "steps-mid" if line.get("shape") == "hvh" else "default"
        axes.plot(x, y, label=label, drawstyle=steps, solid_capstyle="butt", **style)
    if "markers" in trace["mode"]:
        _markers(canvas, axes, trace, (x, y))


def _markers(canvas: Canvas, axes: Axes, trace: Figure, at: tuple[Any, Any]) -> None:
    (x, y), marker = at, trace["marker"]
    label = trace.get("name") if "lines" not in trace["mode"] and trace.get("showlegend", True) else None
    size = float(marker["size"]) ** 2 * 0.4
    shape = "x" if marker.get("symbol") == "x" else "o"
    if isinstance(marker["color"], str):
        axes.scatter(
            x, y, s=size, c=marker["color"], marker=shape, alpha=marker.get("opacity", 1), linewidths=0.5, label=label
        )
        return
    shares = _floats(marker["color"])
    drawn = axes.scatter(
        x,
        y,
        s=size,
        c=shares,
        cmap=_map(marker["colorscale"]),
        vmin=0,
        vmax=1,
        alpha=marker.get("opacity", 1),
        linewidths=0,
    )
    bar = canvas.colorbar(drawn, ax=axes, cax=axes.inset_axes((1.02, 0.05, 0.012, 0.9)))
    bar.ax.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"], fontsize=8)
    bar.set_label(marker["colorbar"]["title"]["text"], fontsize=8)


def _bar(_: Canvas, axes: Axes, trace: Figure, stacked: dict[str, float]) -> None:
    if trace.get("orientation") == "h":
        drawn = axes.barh(trace["y"], trace["x"], color=trace["marker"]["color"], height=0.7)
        axes.bar_label(drawn, trace["text"], padding=4, fontsize=8)
        return
    below = [stacked.get(label, 0.0) for label in trace["x"]]
    axes.bar(trace["x"], trace["y"], bottom=below, color=trace["marker"]["color"], label=trace["name"], width=0.88)
    for label, value in zip(trace["x"], trace["y"], strict=True):
        stacked[label] = stacked.get(label, 0.0) + (value or 0.0)


def _heatmap(canvas: Canvas, axes: Axes, trace: Figure, _: dict[str, float]) -> None:
    shade = np.array([_floats(row) for row in trace["z"]])
    x, y = _floats(trace["x"]), _floats(trace["y"])
    drawn = axes.pcolormesh(
        x, y, shade, cmap=_map(trace["colorscale"]), vmin=trace["zmin"], vmax=trace["zmax"], shading="nearest"
    )
    bar = canvas.colorbar(drawn, ax=axes, cax=axes.inset_axes((1.02, 0.05, 0.012, 0.9)))
    bar.ax.set_yticks(trace["colorbar"]["tickvals"], trace["colorbar"]["ticktext"], fontsize=8)
    bar.set_label(trace["colorbar"]["title"]["text"], fontsize=8)


_DRAW: Mapping[str, Any] = {"scatter": _scatter, "bar": _bar, "heatmap": _heatmap}


def _shapes(axes: Axes, name: str, layout: Figure, top: float) -> None:
    """Those on this axis, and those that run over the whole picture's height, up to `top` of the file's."""
    for shape in layout.get("shapes", ()):
        if shape["xref"] == "paper" and shape["yref"] == name:
            axes.axhline(shape["y0"], **_stroke(shape))
        elif shape["yref"] == "paper" and shape["type"] == "line":
            axes.axvline(shape["x0"], **_stroke(shape))
        elif shape["yref"] == "paper":
            axes.axvspan(shape["x0"], shape["x1"], color=_colour(shape["fillcolor"]), linewidth=0, zorder=0)
    for words in layout.get("annotations", ()):
        log = layout["yaxis" + name[1:]].get("type") == "log"
        style = {"fontsize": 8, "color": words["font"]["color"]}
        if words["yref"] == name:
            height = 10 ** words["y"] if log else words["y"]
            axes.text(
                0.005, height, words["text"], transform=axes.get_yaxis_transform(), va="bottom", clip_on=True, **style
            )
        elif words["yref"] == "paper" and name == "y":
            edge = blended_transform_factory(axes.transData, axes.figure.transFigure)  # above the first panel's legend
            axes.text(
                words["x"], top, words["text"], transform=edge, ha=words.get("xanchor", "center"), va="bottom", **style
            )


def _stroke(shape: Figure) -> dict[str, Any]:
    line = shape["line"]
    return {"color": _colour(line["color"]), "linewidth": line["width"], "linestyle": _DASHES[line["dash"]]}


def _floats(values: Sequence[float | None]) -> Any:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _colour(text: str) -> Any:
    """`rgba(r,g,b,a)` as matplotlib has it; other words as they are."""
    if not text.startswith("rgba("):
        return text
    red, green, blue, alpha = (float(part) for part in text[5:-1].split(","))
    return (red / 255, green / 255, blue / 255, alpha)


def _map(scale: Sequence[Sequence[Any]]) -> Any:
    return LinearSegmentedColormap.from_list("own", [(at, _colour(colour)) for at, colour in scale])
