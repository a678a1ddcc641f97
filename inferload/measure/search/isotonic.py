"""A curve that only falls, over the log of the load, and where it crosses zero."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np
import numpy.typing as npt

NEAR = 0.15  # log of a distance: what is farther from the crossing says little of the curve there
LEAST_SLOPE = 3.0  # fall of the margin over the log of the load, whatever few points seem to say

_SURE = 1.5  # errors of a stretch of the fit

Floats = npt.NDArray[np.float64]


def falling(values: Sequence[float], weights: Sequence[float]) -> Floats:
    """The falling sequence nearest to the values in weighted squares (pool adjacent violators); the values in order."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, how many
    for value, weight in zip(values, weights, strict=True):
        mean, total, size = float(value), float(weight), 1
        while blocks and blocks[-1][0] < mean:
            before, heavy, wide = blocks.pop()
            mean = (before * heavy + mean * total) / (heavy + total)
            total, size = heavy + total, size + wide
        blocks.append((mean, total, size))
    return np.concatenate([np.zeros(0), *(np.full(size, mean) for mean, _, size in blocks)])


def crossing(
    levels: Sequence[float], margins: Sequence[float], weights: Sequence[float], errors: Sequence[float]
) -> float | None:
    """The load at which the margin is zero; None where the fitted margin does not go through zero. `errors`: of each margin.

    The falling fit says between which two loads: the nearest where it is off zero by more than its error. In between a line
    over the log of the load decides, of least squares weighted by nearness too: one between the two loads alone would follow
    the one that is hardly known.
    """
    order = np.argsort(levels, kind="stable")
    logs = np.log(np.asarray(levels, dtype=np.float64)[order])
    given, heavy = (np.asarray(one, dtype=np.float64)[order] for one in (margins, weights))
    fit = falling(given.tolist(), heavy.tolist())
    if not (fit > 0).any() or not (fit < 0).any():
        return None
    precision = 1 / np.asarray(errors, dtype=np.float64)[order] ** 2
    doubt = np.array([1 / np.sqrt(precision[fit == value].sum()) for value in fit])
    above, below = np.flatnonzero(fit > _SURE * doubt), np.flatnonzero(fit < -_SURE * doubt)
    left = float(logs[above[-1]]) if len(above) else float(logs[0])
    right = float(logs[below[0]]) if len(below) else float(logs[-1])
    slope, at, margin = line(logs, given, heavy, centre=(left + right) / 2)
    return exp(min(max(at + margin / max(-slope, LEAST_SLOPE), left), right))


def line(logs: Floats, margins: Floats, weights: Floats, *, centre: float) -> tuple[float, float, float]:
    """Slope of the line near a place, and a point on it: the weighted means of the logs and of the margins."""
    near = weights * np.exp(-(((logs - centre) / NEAR) ** 2) / 2) + 1e-9 * weights
    total = near.sum()
    x, y = float((near * logs).sum() / total), float((near * margins).sum() / total)
    wide = float((near * (logs - x) ** 2).sum())
    return (float((near * (logs - x) * (margins - y)).sum()) / wide if wide > 0 else 0.0), x, y
