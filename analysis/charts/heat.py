"""Heat map of all inter-token latencies of a run over time."""

import numpy as np

from inferload.figures.turn_figures import ITL
from inferload.turns.sketch import Floats

from ..data.frames import PhaseSpan, RunFrames
from ..data.turn_frames import Events
from .chart import HEAT, Picture, axis, decades, instant_line, layout

COLUMNS, PER_DECADE = 240, 16


def counts(events: Events, end_s: float) -> tuple[Floats, Floats, Floats]:
    """Count gaps above 0: (times of columns in s, bounds of rows in ms, counts as rows x columns)."""
    width_s = max(1.0, float(np.ceil(end_s / COLUMNS)))
    columns = max(1, int(np.ceil(end_s / width_s)))
    least_ms = np.min(events.gap_ms, initial=np.inf, where=events.gap_ms > 0)
    low, high = (np.floor(np.log10(gap_ms) * PER_DECADE) for gap_ms in (least_ms, np.fmax.reduce(events.gap_ms)))
    rows = int(high - low) + 1
    cells = np.zeros(rows * columns, dtype=np.int64)
    for piece in events.pieces():
        known = piece.gap_ms > 0
        row = (np.floor(np.log10(piece.gap_ms[known]) * PER_DECADE) - low).astype(np.int64)
        column = np.clip(piece.at_s[known] // width_s, 0, columns - 1).astype(np.int64)
        cells += np.bincount(row * columns + column, minlength=rows * columns)
    bounds = 10.0 ** ((low + np.arange(rows + 1)) / PER_DECADE)
    columns_s = np.asarray((np.arange(columns) + 0.5) * width_s, dtype=np.float64)
    return columns_s, np.asarray(bounds, dtype=np.float64), cells.reshape(rows, columns).astype(np.float64)


def picture(run: RunFrames, phases: tuple[PhaseSpan, ...]) -> Picture | None:
    """Return the chart of the gaps of successful turns; None without gaps."""
    if not (run.events.gap_ms > 0).any():
        return None
    at_s, bounds, cells = counts(run.events, run.end_s)
    totals = cells.sum(axis=0)
    share = np.divide(cells, totals, out=np.zeros_like(cells), where=totals > 0)
    shade = np.log10(share, out=np.full(share.shape, np.nan), where=share > 0)
    middle = np.sqrt(bounds[1:] * bounds[:-1])
    words = [[f"{part:.2%}" if part else "" for part in row] for row in share]
    data = [
        {
            "type": "heatmap",
            "x": [float(f"{at:.6g}") for at in at_s],
            "y": [float(f"{ms:.5g}") for ms in middle],
            "z": [[None if np.isnan(value) else round(float(value), 2) for value in row] for row in shade],
            "text": words,
            "colorscale": HEAT,
            "zmin": -4,
            "zmax": 0,
            "hoverongaps": False,
            "hovertemplate": "%{x:.0f} s, near %{y:.3~g} ms: %{text} of the gaps<extra></extra>",
            "colorbar": {
                "title": {"text": "share of gaps", "side": "right"},
                "tickvals": [-4, -3, -2, -1, 0],
                "ticktext": ["0.01 %", "0.1 %", "1 %", "10 %", "all"],
                "thickness": 12,
                "len": 0.9,
                "outlinewidth": 0,
            },
        }
    ]
    x = axis("time since the start of the run, s", range=[0, max(1.0, run.end_s)], showgrid=False)
    y = axis("ITL, ms", showgrid=False) | decades(float(bounds[0]), float(bounds[-1]))
    plan = layout(430, x, y)
    plan["shapes"] = [instant_line(span.start_s) for span in phases if span.start_s > 0]
    gaps = f"{'All ' if run.sample is None else ''}{int(cells.sum()):,} gaps"
    note = (
        f"{gaps} between output events; each column of {at_s[0] * 2:g} s adds up to 100 %. "
        "Separate bands indicate different batch compositions; isolated high cells are stalls."
    )
    return Picture("itl-heat", "Inter-token latency over time", note, {"data": data, "layout": plan}, (ITL.key,))
