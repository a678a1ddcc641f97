"""What several runs say of throughput and latency: a curve for each configuration, a point for each load that it was held at."""

from collections.abc import Sequence

from inferload.numbers import short

from ..charts.load import FIGURES, Curve, Point
from .sides import Level, Side


def curve(side: Side) -> Curve:
    """The loads of a side's runs, or of their steps; a load that was held several times is the mean of those times.

    Runs that are not valid are left out, unless there is no other.
    """
    runs = [run for run in side.runs if run.level != "invalid"] or list(side.runs)
    held: dict[tuple[str, float], list[Level]] = {}
    points = []
    for run in runs:
        for level in run.levels:
            held.setdefault((level.unit, level.load), []).append(level)
        if not run.levels:
            points.append(Point(run.label, None, run.figures))
    units = {unit for unit, _ in held}
    points += [
        Point(
            f"{short(load)} {unit}", load if len(units) == 1 else None, {name: _mean(times, name) for name in FIGURES}
        )
        for (unit, load), times in sorted(held.items())
    ]
    return Curve(side.label, min(units, default=""), tuple(points))


def _mean(times: Sequence[Level], name: str) -> float | None:
    """None where one of the times does not know it."""
    found = [level.figures.get(name) for level in times]
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known and len(known) == len(found) else None
