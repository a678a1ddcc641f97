"""Whether one rate holds a condition: how large a part kept the limit, how sure that is, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, isfinite, isnan, log, nan, sqrt
from typing import Any, Literal

import numpy as np

from inferload.measure.search import series
from inferload.measure.search.seen import Floats, Window
from inferload.measure.search.wanted import FAILED, Condition

Verdict = Literal["holds", "breaks", "undecided"]
# A mean is of the turns that ended well, and says nothing where many did not: where turns failed it needs this as well.
SPARED = Condition(f"{FAILED} < 0.01", FAILED, 0.01, 0.99)
_FEW = 0.5  # added to each side of a share before its logit is taken


@dataclass(frozen=True, slots=True)
class Errors:
    """One-sided errors of the two verdicts. At a given load only one of them can be wrong."""

    holds: float
    breaks: float


@dataclass(frozen=True, slots=True)
class Held:
    """One condition at one rate.

    `value`: the part that kept the limit, or the mean; `low`, `high`: its interval at the look's error. `figure`: what
    the condition names (the percentile, the mean, the ratio). `margin`: above 0 where it holds, on a scale that is about
    linear in the log of the rate: the logit of the share less that of the wanted one, or log(limit / mean).
    """

    condition: Condition
    value: float
    low: float
    high: float
    figure: float | None
    margin: float
    weight: float  # 1 / variance of the margin
    verdict: Verdict
    count: int
    effective: float  # independent values that would say as much
    relaxation_s: float
    batches: int
    figure_low: float | None = None  # interval of the figure; None at an end that is beyond all values
    figure_high: float | None = None
    failed: float = 0.0  # of a mean: the part of the turns that failed, and are not in it
    parts: tuple[tuple[float, int], ...] = ()  # of each window: its share or mean by itself, and how many values it has


@dataclass(frozen=True, slots=True)
class _Data:
    """A condition's values, a pair of instants and values for each window, and how fast the server forgets."""

    windows: Sequence[Window]
    values: list[tuple[Floats, Floats]]
    state_s: float
    width_s: float

    def mean(self) -> series.Ratio:
        return series.ratio(self.windows, self.values, self.state_s, self.width_s)

    def within(self, limit: float) -> series.Ratio:
        """The share of the values that keep a limit."""
        kept = [(at_s, (value <= limit).astype(np.float64)) for at_s, value in self.values]
        return series.ratio(self.windows, kept, self.state_s, self.width_s)

    def ended(self) -> _Data:
        """The finite values alone."""
        found = [(at_s[np.isfinite(value)], value[np.isfinite(value)]) for at_s, value in self.values]
        return replace(self, values=found)

    def failures(self) -> _Data:
        """A value for each turn of the windows: infinite where it failed, else 0."""
        found = []
        for window, (at_s, value) in zip(self.windows, self.values, strict=True):
            lost_s, begun_s = at_s[np.isinf(value)], window.begun_s
            well_s = begun_s[(begun_s >= 0) & (begun_s < window.lasts_s) & ~np.isin(begun_s, lost_s)]
            each = np.concatenate([np.full(len(lost_s), np.inf), np.zeros(len(well_s))])
            found.append((np.concatenate([lost_s, well_s]), each))
        return replace(self, values=found)

    def parts(self, of: Callable[[Floats], Any]) -> tuple[tuple[float, int], ...]:
        """A figure of each window's values, and how many there are."""
        return tuple((float(of(value)), len(value)) for _, value in self.values if len(value))

    @property
    def together(self) -> Floats:
        return np.concatenate([value for _, value in self.values])


def held(condition: Condition, number: int, windows: Sequence[Window], errors: Errors) -> Held:
    """One condition, the `number`-th of each window's samples, over all windows of one load."""
    width_s = series.bin_width_s(windows)
    values = [(window.samples[number].at_s, window.samples[number].value) for window in windows]
    data = _Data(windows, values, series.state_relaxation_s(windows, width_s), width_s)
    count = len(data.together)
    if not count:  # no turn has a value: nothing is known, and nothing follows
        return Held(condition, nan, nan, nan, None, nan, 0.0, "undecided", 0, 0.0, data.state_s, 0)
    if condition.share is not None:
        parts = data.parts(lambda value: (value <= condition.limit).mean())
        return replace(_share(condition, condition.share, data, errors), parts=parts)
    found = _mean_and_failures(condition, data, Errors(errors.holds, errors.breaks / 2))
    return replace(found, parts=data.ended().parts(np.mean))


