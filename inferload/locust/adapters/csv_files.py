"""Locust's own CSV forms for one run: columns and names as Locust writes them, but complete to the last request.

Locust's writer leaves out the last second, rounds percentiles to whole milliseconds and keeps only Aggregated in its history;
these files have Locust's columns, every row, and fractions. `--csv` is left to whoever gives it.

Locust counts its rates by the wall clocks of all workers; where one of these is far off, they are counted here by ours.
"""

import csv
import logging
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import gevent
from locust.stats import get_readable_percentiles

from inferload import rundir
from inferload.measure.clock import NS_PER_S, Anchor, now_ns

logger = logging.getLogger(__name__)

_TURN_FAILED = re.compile(r"^TurnFailed\(['\"](\w+)")
_SPAN_S = 10.0  # of a current rate
_AT_ONCE = 50  # rows written without a break
_REPORT_S = 4.0  # workers tell Locust every three seconds
PERCENTILES = (0.50, 0.66, 0.75, 0.80, 0.90, 0.95, 0.98, 0.99, 0.999, 0.9999, 1.0)
_NAMES = get_readable_percentiles(list(PERCENTILES))
_STATS_COLUMNS = [
    "Type", "Name", "Request Count", "Failure Count", "Median Response Time", "Average Response Time", "Min Response Time",
    "Max Response Time", "Average Content Size", "Requests/s", "Failures/s", *_NAMES,
]  # fmt: skip
_HISTORY_COLUMNS = [
    "Timestamp", "User Count", "Type", "Name", "Requests/s", "Failures/s", *_NAMES, "Total Request Count",
    "Total Failure Count", "Total Median Response Time", "Total Average Response Time", "Total Min Response Time",
    "Total Max Response Time", "Total Average Content Size",
]  # fmt: skip


class Rates:
    """Rates a second of Locust's entries, by its own timestamps or, where these cannot be, by the monotonic clock."""

    def __init__(self, stats: Any) -> None:
        self._stats = stats
        self._began_ns = self._last_ns = now_ns()
        self._requests = 0
        self._seen: deque[tuple[int, dict[Any, tuple[int, int]]]] = deque()

    def look(self) -> None:
        """Take note of all counts: once a second."""
        at_ns, entries = now_ns(), _entries(self._stats)
        if entries[-1].num_requests != self._requests:
            self._requests, self._last_ns = entries[-1].num_requests, at_ns
        self._seen.append((at_ns, {_key(entry): (entry.num_requests, entry.num_failures) for entry in entries}))
        while at_ns - self._seen[0][0] > (_SPAN_S + 0.5) * NS_PER_S:
            self._seen.popleft()

    @property
    def plausible(self) -> bool:
        """Whether Locust's timestamps agree with the time that has passed here."""
        last_s, start_s = self._stats.last_request_timestamp, self._stats.start_time
        return last_s is None or -_REPORT_S <= self._passed_s - (last_s - start_s) <= _REPORT_S

    @property
    def _passed_s(self) -> float:
        return (self._last_ns - self._began_ns) / NS_PER_S

    def total(self, entry: Any) -> tuple[float, float]:
        """Requests and failures a second, from the load's start to the last request."""
        if self.plausible:
            return entry.total_rps, entry.total_fail_per_sec
        passed_s = self._passed_s
        return entry.num_requests / passed_s, entry.num_failures / passed_s

    def current(self, entry: Any) -> tuple[float, float]:
        """The same of about the last ten seconds."""
        if self.plausible:
            return entry.current_rps, entry.current_fail_per_sec
        (from_ns, before), (until_ns, after) = self._seen[0], self._seen[-1]
        passed_s = max(1.0, (until_ns - from_ns) / NS_PER_S)
        counts = zip(after[_key(entry)], before.get(_key(entry), (0, 0)), strict=True)
        requests, failures = (now - then for now, then in counts)
        return requests / passed_s, failures / passed_s


