"""Lateness of the simulator: write time less due time of every event, in buckets of 10 microseconds."""

from array import array
from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import Any

from .engine_metrics import Histogram

STEP_NS = 10_000
BUCKETS = 20_000  # the last one holds everything from 200 ms on
BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1)


class Lateness:
    """Counts by lateness. Quantiles are upper bounds of their bucket; from 200 ms on they are the maximum.

    Values are sorted into buckets together (`settle`): at 50,000 events a second this is cheaper than one by one.
    """

    __slots__ = ("_counts", "_fresh", "blocked", "count", "max_ns", "sum_ns")

    def __init__(self) -> None:
        self._fresh: list[int] = []  # not in a bucket yet
        self.reset()

    def book(self, late_ns: int, taken: bool) -> None:
        """Count one event, as blocked if the kernel did not take all of it."""
        if taken:
            self._fresh.append(late_ns)
        else:
            self.blocked += 1

    def reset(self) -> None:
        """Reset to zero."""
        self._fresh.clear()
        self._counts = array("q", bytes(8 * BUCKETS))
        self.count = 0
        self.sum_ns = 0
        self.max_ns = 0
        self.blocked = 0  # events for a client that did not read: not the server's lateness

    def settle(self, least: int = 1) -> None:
        """Sort the new values into buckets if there are at least `least`."""
        fresh = self._fresh
        if len(fresh) < least:
            return
        for bucket, times in Counter(late_ns // STEP_NS for late_ns in fresh).items():
            self._counts[max(0, min(bucket, BUCKETS - 1))] += times
        self.count += len(fresh)
        self.sum_ns += sum(fresh)
        self.max_ns = max(self.max_ns, *fresh)
        fresh.clear()

    def quantile_ms(self, share: float) -> float | None:
        """Lateness quantile; None without events."""
        return self._quantiles_ms(share)[0]

    def _quantiles_ms(self, *shares: float) -> list[float | None]:
        # While they are counted nothing is written: a sum that runs through in C, and a look at it for each.
        self.settle()
        if not self.count:
            return [None] * len(shares)
        seen = array("q", accumulate(self._counts))
        found: list[float | None] = []
        for share in shares:
            index = bisect_left(seen, max(1, share * self.count))
            bound_ns = (index + 1) * STEP_NS if index < BUCKETS - 1 else self.max_ns
            found.append(min(bound_ns, self.max_ns) / 1e6)
        return found

    def summary(self) -> dict[str, Any]:
        """Count, mean, p50, p99, p999 and max in milliseconds; None without events."""
        p50, p99, p999 = self._quantiles_ms(0.50, 0.99, 0.999)
        return {
            "count": self.count,
            "mean": self.sum_ns / self.count / 1e6 if self.count else None,
            "p50": p50,
            "p99": p99,
            "p999": p999,
            "max": self.max_ns / 1e6 if self.count else None,
        }

    def histogram(self) -> Histogram:
        """The same counts in coarser buckets, in seconds."""
        self.settle()
        result = Histogram(BOUNDS_S)
        start = 0
        for place, bound in enumerate(BOUNDS_S):
            end = round(bound * 1e9) // STEP_NS
            result.counts[place] = sum(self._counts[start:end])
            start = end
        result.counts[-1] = sum(self._counts[start:])
        result.sum = self.sum_ns / 1e9
        return result
