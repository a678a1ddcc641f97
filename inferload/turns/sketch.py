"""Mergeable quantile sketch with a bounded relative error: DDSketch (Masson, Rim, Lee, VLDB 2019).

Bucket i contains the values in (g^(i-1), g^i] with g = (1 + a) / (1 - a); the estimate 2 g^i / (g + 1) is within a factor
1 +- a of every value of its bucket. Counts and the sum are whole numbers, so the result of merging does not depend on the
order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SMALLEST = 1e-9  # smaller absolute values count as 0
LARGEST = 1e300  # greatest absolute value
_PER_UNIT = 1e6  # the sum is in whole millionths: of a millisecond, that is a nanosecond
_MOST = 10**18  # count of a wire document
_EXACT = 2.0**52  # float sums of whole numbers are exact below this
_MOST_WAITING = 8_192  # gathered values, so that the cost per value is low
_NONE = np.zeros(0, dtype=np.int64)
_SPARE = 256  # buckets that a store grows by at each end


Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
_Buckets = tuple[list[Annotated[int, msgspec.Meta(ge=-(10**8), le=10**8)]], list[Count]]
_Value = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]


class SketchWire(TypedDict):
    """Sketch in a message or a file, as from another machine."""

    error: Annotated[float, msgspec.Meta(ge=1e-4, lt=1)]
    positive: _Buckets
    negative: _Buckets
    zeros: Count
    total: Annotated[str, msgspec.Meta(pattern=r"^-?\d{1,300}$")]
    min: _Value | None
    max: _Value | None


def rank(q: float, n: int) -> int:
    """Nearest rank of quantile q in n sorted values, from 1 to n: the smallest k with k / n >= q."""
    return min(max(math.ceil(q * n - 1e-9), 1), n)


class Sketch:
    """Counts of values in buckets of equal relative width, separate for negative values.

    `min`, `max` and `mean` are None if it is empty.
    """

    __slots__ = (
        "_count", "_gathered", "_inverse_log", "_max", "_min", "_negative", "_positive", "_total", "_waiting",
        "_zeros", "relative_error",
    )  # fmt: skip

    def __init__(self, relative_error: float = 0.0025) -> None:
        if not 0 < relative_error < 1:
            raise ValueError(f"relative_error {relative_error}: must lie between 0 and 1")
        self.relative_error = relative_error
        self._inverse_log = 1 / math.log((1 + relative_error) / (1 - relative_error))
        self._positive = _Store()
        self._negative = _Store()
        self._zeros = 0
        self._total = 0  # in millionths
        self._count = 0
        self._min: float | None = None
        self._max: float | None = None
        self._gathered: list[Floats] = []
        self._waiting = 0  # gathered values that are not counted yet

    @property
    def count(self) -> int:
        self._settle()
        return self._count

    @property
    def min(self) -> float | None:
        """Smallest value, exact."""
        self._settle()
        return self._min

    @property
    def max(self) -> float | None:
        """Largest value, exact."""
        self._settle()
        return self._max

    @property
    def total(self) -> float:
        """Sum of the values, each rounded to a millionth."""
        self._settle()
        return self._total / _PER_UNIT

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def add_many(self, values: Floats) -> None:
        """Count each value of an array once."""
        if not len(values):
            return
        low, high = float(values.min()) + 0.0, float(values.max()) + 0.0
        if not -LARGEST <= low <= high <= LARGEST:  # NaN fails too
            raise ValueError(f"values from {low} to {high}: a sketch holds numbers up to {LARGEST}")
        if low > SMALLEST:
            self._positive.add_many(self._buckets(values))
        else:
            self._add_mixed(values)
        self._total += _whole_sum(np.rint(values * _PER_UNIT))
        self._span(len(values), low, high)

    def gather(self, values: Floats) -> None:
        """Buffer values for `add_many`, at a tenth of its cost for a few values. They are counted before any result is read.

        The array must not change afterwards. Errors of `add_many` are raised when the values are counted.
        """
        self._gathered.append(values)
        self._waiting += len(values)
        if self._waiting > _MOST_WAITING:
            self._settle()

    def absorb(self, other: Sketch) -> None:
        """Add another sketch, which stays unchanged."""
        if (error := other.relative_error) != self.relative_error:
            raise ValueError(f"sketches of relative error {self.relative_error} and {error} do not merge")
        self._settle()
        other._settle()
        if other._min is None or other._max is None:
            return
        self._positive.absorb(other._positive)
        self._negative.absorb(other._negative)
        self._zeros += other._zeros
        self._total += other._total
        self._span(other._count, other._min, other._max)

    def quantile(self, q: float) -> float | None:
        """Return the value at the nearest rank, within the relative error; None if empty."""
        if not 0 <= q <= 1:
            raise ValueError(f"quantile {q}: must lie between 0 and 1")
        if self.min is None or self.max is None:
            return None
        at = rank(q, self.count)
        if at == 1:
            return self.min
        if at == self.count:
            return self.max
        return min(max(self._estimate(at), self.min), self.max)

    def counts_up_to(self, bounds: Sequence[float]) -> list[int]:
        """Return, for each positive bound, the number of values up to it, of which the largest may exceed it slightly.

        A bound inside a bucket counts the whole bucket: every value <= bound, and none above bound * (1 + a) / (1 - a).
        """
        self._settle()
        below = self._zeros + self._negative.count()
        buckets = self._buckets(np.array(bounds, dtype=np.float64))
        return [below + int(count) for count in self._positive.counts_up_to(buckets)]

    def to_wire(self) -> dict[str, Any]:
        """Plain numbers, lists and text, for a message or a file."""
        self._settle()
        return {
            "error": self.relative_error,
            "positive": self._positive.to_wire(),
            "negative": self._negative.to_wire(),
            "zeros": self._zeros,
            "total": str(self._total),  # may need more than the 64 bits of a message's number
            "min": self.min,
            "max": self.max,
        }

    @classmethod
    def from_wire(cls, document: Any) -> Sketch:
        """Return the sketch of a `to_wire` document; ValueError if it is none."""
        wire = msgspec.convert(document, SketchWire)
        sketch = cls(wire["error"])
        first, last = _outer_buckets(sketch._inverse_log)
        sketch._positive, positive = _Store.from_wire(wire["positive"], first, last)
        sketch._negative, negative = _Store.from_wire(wire["negative"], first, last)
        sketch._zeros = wire["zeros"]
        sketch._total = int(wire["total"])
        sketch._count = sketch._zeros + positive + negative
        sketch._min, sketch._max = wire["min"], wire["max"]
        if (sketch._min is None or sketch._max is None) != (sketch._count == 0):
            raise ValueError(f"sketch of {sketch._count} values: min is {sketch._min}, max is {sketch._max}")
        return sketch

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sketch):
            return NotImplemented
        return self.to_wire() == other.to_wire()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Sketch(count={self.count}, min={self.min}, max={self.max}, mean={self.mean})"

    def _buckets(self, sizes: Floats) -> Ints:
        return _buckets_of(sizes, self._inverse_log)

    def _add_mixed(self, values: Floats) -> None:
        above, below = values[values > SMALLEST], values[values < -SMALLEST]
        self._zeros += len(values) - len(above) - len(below)
        if len(above):
            self._positive.add_many(self._buckets(above))
        if len(below):
            self._negative.add_many(self._buckets(-below))

    def _span(self, count: int, low: float, high: float) -> None:
        self._count += count
        self._min = low if self._min is None or low < self._min else self._min
        self._max = high if self._max is None or high > self._max else self._max

    def _settle(self) -> None:
        """Count the gathered values."""
        if self._gathered:
            gathered, self._gathered, self._waiting = self._gathered, [], 0
            self.add_many(np.concatenate(gathered))

    def _estimate(self, at: int) -> float:
        below = self._negative.count()
        if at <= below:
            return -self._middle(self._negative.bucket_at(below - at + 1))
        if at <= below + self._zeros:
            return 0.0
        return self._middle(self._positive.bucket_at(at - below - self._zeros))

    def _middle(self, bucket: int) -> float:
        """2 g^i / (g + 1); as g + 1 = 2 / (1 - a), that is g^i (1 - a)."""
        return math.exp(bucket / self._inverse_log) * (1 - self.relative_error)


def _buckets_of(sizes: Floats, inverse_log: float) -> Ints:
    return np.ceil(np.log(sizes) * inverse_log).astype(np.int64)


@lru_cache(maxsize=16)  # errors of messages are not trusted
def _outer_buckets(inverse_log: float) -> tuple[int, int]:
    """Return the buckets of the smallest and of the largest value."""
    first, last = _buckets_of(np.array([SMALLEST, LARGEST]), inverse_log).tolist()
    return first, last


class _Store:
    """Counts per bucket in an array that grows at both ends. A scale from 1 us to 1 h has 4,400 buckets.

    One from a message keeps its used buckets until it changes: most are only added to another.
    """

    __slots__ = ("_first", "_received", "_spread")

    def __init__(self) -> None:
        self._spread: Ints = _NONE
        self._first = 0  # bucket number of the array's first cell
        self._received: tuple[Ints, Ints] | None = None  # used buckets and their counts, not in the array yet

    @property
    def _counts(self) -> Ints:
        if self._received is not None:
            received, self._received = self._received, None
            self._add(*received)
        return self._spread

    def add_many(self, buckets: Ints) -> None:
        self._reach(int(buckets.min()), int(buckets.max()))
        np.add.at(self._counts, buckets - self._first, 1)

    def absorb(self, other: _Store) -> None:
        buckets, counts = other._used()
        if len(buckets):
            self._add(buckets, counts)

    def count(self) -> int:
        return int(self._counts.sum())

    def bucket_at(self, at: int) -> int:
        """Return the bucket of the value of rank `at` (from 1)."""
        return int(np.searchsorted(np.cumsum(self._counts), at)) + self._first

    def counts_up_to(self, buckets: Ints) -> Ints:
        """Return the number of values in each bucket and all below it."""
        sums: Ints = np.concatenate(([0], np.cumsum(self._counts)))
        return sums[np.clip(buckets - self._first + 1, 0, len(self._counts))]

    def to_wire(self) -> list[list[int]]:
        """Return [first used bucket and the steps to each next one, their counts], which are small numbers."""
        buckets, counts = self._used()
        return [[*buckets[:1].tolist(), *np.diff(buckets).tolist()], counts.tolist()]

    @classmethod
    def from_wire(cls, wire: tuple[list[int], list[int]], first: int, last: int) -> tuple[_Store, int]:
        """Return the store of a `to_wire` list, and the sum of its counts; ValueError for a bucket outside of `first` to `last`."""
        store = cls()
        steps, counts = wire
        total = sum(counts)
        if len(steps) != len(counts) or min(steps[1:], default=1) < 1 or total > _MOST:
            raise ValueError("sketch: its buckets and their counts do not fit")
        if steps:
            buckets = np.array(steps, dtype=np.int64).cumsum()
            if buckets[0] < first or buckets[-1] > last:
                raise ValueError(f"sketch: buckets {buckets[0]} to {buckets[-1]}, allowed are {first} to {last}")
            store._received = buckets, np.array(counts, dtype=np.int64)
        return store, total

    def _used(self) -> tuple[Ints, Ints]:
        """Return the used buckets in order, and their counts."""
        if self._received is not None:
            return self._received
        used = self._spread.nonzero()[0]
        return used + self._first, self._spread[used]

    def _add(self, buckets: Ints, counts: Ints) -> None:
        """Add counts of buckets, which are in order."""
        self._reach(int(buckets[0]), int(buckets[-1]))
        self._counts[buckets - self._first] += counts

    def _reach(self, low: int, high: int) -> None:
        """Grow the array to contain the buckets from `low` to `high`."""
        counts = self._counts
        end = self._first + len(counts)
        if len(counts) and self._first <= low and high < end:
            return
        if not len(counts):
            self._first = end = low
        first = self._first if low >= self._first else low - _SPARE
        end = end if high < end else high + 1 + _SPARE
        grown: Ints = np.zeros(end - first, dtype=np.int64)
        grown[self._first - first : self._first - first + len(counts)] = counts
        self._first, self._spread = first, grown


def _whole_sum(whole: Floats) -> int:
    """Exact sum of whole numbers stored as floats."""
    total = float(np.abs(whole).sum())
    return int(whole.sum()) if total < _EXACT else sum(int(part) for part in whole.tolist())
