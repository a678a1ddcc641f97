"""Throughput against latency over the steps of a run, with the knee and the limits of the SLO."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inferload.measure.console import step_level

from .picture import (
    BLUE,
    GREEN,
    ORANGE,
    PALE_BLUE,
    PALE_ORANGE,
    Figure,
    Floats,
    Picture,
    layout,
    limit_line,
    numbers,
    title,
)

_LINES = (
    ("TTFT p50", "ttft_ms", "p50", PALE_BLUE, ""),
    ("TTFT p95", "ttft_ms", "p95", BLUE, ""),
    ("ITL p50", "itl_ms", "p50", PALE_ORANGE, "2"),
    ("ITL p95", "itl_ms", "p95", ORANGE, "2"),
)


def knee(throughput: Floats, latency: Floats) -> int | None:
    """The step with the most power, throughput over latency (Kleinrock); None where fewer than three steps have both.

    Below it more load buys more throughput than it costs in latency, above it less.
    """
    power = np.divide(throughput, latency, out=np.full(len(latency), np.nan), where=latency > 0)
    return int(np.nanargmax(power)) if np.count_nonzero(~np.isnan(power)) >= 3 else None


def picture(steps: Sequence[Mapping[str, Any]], slo: Mapping[str, float]) -> Picture | None:
    """From summary.json's steps; None with fewer than two."""
    if len(steps) < 2:
        return None
    x = _of(steps, "rates", "output_tok_per_s")
    names = [step_level(step) if "step" in step else str(place) for place, step in enumerate(steps)]
    data: list[Figure] = []
    for label, measure, statistic, colour, axis in _LINES:
        y = np.array([_number(((step.get("latency") or {}).get(measure) or {}).get(statistic)) for step in steps])
        if not np.isnan(x * y).all():
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": label,
                    "x": numbers(x),
                    "y": numbers(y),
                    "text": names,
                    "line": {"color": colour, "width": 1.8},
                    "marker": {"size": 7, "color": colour},
                    "yaxis": f"y{axis}",
                    "legend": f"legend{axis}",
                    "hovertemplate": "%{text}: %{x:,.4~g} tok/s, %{y:,.4~g} ms",
                }
            )
    if not data:
        return None
    plan = layout(
        520,
        {"title": title("output tok/s"), "anchor": "y2", "rangemode": "tozero"},
        {"domain": [0.56, 0.96], "title": title("TTFT, ms"), "rangemode": "tozero"},
    )
    plan["yaxis2"] = {"domain": [0.0, 0.42], "title": title("ITL, ms"), "rangemode": "tozero"}
    plan["legend2"] = plan["legend"] | {"y": 0.42}
    shapes, words = _limits(slo)
    e2e = np.array([_number(((step.get("latency") or {}).get("e2e_ms") or {}).get("mean")) for step in steps])
    place = knee(x, e2e)
    if place is not None:
        at = float(x[place])
        line = {"color": GREEN, "width": 1.4, "dash": "dot"}
        shapes.append(
            {"type": "line", "xref": "x", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 0.96, "line": line}
        )
        words.append(
            {
                "xref": "x",
                "x": at,
                "yref": "paper",
                "y": 0.96,
                "yanchor": "bottom",
                "showarrow": False,
                "text": f"knee: {names[place]}",
                "font": {"size": 11, "color": GREEN},
            }
        )
    plan |= {"shapes": shapes, "annotations": words}
    note = (
        "A point is a step. Knee: the step with the most throughput over mean E2E."
        if place is not None
        else "A point is a step."
    )
    return Picture("load", "Throughput against latency", note, {"data": data, "layout": plan}, ("ttft_ms", "itl_ms"))


def _limits(slo: Mapping[str, float]) -> tuple[list[Figure], list[Figure]]:
    shapes, words = [], []
    for name, axis in (("ttft_ms", "y"), ("itl_ms", "y2"), ("tpot_ms", "y2")):
        if name in slo:
            shape, text = limit_line(slo[name], f"SLO {name} {slo[name]:g}", axis)
            shapes.append(shape)
            words.append(text)
    return shapes, words


def _of(steps: Sequence[Mapping[str, Any]], part: str, name: str) -> Floats:
    return np.array([_number((step.get(part) or {}).get(name)) for step in steps])


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
