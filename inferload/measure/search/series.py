"""How much a stretch of load says: turns share a queue and its luck, so that a thousand of them may say as much as twenty.

A window is cut into bins. The relaxation time, after which the server has forgotten its state, is read from the
autocorrelation of the turns in flight and of the values themselves, whichever is longer. Where 20 batches of five
relaxation times fit, the spread of batch means is the error; else it follows from the autocovariances (Geyer's initial
monotone sequence), with as many degrees of freedom as batches would have fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inferload.measure.relaxation import autocovariance, relaxation
from inferload.measure.search.seen import Window, lasting_s

Floats = npt.NDArray[np.float64]

BATCHES = 20
MOST_BATCHES = 40
RELAXATIONS = 5  # a batch lasts so many relaxation times
_LEAST_BINS, _MOST_BINS = 40, 2000


@dataclass(frozen=True, slots=True)
class Ratio:
    """Sum of the values over their number, with its standard error and degrees of freedom (0: nothing can be said)."""

    mean: float
    count: float
    error: float
    freedom: int
    relaxation_s: float
    batches: int  # 0 where the error does not come from batch means


def bin_width_s(windows: Sequence[Window]) -> float:
    """So wide that a bin holds about two turns, and that there are neither few bins nor more than are needed."""
    total_s, turns = lasting_s(windows), sum(window.turns for window in windows)
    bins = min(_MOST_BINS, max(_LEAST_BINS, turns // 2))
    return total_s / bins


def relaxation_s(series: Sequence[Floats], width_s: float) -> float:
    """Relaxation time of binned series of the same thing: half of the integrated autocorrelation time."""
    return width_s * relaxation(series)


def binned(window: Window, at_s: Floats, weights: Floats, width_s: float) -> Floats:
    """Sums of the weights in each bin of the window; what is left of its end after the last whole bin is in the last."""
    bins = max(2, round(window.lasts_s / width_s))
    place = np.clip((at_s / window.lasts_s * bins).astype(np.int64), 0, bins - 1)
    return np.bincount(place, weights, minlength=bins).astype(np.float64)


def state_relaxation_s(windows: Sequence[Window], width_s: float) -> float:
    """Relaxation time of the turns in flight."""
    series = []
    for window in windows:
        bins = max(2, round(window.lasts_s / width_s))
        series.append(window.in_flight((np.arange(bins) + 0.5) * window.lasts_s / bins))
    return relaxation_s(series, width_s)


def ratio(windows: Sequence[Window], values: Sequence[tuple[Floats, Floats]], state_s: float, width_s: float) -> Ratio:
    """Mean of values over all windows. `values`: for each window their instants and themselves; `state_s`: see above."""
    counts = [binned(w, at, np.ones_like(at), width_s) for w, (at, _) in zip(windows, values, strict=True)]
    sums = [binned(w, at, value, width_s) for w, (at, value) in zip(windows, values, strict=True)]
    count = float(sum(one.sum() for one in counts))
    if not count:
        return Ratio(np.nan, 0, np.inf, 0, state_s, 0)
    mean = float(sum(one.sum() for one in sums)) / count
    rests = [s - mean * c for s, c in zip(sums, counts, strict=True)]
    _, long_run = autocovariance(rests)
    own_s = relaxation_s(rests, width_s)
    relaxed_s = max(own_s, state_s)
    bins = sum(len(one) for one in rests)
    fitting = int(lasting_s(windows) / (RELAXATIONS * relaxed_s))
    if fitting >= BATCHES:
        error, batches = _batch_error(rests, min(fitting, MOST_BATCHES))
        return Ratio(mean, count, error / count, batches - 1, relaxed_s, batches)
    return Ratio(mean, count, float(np.sqrt(bins * long_run)) / count, max(0, fitting - 1), relaxed_s, 0)


def _batch_error(rests: Sequence[Floats], wanted: int) -> tuple[float, int]:
    """Standard error of the sum of all rests by batch means, and how many batches there were."""
    total = sum(len(one) for one in rests)
    sums: list[float] = []
    for one in rests:
        parts = max(1, round(wanted * len(one) / total))
        sums += [float(part.sum()) for part in np.array_split(one, parts)]
    batches = len(sums)
    spread: npt.NDArray[np.float64] = np.asarray(sums)
    return float(np.sqrt(batches / (batches - 1) * np.sum((spread - spread.mean()) ** 2))), batches