def _mean_and_failures(condition: Condition, data: _Data, errors: Errors) -> Held:
    """A mean of the turns that ended well; where some did not, it holds only if they are few for sure."""
    ended, count = data.ended(), len(data.together)
    if len(ended.together) == count:
        return _mean(condition, data, errors)
    spared = _share(SPARED, 0.99, data.failures(), errors)
    if len(ended.together):
        found = _mean(condition, ended, errors)
    else:
        found = Held(condition, inf, inf, inf, None, -inf, 0.0, "undecided", count, 0.0, data.state_s, 0)
    verdicts: tuple[Verdict, Verdict] = (found.verdict, spared.verdict)
    verdict: Verdict = "breaks" if "breaks" in verdicts else "holds" if verdicts == ("holds", "holds") else "undecided"
    found = replace(found, verdict=verdict, count=count, failed=1 - spared.value)
    worse = isfinite(found.margin) and spared.margin < found.margin
    return replace(found, margin=spared.margin, weight=spared.weight) if worse else found


def _mean(condition: Condition, data: _Data, errors: Errors) -> Held:
    """A mean, its error never less than that of as many independent values.

    A short window may seem to say more, where its bins happen to make up for each other; that is not to be counted on.
    """
    count = len(data.together)
    found = data.mean()
    alone = float(np.std(data.together)) / sqrt(count)
    error = max(found.error, alone)
    low = max(0.0, found.mean - student_t(errors.breaks, found.freedom) * error)
    high = found.mean + student_t(errors.holds, found.freedom) * error
    spread = max(error / found.mean, 1e-6) if found.mean > 0 else 1.0
    return Held(
        condition=condition,
        value=found.mean,
        low=low,
        high=high,
        figure=found.mean,
        figure_low=low,
        figure_high=high,
        margin=log(condition.limit / found.mean) if found.mean > 0 else inf,
        weight=1 / spread**2,
        verdict="holds" if high < condition.limit else "breaks" if low >= condition.limit else "undecided",
        count=count,
        effective=count if error == 0 else count * (alone / error) ** 2,
        relaxation_s=found.relaxation_s,
        batches=found.batches,
    )


def _share(condition: Condition, share: float, data: _Data, errors: Errors) -> Held:
    """Wilson's interval with the effective number of values.

    The design effect is that of keeping the limit; where few break it, it is also taken at the limit that just the wanted
    share keeps, since a window without a breach says nothing of how breaches come; where all do, likewise.
    """
    count = len(data.together)
    found = data.within(condition.limit)
    effect, freedom = _design_effect(found), found.freedom
    ordered = np.sort(data.together)
    quantile = float(ordered[max(0, int(np.ceil(share * count)) - 1)])
    if (found.mean >= share or found.mean == 0) and condition.measure != FAILED:
        near = data.within(quantile)
        effect, freedom = max(effect, _design_effect(near)), min(freedom, near.freedom)
    effective = count / effect
    low, _ = wilson(found.mean, effective, student_t(errors.holds, freedom))
    _, high = wilson(found.mean, effective, student_t(errors.breaks, freedom))
    half = student_t(errors.holds, freedom) * sqrt(share * (1 - share) / effective)
    around = [_ordered(ordered, share - half), _ordered(ordered, share + half)]
    sure = (found.mean * effective + _FEW) / (effective + 2 * _FEW)
    return Held(
        condition=condition,
        value=found.mean,
        low=low,
        high=high,
        figure=1 - found.mean if condition.measure == FAILED else quantile if isfinite(quantile) else None,
        figure_low=1 - high if condition.measure == FAILED else around[0],
        figure_high=1 - low if condition.measure == FAILED else around[1],
        margin=_logit(sure) - _logit(share),
        weight=effective * sure * (1 - sure),
        verdict="holds" if low > share else "breaks" if high < share else "undecided",
        count=count,
        effective=effective,
        relaxation_s=found.relaxation_s,
        batches=found.batches,
    )


def _design_effect(found: series.Ratio) -> float:
    """Variance of the share over that of as many independent values; at least 1."""
    alone = found.mean * (1 - found.mean) / found.count
    return max(1.0, found.error**2 / alone) if alone > 0 else 1.0


def wilson(share: float, effective: float, t: float) -> tuple[float, float]:
    """Wilson's interval of a share of so many independent values, with t in place of the normal quantile."""
    if not isfinite(t) or effective <= 0 or isnan(share):
        return 0.0, 1.0
    centre = (share + t * t / (2 * effective)) / (1 + t * t / effective)
    half = t / (1 + t * t / effective) * sqrt(share * (1 - share) / effective + (t / (2 * effective)) ** 2)
    return max(0.0, centre - half), min(1.0, centre + half)


def _ordered(values: Floats, share: float) -> float | None:
    """The order statistic that so large a share of the values does not exceed; None where that is beyond them."""
    place = int(np.ceil(share * len(values))) - 1 if isfinite(share) else -1
    found = float(values[place]) if 0 <= place < len(values) else inf
    return found if isfinite(found) else None


def _logit(share: float) -> float:
    return log(share / (1 - share))


@lru_cache(maxsize=1024)
def student_t(alpha: float, freedom: int) -> float:
    """One-sided quantile; infinite without a degree of freedom."""
    if freedom < 1:
        return inf
    from scipy import stats  # half a second: only where a search is made

    return float(stats.t.isf(alpha, freedom))
