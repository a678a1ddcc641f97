"""Chart of expected and counted prefix-cache hit rates."""

from collections.abc import Mapping
from typing import Any

from .chart import BLUE, GREEN, ORANGE, Picture, layout, title

_BARS = (
    ("expected, unlimited cache", "expected", "hit_rate", "cached_tokens", BLUE),
    ("counted by the server", "counted", "hit_rate", "hits", ORANGE),
    ("reported with answers", "per_turn", "hit_rate", "cached_tokens", GREEN),
)


def picture(summary: Mapping[str, Any] | None) -> Picture | None:
    """Return the chart of the `cache` block of summary.json; None if fewer than two rates are known."""
    cache = (summary or {}).get("cache") or {}
    rows = [
        (label, cache[part][rate], cache[part].get(tokens), colour)
        for label, part, rate, tokens, colour in _BARS
        if cache.get(part) and cache[part].get(rate) is not None
    ]
    if len(rows) < 2:
        return None
    rows.reverse()  # the first one on top
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [label for label, *_ in rows],
            "x": [round(rate * 100, 3) for _, rate, _, _ in rows],
            "marker": {"color": [colour for *_, colour in rows]},
            "text": [f"{rate:.1%}" for _, rate, _, _ in rows],
            "textposition": "auto",
            "customdata": [f"{tokens:,} tokens" if tokens is not None else "" for _, _, tokens, _ in rows],
            "hovertemplate": "%{y}: %{x:.3~g} % (%{customdata})<extra></extra>",
            "showlegend": False,
        }
    ]
    plan = layout(
        116 + 46 * len(rows), {"title": title("share of input tokens, %"), "range": [0, 100]}, {"automargin": True}
    )
    note = "All phases. A counted rate below the expected one means evictions, or prefixes that were not shared as planned."
    return Picture("cache-hits", "Prefix-cache hits", note, {"data": data, "layout": plan})
