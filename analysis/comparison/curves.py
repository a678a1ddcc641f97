"""Curves of throughput against latency, with a point for each load."""

from collections.abc import Sequence

from inferload.numbers import short

from ..charts.load import FIGURES, Curve, LoadPoint
from .sides import LoadFigures, Side


def curve(side: Side) -> Curve:
    """Return the curve over the loads of a side's runs or steps; repeats of a load are averaged.

    Invalid runs are left out unless all are invalid.
    """
    runs = [run for run in side.runs if run.level != "invalid"] or list(side.runs)
    by_load: dict[tuple[str, float], list[LoadFigures]] = {}
    points = []
    for run in runs:
        for level in run.loads:
            by_load.setdefault((level.unit, level.load), []).append(level)
        if not run.loads:
            points.append(LoadPoint(run.label, None, run.figures))
    units = {unit for unit, _ in by_load}
    points += [
        LoadPoint(
            f"{short(load)} {unit}", load if len(units) == 1 else None, {name: _mean(loads, name) for name in FIGURES}
        )
        for (unit, load), loads in sorted(by_load.items())
    ]
    return Curve(side.label, min(units, default=""), tuple(points))


def _mean(loads: Sequence[LoadFigures], name: str) -> float | None:
    """Mean of a figure; None if a level has no value."""
    values = [level.figures.get(name) for level in loads]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
