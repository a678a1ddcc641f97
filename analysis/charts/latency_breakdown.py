"""Chart of the latency breakdown: stacked parts of a turn by percentile of the total."""

import itertools

import numpy as np
import pandas as pd

from ..data.breakdown import PARTS, SERVER_PARTS, TITLES
from .chart import BLUE, GREEN, GREY, ORANGE, PALE_BLUE, RED, TEAL, VIOLET, Picture, PlotlyDict, layout, numbers, title

_COLOURS = {
    **dict(zip(PARTS, (RED, VIOLET, PALE_BLUE, GREY, ORANGE, TEAL, BLUE), strict=True)),
    "server_ms": GREEN,
}
_EDGES = (*range(0, 90, 10), 90, 95, 99, 100)


def picture(parts: pd.DataFrame) -> Picture | None:
    """Return the chart of the table of `breakdown.parts`; None without turns."""
    if not len(parts):
        return None
    ordered = parts.sort_values("total_ms", ignore_index=True)
    divided = bool(ordered[list(SERVER_PARTS)].notna().all().all())
    shown = PARTS if divided else (*PARTS[:3], "server_ms")
    labels, groups = [], []
    for low, high in itertools.pairwise(_EDGES):
        rows = ordered.iloc[round(low / 100 * len(ordered)) : round(high / 100 * len(ordered))]
        if len(rows):
            labels.append(f"p{low} to p{high}")
            groups.append(rows)
    data: list[PlotlyDict] = []
    for part in shown:
        means = np.array([float(rows[part].mean()) for rows in groups])
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
    x = {"title": title("turns by percentile of the total"), "type": "category"}
    plan = layout(400, x, {"title": title("mean, ms"), "rangemode": "tozero"})
    plan |= {"barmode": "relative", "bargap": 0.12, "hovermode": "x unified"}
    source = (
        "Queue, prefill and decode are reported by the server per turn."
        if divided
        else "The server reported no times for some turns, so server and network are one part."
    )
    note = f"Mean times between two percentiles of the total, planned start to last token. {source}"
    return Picture("where-from", "Latency breakdown", note, {"data": data, "layout": plan})