class History:
    """Writes a row per second and entry while the run lasts, and the other three files at its end.

    `anchor`: of the run, so that timestamps go on evenly when somebody sets the wall clock.
    """

    def __init__(self, folder: Path, environment: Any, anchor: Anchor) -> None:
        self._folder = folder
        self._environment = environment
        self._anchor = anchor
        self.errors: list[str] = []  # of files that could not be written: path and error
        self._rates = Rates(environment.stats)
        self._file = (folder / rundir.LOCUST_HISTORY).open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)
        self._writer.writerow(_HISTORY_COLUMNS)
        self._greenlet = gevent.spawn(self._write)

    def finish(self, messages: Mapping[str, str]) -> None:
        """The last row of the history, and the tables; a write that fails is kept in `errors`.

        `messages`: the first error message of each class of failure, which goes behind Locust's own columns.
        """
        self._greenlet.kill()
        with self._kept(rundir.LOCUST_HISTORY), self._file:
            self._write_rows()
        stats = self._environment.stats
        rows = [_stats_row(entry, *self._rates.total(entry)) for entry in _entries(stats)]
        self._write_table(rundir.LOCUST_STATS, _STATS_COLUMNS, rows)
        self._write_table(
            rundir.LOCUST_FAILURES,
            ["Method", "Name", "Error", "Occurrences", "First Seen", "Last Seen", "First Message"],
            [_failure_row(error, messages) for error in stats.errors.values()],
        )
        exceptions = self._environment.runner.exceptions.values()
        self._write_table(
            rundir.LOCUST_EXCEPTIONS,
            ["Count", "Message", "Traceback", "Nodes"],
            [[e["count"], e["msg"], e["traceback"], ", ".join(e["nodes"])] for e in exceptions],
        )

    def _write(self) -> None:
        with self._kept(rundir.LOCUST_HISTORY):
            while True:
                gevent.sleep(1.0 - (self._wall_ns() % NS_PER_S) / NS_PER_S)  # on the second, as Locust's own are
                self._write_rows()
                self._file.flush()
        while True:  # rates are counted on
            gevent.sleep(1.0)
            self._rates.look()

    @contextmanager
    def _kept(self, name: str) -> Iterator[None]:
        """Keep the first error of a file; the run goes on without the rest of it."""
        try:
            yield
        except OSError as error:
            path = str(self._folder / name)
            if not any(known.startswith(f"{path}: ") for known in self.errors):
                self.errors.append(f"{path}: {rundir.reason(error)}")
                logger.error("Locust's tables cannot be written: %s; the run goes on without them", self.errors[-1])

    def _write_table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        with self._kept(name), (self._folder / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(rows)

    def _wall_ns(self) -> int:
        return self._anchor.to_wall_ns(now_ns())

    def _write_rows(self) -> None:
        now_s, users = self._wall_ns() // NS_PER_S, self._environment.runner.user_count
        self._rates.look()
        for number, entry in enumerate(_entries(self._environment.stats)):
            if number % _AT_ONCE == _AT_ONCE - 1:
                gevent.sleep(0)  # hundreds of rows at once would hold up the event loop for tens of milliseconds
            self._writer.writerow([now_s, users, *_history_row(entry, *self._rates.current(entry))])


def _key(entry: Any) -> tuple[Any, Any]:
    return entry.name, entry.method


def _entries(stats: Any) -> list[Any]:
    """Every entry in order of name and type, Aggregated last."""
    return [*sorted(stats.entries.values(), key=lambda entry: (entry.name, entry.method or "")), stats.total]


def _ms(value: float | None) -> float | str:
    return "N/A" if value is None else round(value, 3)


def _percentiles(entry: Any) -> list[float | str]:
    """As Locust counts them: the longest time such that no more than n q samples are shorter."""
    if not entry.num_requests or not entry.response_times:
        return ["N/A"] * len(PERCENTILES)
    buckets = sorted(entry.response_times.items())
    shorter = list(accumulate((count for _, count in buckets), initial=0))[:-1]
    return [_ms(buckets[bisect_right(shorter, int(entry.num_requests * q)) - 1][0]) for q in PERCENTILES]


def _stats_row(entry: Any, rps: float, fail_per_s: float) -> list[Any]:
    return [
        entry.method, entry.name, entry.num_requests, entry.num_failures, _ms(entry.median_response_time),
        _ms(entry.avg_response_time), _ms(entry.min_response_time or 0), _ms(entry.max_response_time),
        round(entry.avg_content_length, 3), round(rps, 6), round(fail_per_s, 6), *_percentiles(entry),
    ]  # fmt: skip


def _history_row(entry: Any, rps: float, fail_per_s: float) -> list[Any]:
    return [
        entry.method or "", entry.name, round(rps, 6), round(fail_per_s, 6), *_percentiles(entry),
        entry.num_requests, entry.num_failures, _ms(entry.median_response_time), _ms(entry.avg_response_time),
        _ms(entry.min_response_time or 0), _ms(entry.max_response_time), round(entry.avg_content_length, 3),
    ]  # fmt: skip


def _failure_row(error: Any, messages: Mapping[str, str]) -> list[Any]:
    seen = [getattr(error, name, None) for name in ("first_seen", "last_seen")]
    failure = _TURN_FAILED.search(str(error.to_dict()["error"]))
    message = messages.get(failure[1], "") if failure else ""
    return [error.method, error.name, error.error, error.occurrences, *(_utc(at) for at in seen), message]


def _utc(at: Any) -> str:
    return (
        datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(at, int | float) else str(at or "")
    )
