"""Curves of throughput against latency: one per configuration, one point per load."""

from collections.abc import Sequence

from inferload.numbers import short

from ..charts.load import FIGURES, Curve, LoadPoint
from .sides import Level, Side


def curve(side: Side) -> Curve:
    """Curve over the loads of a side's runs or steps; repeats of a load are averaged.

    Invalid runs are left out unless all are invalid.
    """
    runs = [run for run in side.runs if run.level != "invalid"] or list(side.runs)
    by_load: dict[tuple[str, float], list[Level]] = {}
    points = []
    for run in runs:
        for level in run.levels:
            by_load.setdefault((level.unit, level.load), []).append(level)
        if not run.levels:
            points.append(LoadPoint(run.label, None, run.figures))
    units = {unit for unit, _ in by_load}
    points += [
        LoadPoint(
            f"{short(load)} {unit}", load if len(units) == 1 else None, {name: _mean(levels, name) for name in FIGURES}
        )
        for (unit, load), levels in sorted(by_load.items())
    ]
    return Curve(side.label, min(units, default=""), tuple(points))


def _mean(levels: Sequence[Level], name: str) -> float | None:
    """Mean of a figure; None if a level has no value."""
    values = [level.figures.get(name) for level in levels]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
