"""Time series of one-second points in bounded memory. No I/O.

The newest points are at full resolution. Older ones are in buckets with minimum, mean and maximum of each column; all buckets
have the same number of points, which doubles whenever the buckets are full. Unknown values are NaN inside and None outside.
"""

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
from msgspec import Struct, field

from inferload.turns.sketch import Floats

Values = list[float | None]

RECENT = 600  # points at full resolution
BUCKETS = 480  # of older points
_DIGITS = 4  # significant digits of a value for a chart


class Points(Struct, frozen=True):
    """Consecutive points: times in seconds, and the values of each column."""

    t_s: list[float]
    columns: dict[str, Values]


class History(Struct, frozen=True):
    """Buckets of consecutive points. `t_s`: begin of each; `low`, `mean` and `high`: of the known values of each column."""

    t_s: list[float]
    low: dict[str, Values]
    mean: dict[str, Values]
    high: dict[str, Values]


class _Column(Struct):
    """Values of one column: recent ones, and arrays over the buckets."""

    recent: deque[float]
    low: Floats = field(default_factory=lambda: np.full(BUCKETS, np.nan))
    high: Floats = field(default_factory=lambda: np.full(BUCKETS, np.nan))
    total: Floats = field(default_factory=lambda: np.zeros(BUCKETS))
    known: Floats = field(default_factory=lambda: np.zeros(BUCKETS))

    def fold(self, bucket: int, value: float) -> None:
        if math.isnan(value):
            return
        self.low[bucket] = np.fmin(self.low[bucket], value)
        self.high[bucket] = np.fmax(self.high[bucket], value)
        self.total[bucket] += value
        self.known[bucket] += 1

    def halve(self) -> None:
        """Merge pairs of buckets."""
        half = BUCKETS // 2
        for values, merge in ((self.low, np.fmin), (self.high, np.fmax), (self.total, np.add), (self.known, np.add)):
            values[:half] = merge(values[0::2], values[1::2])
        for values, empty in ((self.low, np.nan), (self.high, np.nan), (self.total, 0.0), (self.known, 0.0)):
            values[half:] = empty


class Series:
    """Points with named columns. A column that begins late is unknown before; one that is missing in a point is unknown there.

    `sequence`: number of points so far; points are numbered from 1.
    """

    def __init__(self) -> None:
        self.sequence = 0
        self._t_s: deque[float] = deque()
        self._starts: list[float] = []  # of the buckets
        self._per_bucket = 1
        self._in_last = 0  # points in the last bucket
        self._columns: dict[str, _Column] = {}

    @property
    def columns(self) -> list[str]:
        """Names of all columns, in the order of their first appearance."""
        return list(self._columns)

    @property
    def newest_s(self) -> float:
        """Time of the newest point; 0 without points. It exceeds their number after a pause without points."""
        return self._t_s[-1] if self._t_s else 0.0

    def append(self, t_s: float, values: Mapping[str, float | None]) -> None:
        """Add a point. `t_s` must increase from point to point."""
        for name in values:
            if name not in self._columns:
                self._columns[name] = _Column(deque([math.nan] * len(self._t_s)))
        self._t_s.append(t_s)
        self.sequence += 1
        for name, column in self._columns.items():
            value = values.get(name)
            column.recent.append(float(value) if value is not None and math.isfinite(value) else math.nan)
        if len(self._t_s) > RECENT:
            self._age()

    def after(self, sequence: int, names: Collection[str]) -> Points | None:
        """Return the points with a greater number; None if one of them is no longer at full resolution."""
        skipped = sequence - (self.sequence - len(self._t_s))
        if skipped < 0 or sequence > self.sequence:
            return None
        return Points(
            list(islice(self._t_s, skipped, None)),
            {
                name: [_shown(value) for value in islice(column.recent, skipped, None)]
                for name, column in self._chosen(names)
            },
        )

    def newest(self, most: int, names: Collection[str]) -> Points:
        """Return at most `most` of the newest points."""
        points = self.after(max(self.sequence - most, self.sequence - len(self._t_s)), names)
        assert points is not None
        return points

    def history(self, before: int, most: int, names: Collection[str]) -> History:
        """Return all points up to number `before`, in at most `most` buckets."""
        recent = max(0, before - (self.sequence - len(self._t_s)))
        starts = [*self._starts, *islice(self._t_s, recent)]
        weights = [self._per_bucket] * len(self._starts) + [1] * recent
        groups = _groups(weights, most)
        history = History([starts[first] for first in groups], {}, {}, {})
        for name, column in self._chosen(names):
            ends = list(islice(column.recent, recent))
            used, tail = len(self._starts), np.array(ends, dtype=np.float64)
            known = ~np.isnan(tail)
            low = _reduced(np.fmin, column.low[:used], tail, groups)
            high = _reduced(np.fmax, column.high[:used], tail, groups)
            total = _reduced(np.add, column.total[:used], np.where(known, tail, 0.0), groups)
            count = _reduced(np.add, column.known[:used], known.astype(np.float64), groups)
            history.low[name] = [_shown(value) for value in low]
            history.high[name] = [_shown(value) for value in high]
            history.mean[name] = [_shown(value) for value in np.divide(total, count, where=count > 0, out=low.copy())]
        return history

    def _chosen(self, names: Collection[str]) -> Iterator[tuple[str, _Column]]:
        return ((name, self._columns[name]) for name in names if name in self._columns)

    def _age(self) -> None:
        """Move the oldest recent point to the buckets."""
        t_s = self._t_s.popleft()
        if self._in_last == self._per_bucket or not self._starts:
            if len(self._starts) == BUCKETS:
                self._starts = self._starts[0::2]
                self._per_bucket *= 2
                for column in self._columns.values():
                    column.halve()
            self._starts.append(t_s)
            self._in_last = 0
        self._in_last += 1
        for column in self._columns.values():
            column.fold(len(self._starts) - 1, column.recent.popleft())


def _groups(weights: Sequence[int], most: int) -> list[int]:
    """Return the first index of each of at most `most` groups of about equal weight."""
    width = max(1.0, sum(weights) / max(1, most))
    groups: list[int] = []
    behind = 0
    for index, weight in enumerate(weights):
        if len(groups) < most and behind >= len(groups) * width - 1e-9:
            groups.append(index)
        behind += weight
    return groups


def _reduced(merge: np.ufunc, head: Floats, tail: Floats, groups: list[int]) -> Floats:
    values = np.concatenate([head, tail])
    return np.asarray(merge.reduceat(values, groups), dtype=np.float64) if len(values) else values


def _shown(value: float) -> float | int | None:
    """Round a value for a chart; None if it is unknown."""
    if math.isnan(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded
