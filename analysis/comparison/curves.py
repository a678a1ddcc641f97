"""Curves of throughput against latency, with a point for each load."""

from inferload.numbers import short

from ..charts.load import FIGURES, Curve, LoadPoint
from .sides import LoadFigures, Side, complete_mean


def curve(side: Side) -> Curve:
    """Return the curve over the loads of a side's counted runs or their steps; repeats of a load are averaged."""
    by_load: dict[tuple[str, float], list[LoadFigures]] = {}
    points = []
    for run in side.counted:
        for level in run.loads:
            by_load.setdefault((level.unit, level.load), []).append(level)
        if not run.loads:
            points.append(LoadPoint(run.label, None, run.figures))
    units = {unit for unit, _ in by_load}
    for (unit, load), repeats in sorted(by_load.items()):
        figures = {name: complete_mean([repeat.figures.get(name) for repeat in repeats]) for name in FIGURES}
        points.append(LoadPoint(f"{short(load)} {unit}", load if len(units) == 1 else None, figures))
    return Curve(side.label, min(units, default=""), tuple(points))
