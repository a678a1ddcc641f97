"""Chart of TTFT against prompt tokens, coloured by the cached share of the prompt."""

import numpy as np

from inferload.figures.turn_figures import TTFT
from inferload.turns.sketch import Floats

from ..data.frames import RunFrames
from .chart import GREY, SHARES, Picture, PlotlyDict, axis, decades, layout, numbers, scatter

SHOWN = 2_500
_SLOWEST = 200


def picture(run: RunFrames) -> Picture | None:
    """Return the chart of the turns of the measure phase; None if no prompt length is known."""
    turns = run.turns
    if not len(turns) or "input_tokens" not in turns:
        return None
    chosen = turns[turns["ok"] & (turns["phase"] == "measure")]
    tokens, cached, ttft_ms = (chosen.numbers(name) for name in ("input_tokens", "cached_tokens", TTFT.key))
    known = (tokens > 0) & (ttft_ms > 0)
    tokens, ttft_ms, share = tokens[known], ttft_ms[known], np.clip(cached[known] / tokens[known], 0, 1)
    if not len(tokens):
        return None
    rows = thinned(ttft_ms)
    cached_known = not np.isnan(share).all()
    dots = _dots(tokens[rows], ttft_ms[rows], share[rows] if cached_known else None)
    x = axis("prompt tokens") | decades(float(tokens.min()), float(tokens.max()))
    y = axis("TTFT, ms") | decades(float(ttft_ms.min()), float(ttft_ms.max()))
    note = "One dot per turn; line: median over turns of similar prompt length."
    if len(rows) < len(tokens):
        note += f" {len(rows):,} of {len(tokens):,} turns are drawn, including the slowest; the line is of all."
    if not cached_known:
        note += " The server reported no cached tokens."
    figure = {"data": [dots, *_medians(tokens, ttft_ms)], "layout": layout(430, x, y)}
    return Picture("prompts", "TTFT by prompt", note, figure, (TTFT.key,))


def _dots(tokens: Floats, ttft_ms: Floats, share: Floats | None) -> PlotlyDict:
    """Return a dot per turn, coloured by the cached share of its prompt; grey if `share` is None."""
    marker: PlotlyDict = {"size": 5, "opacity": 0.65, "color": GREY}
    if share is not None:
        bar = {"title": {"text": "cached", "side": "right"}, "tickformat": ".0%", "thickness": 12, "len": 0.8}
        marker |= {"color": numbers(share, 3), "colorscale": SHARES, "cmin": 0, "cmax": 1}
        marker |= {"showscale": True, "colorbar": bar | {"outlinewidth": 0}}
    cached = "" if share is None else ", %{marker.color:.0%} cached"
    hover = f"%{{x:,}} tokens, %{{y:,.4~g}} ms{cached}<extra></extra>"
    look = {"marker": marker, "hovertemplate": hover, "showlegend": False}
    return scatter("markers", "turns", numbers(tokens, 7), numbers(ttft_ms), **look)


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
    edges = np.unique(np.quantile(tokens, np.linspace(0, 1, min(16, len(tokens) // 10) + 1)))
    group = np.maximum(np.searchsorted(edges, tokens), 1)
    groups = [group == number for number in np.unique(group)]
    x, y = ([float(np.median(values[own])) for own in groups] for values in (tokens, ttft_ms))
    hover = "median of turns near %{x:,.0f} tokens: %{y:,.4~g} ms<extra></extra>"
    look = {"line": {"color": GREY, "width": 2.2}, "hovertemplate": hover, "showlegend": False}
    return [scatter("lines", "median", numbers(x, 6), numbers(y), **look)]
