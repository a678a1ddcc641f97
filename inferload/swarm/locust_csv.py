"""Locust's own CSV forms for one run: columns and names as Locust writes them, but complete to the last request.

Locust's writer leaves out the last second, rounds percentiles to whole milliseconds and keeps only Aggregated in its history;
these files have Locust's columns, every row, and fractions. `--csv` is left to whoever gives it.
"""

import csv
from bisect import bisect_right
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import gevent
from locust.stats import get_readable_percentiles

from inferload import rundir
from inferload.measure.clock import NS_PER_S, wall_ns

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


class History:
    """Writes a row per second and entry while the run lasts, and the other three files at its end."""

    def __init__(self, folder: Path, environment: Any) -> None:
        self._folder = folder
        self._environment = environment
        self._file = (folder / rundir.LOCUST_HISTORY).open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)
        self._writer.writerow(_HISTORY_COLUMNS)
        self._greenlet = gevent.spawn(self._write)

    def finish(self) -> None:
        """The last row of the history, and the tables."""
        self._greenlet.kill()
        self._write_rows()
        self._file.close()
        stats = self._environment.stats
        _write(self._folder / rundir.LOCUST_STATS, _STATS_COLUMNS, [_stats_row(entry) for entry in _entries(stats)])
        _write(
            self._folder / rundir.LOCUST_FAILURES,
            ["Method", "Name", "Error", "Occurrences", "First Seen", "Last Seen"],
            [_failure_row(error) for error in stats.errors.values()],
        )
        exceptions = self._environment.runner.exceptions.values()
        _write(
            self._folder / rundir.LOCUST_EXCEPTIONS,
            ["Count", "Message", "Traceback", "Nodes"],
            [[e["count"], e["msg"], e["traceback"], ", ".join(e["nodes"])] for e in exceptions],
        )

    def _write(self) -> None:
        while True:
            gevent.sleep(1.0 - (wall_ns() % NS_PER_S) / NS_PER_S)  # on the second, as Locust's own are
            self._write_rows()
            self._file.flush()

    def _write_rows(self) -> None:
        now_s, users = wall_ns() // NS_PER_S, self._environment.runner.user_count
        for entry in _entries(self._environment.stats):
            self._writer.writerow([now_s, users, *_history_row(entry)])


def _entries(stats: Any) -> list[Any]:
    """Every entry in order of name and type, Aggregated last."""
    return [*sorted(stats.entries.values(), key=lambda entry: (entry.name, entry.method or "")), stats.total]


def _write(path: Path, columns: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def _ms(value: float | None) -> float | str:
    return "N/A" if value is None else round(value, 3)


def _percentiles(entry: Any) -> list[float | str]:
    """As Locust counts them: the longest time such that no more than n q samples are shorter."""
    if not entry.num_requests or not entry.response_times:
        return ["N/A"] * len(PERCENTILES)
    buckets = sorted(entry.response_times.items())
    shorter = list(accumulate((count for _, count in buckets), initial=0))[:-1]
    return [_ms(buckets[bisect_right(shorter, int(entry.num_requests * q)) - 1][0]) for q in PERCENTILES]


def _stats_row(entry: Any) -> list[Any]:
    return [
        entry.method, entry.name, entry.num_requests, entry.num_failures, _ms(entry.median_response_time),
        _ms(entry.avg_response_time), _ms(entry.min_response_time or 0), _ms(entry.max_response_time),
        round(entry.avg_content_length, 3), round(entry.total_rps, 6), round(entry.total_fail_per_sec, 6), *_percentiles(entry),
    ]  # fmt: skip


def _history_row(entry: Any) -> list[Any]:
    return [
        entry.method or "", entry.name, round(entry.current_rps, 6), round(entry.current_fail_per_sec, 6), *_percentiles(entry),
        entry.num_requests, entry.num_failures, _ms(entry.median_response_time), _ms(entry.avg_response_time),
        _ms(entry.min_response_time or 0), _ms(entry.max_response_time), round(entry.avg_content_length, 3),
    ]  # fmt: skip


def _failure_row(error: Any) -> list[Any]:
    seen = [getattr(error, name, None) for name in ("first_seen", "last_seen")]
    return [error.method, error.name, error.error, error.occurrences, *(_utc(at) for at in seen)]


def _utc(at: Any) -> str:
    return (
        datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(at, int | float) else str(at or "")
    )
