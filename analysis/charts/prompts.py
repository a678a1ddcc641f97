"""Chart of TTFT against prompt tokens, coloured by the cached share of the prompt."""

import numpy as np
import pandas as pd

from ..data.frames import RunFrames
from .chart import GREY, SHARES, Floats, Picture, PlotlyDict, decades, layout, numbers, title

SHOWN = 2_500
_SLOWEST = 200


def picture(run: RunFrames) -> Picture | None:
    """Return the chart of the turns of the measure phase; None if no prompt length is known."""
    turns = run.turns
    if not len(turns) or "input_tokens" not in turns:
        return None
    chosen = turns[turns["ok"] & (turns["phase"] == "measure")]
    tokens = chosen["input_tokens"].to_numpy(dtype=np.float64)
    ttft_ms = chosen["ttft_ms"].to_numpy()
    cached = (
        chosen["cached_tokens"].to_numpy(dtype=np.float64)
        if "cached_tokens" in chosen
        else np.full(len(chosen), np.nan)
    )
    known = (tokens > 0) & (ttft_ms > 0)
    tokens, ttft_ms, share = tokens[known], ttft_ms[known], np.clip(cached[known] / tokens[known], 0, 1)
    if not len(tokens):
        return None
    rows = thinned(ttft_ms)
    cached_known = not np.isnan(share).all()
    marker: PlotlyDict = {"size": 5, "opacity": 0.65, "color": GREY}
    if cached_known:
        bar = {
            "title": {"text": "cached", "side": "right"},
            "tickformat": ".0%",
            "thickness": 12,
            "len": 0.8,
            "outlinewidth": 0,
        }
        marker |= {
            "color": numbers(share[rows], 3),
            "colorscale": SHARES,
            "cmin": 0,
            "cmax": 1,
            "showscale": True,
            "colorbar": bar,
        }
    hover = (
        "%{x:,} tokens, %{y:,.4~g} ms" + (", %{marker.color:.0%} cached" if cached_known else "") + "<extra></extra>"
    )
    data: list[PlotlyDict] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "turns",
            "x": numbers(tokens[rows], 7),
            "y": numbers(ttft_ms[rows]),
            "marker": marker,
            "hovertemplate": hover,
            "showlegend": False,
        }
    ]
    data += _medians(tokens, ttft_ms)
    x = {"title": title("prompt tokens")} | decades(float(tokens.min()), float(tokens.max()))
    y = {"title": title("TTFT, ms")} | decades(float(ttft_ms.min()), float(ttft_ms.max()))
    drawn = (
        f" {len(rows):,} of {len(tokens):,} turns are drawn, including the slowest; the line is of all."
        if len(rows) < len(tokens)
        else ""
    )
    note = f"One dot per turn; line: median over turns of similar prompt length.{drawn}"
    note += "" if cached_known else " The server reported no cached tokens."
    return Picture("prompts", "TTFT by prompt", note, {"data": data, "layout": layout(430, x, y)}, ("ttft_ms",))


def thinned(values: Floats) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Select rows to draw: all if few, else an even selection and the highest values."""
    if len(values) <= SHOWN:
        return np.arange(len(values))
    highest = np.argpartition(values, -_SLOWEST)[-_SLOWEST:]
    regular = np.linspace(0, len(values) - 1, SHOWN - _SLOWEST).astype(np.int64)
    return np.unique(np.concatenate([regular, highest]))


def _medians(tokens: Floats, ttft_ms: Floats) -> list[PlotlyDict]:
    """Return the medians of up to 16 groups of similar prompt length, at the median length of each group."""
    if len(tokens) < 20 or tokens.min() == tokens.max():
        return []
    groups = pd.qcut(tokens, min(16, len(tokens) // 10), labels=False, duplicates="drop")
    medians = pd.DataFrame({"tokens": tokens, "ttft_ms": ttft_ms}).groupby(groups).median()
    line = {"type": "scatter", "mode": "lines", "name": "median", "line": {"color": GREY, "width": 2.2}}
    hover = "median of turns near %{x:,.0f} tokens: %{y:,.4~g} ms<extra></extra>"
    return [
        line
        | {
            "x": numbers(medians["tokens"].to_numpy(), 6),
            "y": numbers(medians["ttft_ms"].to_numpy()),
            "hovertemplate": hover,
            "showlegend": False,
        }
    ]
