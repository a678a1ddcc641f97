"""Attainment of one condition at one load: the share of turns within the limit, or the mean, with its interval and verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any

import numpy as np

from inferload.campaign.attainment.slo import FAILED, Condition
from inferload.campaign.attainment.window import Samples, Window
from inferload.figures.turn_values import SLICES
from inferload.results.documents.search_document import ConditionResult
from inferload.results.statistics.distributions import t_quantile
from inferload.results.statistics.intervals import BATCHES, fitting_batches, share_interval, spread
from inferload.turns.sketch import Floats, rank


@dataclass(frozen=True, slots=True)
class _Ratio:
    """Mean of values over the windows of one load, with its standard error and degrees of freedom (0: too short)."""

    mean: float
    error: float
    freedom: int


def judge(condition: Condition, number: int, windows: Sequence[Window], tail: float) -> ConditionResult:
    """Judge the `number`-th condition over all windows of one load. `tail`: error at each end of the interval."""
    samples = [window.samples[number] for window in windows]
    if not any(len(sample.value) for sample in samples):
        return _result(condition, share=condition.share, verdict="undecided", values=0, effective=0.0)
    load = _Load(windows, samples, fitting_batches([window.in_flight(SLICES) for window in windows]))
    return _mean(condition, load, tail) if condition.share is None else _share(condition, condition.share, load, tail)


def _result(condition: Condition, **judged: Any) -> ConditionResult:
    return ConditionResult(condition=condition.text, label=condition.label, limit=condition.limit, **judged)


@dataclass(frozen=True, slots=True)
class _Load:
    """Values of one condition in the windows of one load. `fitting`: independent batches by the turns in flight."""

    windows: Sequence[Window]
    samples: Sequence[Samples]
    fitting: float

    @property
    def values(self) -> Floats:
        return np.concatenate([sample.value for sample in self.samples])

    def ratio(self, of: Callable[[Floats], Floats]) -> _Ratio:
        """Mean of a function of the values. Windows follow each other as in one long window."""
        sums, counts = [], []
        for window, sample in zip(self.windows, self.samples, strict=True):
            slices = np.clip((sample.at_s / window.lasts_s * SLICES).astype(np.int64), 0, SLICES - 1)
            counts.append(np.bincount(slices, minlength=SLICES).astype(np.float64))
            sums.append(np.bincount(slices, of(sample.value), minlength=SLICES).astype(np.float64))
        summed, counted = np.concatenate(sums), np.concatenate(counts)
        spread_of_slices = spread(summed, counted)
        fitting = min(spread_of_slices.fitting, self.fitting)
        freedom = spread_of_slices.freedom if fitting >= BATCHES else min(spread_of_slices.freedom, int(fitting) - 1)
        return _Ratio(float(summed.sum() / counted.sum()), spread_of_slices.error, max(0, freedom))

    def within(self, limit: float) -> _Ratio:
        return self.ratio(lambda values: (values <= limit).astype(np.float64))


def _mean(condition: Condition, load: _Load, tail: float) -> ConditionResult:
    """Judge a mean. Its error is at least that of independent values: slices that balance each other prove nothing."""
    values = load.values
    ratio = load.ratio(lambda values: values)
    alone = float(np.std(values)) / sqrt(len(values))
    error = max(ratio.error, alone)
    half = t_quantile(ratio.freedom, 1 - tail) * error if ratio.freedom else np.inf
    low, high = max(0.0, ratio.mean - half), ratio.mean + half
    high_end = high if isfinite(high) else None
    return _result(
        condition,
        share=None,
        value=ratio.mean,
        low=low,
        high=high_end,
        figure=ratio.mean,
        figure_low=low,
        figure_high=high_end,
        verdict="holds" if high < condition.limit else "breaks" if low >= condition.limit else "undecided",
        values=len(values),
        effective=len(values) if error == 0 else len(values) * (alone / error) ** 2,
    )


def _share(condition: Condition, share: float, load: _Load, tail: float) -> ConditionResult:
    """Judge a share with the exact interval at the effective number of values.

    The design effect is that of meeting the limit. If at least the required share meets it, the effect is also taken at the
    limit that just the required share meets, because few breaches say little about their correlation.
    """
    values = np.sort(load.values)
    count = len(values)
    within = load.within(condition.limit)
    effect, freedom = _design_effect(within, count), within.freedom
    quantile = float(values[rank(share, count) - 1])
    if (within.mean >= share or within.mean == 0) and condition.measure != FAILED:
        near = load.within(quantile)
        effect, freedom = max(effect, _design_effect(near, count)), min(freedom, near.freedom)
    effective = count / effect
    low, high = share_interval(within.mean, effective, freedom, (tail, tail), exact=True)
    around = share_interval(share, effective, freedom, (tail, tail))
    failed = condition.measure == FAILED
    return _result(
        condition,
        share=share,
        value=within.mean,
        low=low,
        high=high,
        figure=1 - within.mean if failed else quantile if isfinite(quantile) else None,
        figure_low=1 - high if failed else _ordered(values, around[0]),
        figure_high=1 - low if failed else _ordered(values, around[1]),
        verdict="holds" if low > share else "breaks" if high < share else "undecided",
        values=count,
        effective=effective,
    )


def _design_effect(ratio: _Ratio, count: int) -> float:
    """Variance of a share over that of independent values; at least 1."""
    alone = ratio.mean * (1 - ratio.mean) / count
    return max(1.0, ratio.error**2 / alone) if alone > 0 else 1.0


def _ordered(values: Floats, share: float) -> float | None:
    """Order statistic of a share; None at an end beyond all values."""
    if not 0 < share < 1:
        return None
    value = float(values[rank(share, len(values)) - 1])
    return value if isfinite(value) else None
