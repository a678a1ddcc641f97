"""Percentile spectrum of latency on an axis of 1/(1-q): each additional nine has the same width.

Intervals are of order statistics with the effective number of turns, since consecutive turns are correlated. The design effect is
estimated from 20 batches in time order (batch means): the variance of the share above the percentile, divided by its variance for
independent turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inferload.figures.turn_figures import E2E, E2E_PLANNED, TTFT, TTFT_PLANNED
from inferload.results.latency_limits import LatencyLimit
from inferload.turns.sketch import Floats, rank

from ..data.frames import RunFrames
from .chart import BLUE, ORANGE, Limits, Picture, PlotlyDict, axis, decades, numbers, scatter, stacked, suffix

BATCHES = 20
T_95 = 2.093  # Student's t at 97.5 % with 19 degrees of freedom
ENOUGH = 10.0  # effective turns above a percentile for an interval
_POINTS = 90
_PANEL_PX, _LEGEND_PX = 194, 28

_ROWS = (
    (TTFT.title, (("from send", TTFT.key, BLUE), ("from plan", TTFT_PLANNED.key, ORANGE))),
    (E2E.title, (("from send", E2E.key, BLUE), ("from plan", E2E_PLANNED.key, ORANGE))),
)
_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999, 0.9999)


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Values at quantiles with intervals; NaN if too few turns are above the quantile."""

    q: Floats
    values: Floats
    low: Floats
    high: Floats


def spectrum(values: Floats) -> Spectrum:
    """Return the spectrum of one or more values in time order, with nearest-rank quantiles."""
    n = len(values)
    ordered = np.sort(values)
    q = np.unique(np.append(1 - np.geomspace(1.0, 1.0 / n, min(_POINTS, n)), 1 - 1.0 / n))
    quantiles = _at(ordered, q)
    effective = n / design_effects(values, quantiles)
    spread = T_95 * np.sqrt(q * (1 - q) / effective)
    enough = effective * (1 - q) >= ENOUGH
    low = np.where(enough, _at(ordered, np.clip(q - spread, 0, 1)), np.nan)
    high = np.where(enough, _at(ordered, np.clip(q + spread, 0, 1)), np.nan)
    return Spectrum(q, quantiles, low, high)


def design_effects(values: Floats, limits: Floats) -> Floats:
    """Return the design effect of the share above each limit: variance divided by that of independent turns, at least 1."""
    size = len(values) // BATCHES
    if size < 1:
        return np.ones(len(limits))
    batches = values[: size * BATCHES].reshape(BATCHES, size)
    effects = np.ones(len(limits))
    for index, limit in enumerate(limits):
        shares = (batches > limit).mean(axis=1)
        p = float(shares.mean())
        if 0 < p < 1:
            effects[index] = max(1.0, float(shares.var(ddof=1)) * size / (p * (1 - p)))
    return effects


def _at(ordered: Floats, q: Floats) -> Floats:
    values: Floats = ordered[[rank(share, len(ordered)) - 1 for share in q]]
    return values


def picture(run: RunFrames, limits: Sequence[LatencyLimit]) -> Picture | None:
    """Return the chart of TTFT and E2E of the measure phase, from send and from plan; None without turns."""
    turns = run.turns
    if not len(turns) or "phase" not in turns:
        return None
    measured = turns[turns["ok"] & (turns["phase"] == "measure")].sorted_by("planned_s")
    data: list[PlotlyDict] = []
    axes: list[PlotlyDict] = []
    drawn, most = Limits(), 2.0
    for name, lines in _ROWS:
        panel, ends = suffix(len(axes)), []
        for label, measure, colour in lines:
            values = measured[measure][measured[measure] > 0]
            if not len(values):
                continue
            curve = spectrum(values)
            most = max(most, float(len(values)))
            data += _lines(curve, f"{name} {label}", colour, panel)
            ends += curve.values[[0, -1]].tolist()
        if ends:  # answers without a stream have no TTFT
            measures = [measure for _, measure, _ in lines]
            ends += drawn.add([limit for limit in limits if limit.measure in measures], max(ends), panel)
            axes.append(axis(f"{name}, ms") | decades(min(ends), max(ends)))
    if not data:
        return None
    shown = [q for q in (0.0, *_QUANTILES) if 1 / (1 - q) <= most * 1.01]
    x = axis(
        "percentile",
        type="log",
        tickvals=[float(f"{1 / (1 - q):.6g}") for q in shown],
        ticktext=["min" if q == 0 else f"p{q * 100:g}" for q in shown],
        range=[0, float(np.log10(most)) + 0.02],
    )
    plan = stacked(x, axes, _PANEL_PX, _LEGEND_PX) | {
        "shapes": drawn.shapes,
        "annotations": drawn.edges,
        "hovermode": "x",
        "hoversubplots": "overlaying",
    }
    note = (
        "Band: 95 % confidence interval with the effective number of turns; it ends at fewer than 10 turns above. From plan: "
        "measured from the planned start, including client lag."
    )
    measures = [measure for _, row in _ROWS for _, measure, _ in row]
    return Picture("spectrum", "Latency spectrum", note + drawn.note, {"data": data, "layout": plan}, tuple(measures))


def _lines(curve: Spectrum, name: str, colour: str, panel: str) -> list[PlotlyDict]:
    x = 1 / np.maximum(1 - curve.q, 1e-9)
    known = ~np.isnan(curve.low)
    where = {"xaxis": "x", "yaxis": f"y{panel}", "legend": f"legend{panel}"}
    traces: list[PlotlyDict] = []
    if known.any():
        band_x = np.concatenate([x[known], x[known][::-1]])
        band_y = np.concatenate([curve.high[known], curve.low[known][::-1]])
        look = {"fill": "toself", "fillcolor": _pale(colour), "line": {"width": 0}, "showlegend": False}
        traces.append(scatter("lines", name, numbers(band_x, 6), numbers(band_y), hoverinfo="skip", **look, **where))
    look = {"line": {"color": colour, "width": 1.8}, "hovertemplate": "%{customdata}: %{y:,.4~g} ms"}
    percentiles = [f"p{q * 100:.6g}" for q in curve.q]
    return [
        *traces,
        scatter("lines", name, numbers(x, 6), numbers(curve.values), customdata=percentiles, **look, **where),
    ]


def _pale(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"
