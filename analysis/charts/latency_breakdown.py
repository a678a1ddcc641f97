"""Chart of the latency breakdown: stacked parts of a turn by percentile of the total."""

import itertools

import numpy as np

from ..data.breakdown import PARTS, TITLES, divided
from ..data.frame import Frame, mean
from .chart import BLUE, GREEN, GREY, ORANGE, PALE_BLUE, RED, TEAL, VIOLET, Picture, PlotlyDict, axis, layout, numbers

_COLOURS = {
    **dict(zip(PARTS, (RED, VIOLET, PALE_BLUE, GREY, ORANGE, TEAL, BLUE), strict=True)),
    "server_ms": GREEN,
}
_EDGES = (*range(0, 90, 10), 90, 95, 99, 100)


def picture(parts: Frame) -> Picture | None:
    """Return the chart of the table of `breakdown.parts`; None without turns."""
    if not len(parts):
        return None
    ordered = parts.sorted_by("total_ms")
    whole = bool(divided(parts).all())
    shown = PARTS if whole else (*PARTS[:3], "server_ms")
    labels, groups = [], []
    for low, high in itertools.pairwise(_EDGES):
        rows = ordered[round(low / 100 * len(ordered)) : round(high / 100 * len(ordered))]
        if len(rows):
            labels.append(f"{low}-{high}")
            groups.append(rows)
    data: list[PlotlyDict] = []
    for part in shown:
        means = np.array([mean(rows[part]) for rows in groups])
        if np.nanmax(np.abs(means)) <= 0:
            continue
        name = TITLES.get(part, "server and network")
        data.append(
            {
                "type": "bar",
                "name": name,
                "x": labels,
                "y": numbers(means),
                "marker": {"color": _COLOURS[part]},
                "hovertemplate": f"{name}: %{{y:,.4~g}} ms<extra></extra>",
            }
        )
    if not data:
        return None
    x = axis("turns by percentile of the total", type="category")
    plan = layout(470, x, axis("mean, ms", rangemode="tozero"))
    plan |= {"barmode": "relative", "bargap": 0.12, "hovermode": "x unified"}
    source = (
        "Queue, prefill and decode are reported by the server per turn."
        if whole
        else "The server reported no times for some turns, so server and network are one part."
    )
    note = f"Mean times between two percentiles of the total, planned start to last token. {source}"
    return Picture("where-from", "Latency breakdown", note, {"data": data, "layout": plan})
