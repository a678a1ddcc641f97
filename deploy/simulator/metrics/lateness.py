"""Lateness of the simulator: write time minus due time of each event, in buckets of 10 us."""

from array import array
from bisect import bisect_left
from collections import Counter
from itertools import accumulate, pairwise
from typing import Any

from .engine_metrics import Histogram

STEP_NS = 10_000
BUCKETS = 20_000  # the last one is unbounded, from 200 ms on
BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1)


class Lateness:
    """Counts by lateness. Quantiles are upper bounds of their bucket, or the maximum from 200 ms on.

    Values are sorted into buckets in batches (`settle`), which is cheaper than one by one at 50,000 events/s.
    """

    __slots__ = ("_counts", "_pending", "blocked", "count", "max_ns", "sum_ns")

    def __init__(self) -> None:
        self._pending: list[int] = []  # not in a bucket yet
        self.reset()

    def book(self, late_ns: int, taken: bool) -> None:
        """Count an event, as blocked if the kernel did not take all of it."""
        if taken:
            self._pending.append(late_ns)
        else:
            self.blocked += 1

    def reset(self) -> None:
        """Reset to zero."""
        self._pending.clear()
        self._counts = array("q", bytes(8 * BUCKETS))
        self.count = 0
        self.sum_ns = 0
        self.max_ns = 0
        self.blocked = 0  # events to a client that does not read, which is not lateness of the server

    def settle(self, min_count: int = 1) -> None:
        """Sort the pending values into buckets if there are at least `min_count`."""
        pending = self._pending
        if len(pending) < min_count:
            return
        for bucket, count in Counter(late_ns // STEP_NS for late_ns in pending).items():
            self._counts[max(0, min(bucket, BUCKETS - 1))] += count
        self.count += len(pending)
        self.sum_ns += sum(pending)
        self.max_ns = max(self.max_ns, *pending)
        pending.clear()

    def quantiles_ms(self, *shares: float) -> list[float | None]:
        """Lateness quantiles; None without events."""
        self.settle()
        if not self.count:
            return [None] * len(shares)
        cumulative = array("q", accumulate(self._counts))  # in C, since no event is written meanwhile
        quantiles: list[float | None] = []
        for share in shares:
            index = bisect_left(cumulative, max(1, share * self.count))
            bound_ns = (index + 1) * STEP_NS if index < BUCKETS - 1 else self.max_ns
            quantiles.append(min(bound_ns, self.max_ns) / 1e6)
        return quantiles

    def summary(self) -> dict[str, Any]:
        """Count, and mean, p50, p99, p999 and max in ms (None without events)."""
        quantiles = dict(zip(("p50", "p99", "p999"), self.quantiles_ms(0.50, 0.99, 0.999), strict=True))
        mean, most = (self.sum_ns / self.count / 1e6, self.max_ns / 1e6) if self.count else (None, None)
        return {"count": self.count, "mean": mean, **quantiles, "max": most}

    def histogram(self) -> Histogram:
        """Counts in coarser buckets, in seconds."""
        self.settle()
        result = Histogram(BOUNDS_S)
        counts = self._counts[: self.max_ns // STEP_NS + 1]  # the others are 0
        ends = [0, *(round(bound * 1e9) // STEP_NS for bound in BOUNDS_S), BUCKETS]
        result.counts = [sum(counts[start:end]) for start, end in pairwise(ends)]
        result.sum = self.sum_ns / 1e9
        return result
