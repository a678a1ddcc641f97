"""CSV files of one run with Locust's columns and file names, complete to the last request.

Locust's own writer (`--csv`) omits the last second, rounds percentiles to whole milliseconds and keeps only Aggregated in its
history; these files contain every row, with fractions.

Locust computes rates from the wall clocks of all workers. If one of these is far off, the master's monotonic clock is used.
"""

import csv
import io
import logging
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import gevent
from locust.stats import get_readable_percentiles

from inferload.base import rundir
from inferload.base.clock import NS_PER_S, Anchor, now_ns
from inferload.base.threads import AppendedFile, in_thread
from inferload.results.verdict.first_errors import Kind

logger = logging.getLogger(__name__)

_TURN_FAILED = re.compile(r"^TurnFailed\(['\"](\w+)(?: (\d+))?['\"]\)$")  # a rejected turn has its own text
_SPAN_S = 10.0  # of a current rate
_MAX_ROWS = 50  # written without yielding to other greenlets
_REPORT_S = 4.0  # Locust's workers report every three seconds
PERCENTILES = (0.50, 0.66, 0.75, 0.80, 0.90, 0.95, 0.98, 0.99, 0.999, 0.9999, 1.0)
_NAMES = get_readable_percentiles(list(PERCENTILES))
_TOTALS = [
    "Request Count", "Failure Count", "Median Response Time", "Average Response Time", "Min Response Time",
    "Max Response Time", "Average Content Size",
]  # fmt: skip
_RATES = ["Requests/s", "Failures/s", *_NAMES]
_FAILURE_COLUMNS = ["Method", "Name", "Error", "Occurrences", "First Seen", "Last Seen", "First Message"]
_STATS_COLUMNS = ["Type", "Name", *_TOTALS, *_RATES]
_HISTORY_COLUMNS = ["Timestamp", "User Count", "Type", "Name", *_RATES, *(f"Total {name}" for name in _TOTALS)]


class Rates:
    """Rates of Locust's entries per second, by its own timestamps or, if these are implausible, by the monotonic clock."""

    def __init__(self, stats: Any) -> None:
        self._stats = stats
        self._began_ns = self._last_ns = now_ns()
        self._requests = 0
        self._samples: deque[tuple[int, dict[Any, tuple[int, int]]]] = deque()

    def sample(self) -> None:
        """Sample all counts; call it once a second."""
        at_ns, entries = now_ns(), _entries(self._stats)
        if entries[-1].num_requests != self._requests:
            self._requests, self._last_ns = entries[-1].num_requests, at_ns
        self._samples.append((at_ns, {_key(entry): (entry.num_requests, entry.num_failures) for entry in entries}))
        while at_ns - self._samples[0][0] > (_SPAN_S + 0.5) * NS_PER_S:
            self._samples.popleft()

    @property
    def plausible(self) -> bool:
        """True if Locust's timestamps agree with the time that has passed on the monotonic clock."""
        last_s, start_s = self._stats.last_request_timestamp, self._stats.start_time
        return last_s is None or -_REPORT_S <= self._passed_s - (last_s - start_s) <= _REPORT_S

    @property
    def _passed_s(self) -> float:
        return (self._last_ns - self._began_ns) / NS_PER_S

    def total(self, entry: Any) -> tuple[float, float]:
        """Return (requests/s, failures/s) from the load's start to the last request."""
        if self.plausible:
            return entry.total_rps, entry.total_fail_per_sec
        passed_s = self._passed_s
        return entry.num_requests / passed_s, entry.num_failures / passed_s

    def current(self, entry: Any) -> tuple[float, float]:
        """Return (requests/s, failures/s) of about the last ten seconds."""
        if self.plausible:
            return entry.current_rps, entry.current_fail_per_sec
        (from_ns, before), (until_ns, after) = self._samples[0], self._samples[-1]
        passed_s = max(1.0, (until_ns - from_ns) / NS_PER_S)
        counts = zip(after[_key(entry)], before.get(_key(entry), (0, 0)), strict=True)
        requests, failures = (now - then for now, then in counts)
        return requests / passed_s, failures / passed_s


class HistoryWriter:
    """Writer of the history, one row per second and entry, and of the three tables at the end of the run.

    `anchor`: of the run, so that a step of the wall clock does not affect timestamps.
    """

    def __init__(self, folder: Path, environment: Any, anchor: Anchor) -> None:
        self._folder = folder
        self._environment = environment
        self._anchor = anchor
        self.errors: list[str] = []  # of files that could not be written: path and error
        self._rates = Rates(environment.stats)
        self._history = AppendedFile(folder / rundir.LOCUST_HISTORY, partial(self._failed, rundir.LOCUST_HISTORY))
        in_thread(_write_new, folder / rundir.LOCUST_HISTORY, _lines([_HISTORY_COLUMNS]))
        self._greenlet = gevent.spawn(self._write)

    def finish(self, messages: Mapping[Kind, str]) -> None:
        """Write the last row of the history, and the tables; a failed write is added to `errors`.

        `messages`: first error message of each kind of failure, written after Locust's own columns.
        """
        self._greenlet.kill()
        self._write_rows()
        self._history.flush()
        stats = self._environment.stats
        rows = [
            [entry.method, entry.name, *_total_columns(entry), *_rate_columns(entry, self._rates.total(entry))]
            for entry in _entries(stats)
        ]
        self._write_table(rundir.LOCUST_STATS, _STATS_COLUMNS, rows)
        failures = [_failure_row(error, messages) for error in stats.errors.values()]
        self._write_table(rundir.LOCUST_FAILURES, _FAILURE_COLUMNS, failures)
        exceptions = self._environment.runner.exceptions.values()
        raised = [[e["count"], e["msg"], e["traceback"], ", ".join(e["nodes"])] for e in exceptions]
        self._write_table(rundir.LOCUST_EXCEPTIONS, ["Count", "Message", "Traceback", "Nodes"], raised)

    def _write(self) -> None:
        while True:
            # Rows are written at full seconds, as in Locust's own history.
            gevent.sleep(1.0 - (self._wall_ns() % NS_PER_S) / NS_PER_S)
            self._write_rows()

    def _failed(self, name: str, error: OSError) -> None:
        """Record the first error of a file; the run goes on without what was to be written."""
        path = str(self._folder / name)
        if not any(known.startswith(f"{path}: ") for known in self.errors):
            self.errors.append(f"{path}: {rundir.reason(error)}")
            logger.error("Locust's tables cannot be written: %s; the run goes on without them", self.errors[-1])

    def _write_table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        try:
            in_thread(_write_new, self._folder / name, _lines([columns, *rows]))
        except OSError as error:
            self._failed(name, error)

    def _wall_ns(self) -> int:
        return self._anchor.to_wall_ns(now_ns())

    def _write_rows(self) -> None:
        now_s, users = self._wall_ns() // NS_PER_S, self._environment.runner.user_count
        self._rates.sample()
        rows = []
        for number, entry in enumerate(_entries(self._environment.stats)):
            if number % _MAX_ROWS == _MAX_ROWS - 1:
                gevent.sleep(0)  # hundreds of rows would block the event loop for tens of milliseconds
            rates = _rate_columns(entry, self._rates.current(entry))
            rows.append([now_s, users, entry.method or "", entry.name, *rates, *_total_columns(entry)])
        self._history.add(_lines(rows))


def _lines(rows: list[list[Any]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _write_new(path: Path, text: str) -> None:
    """Write a new file with one write; texts of tasks and servers may contain lone surrogates, which UTF-8 cannot represent."""
    path.write_bytes(text.encode(errors="backslashreplace"))


def _key(entry: Any) -> tuple[Any, Any]:
    return entry.name, entry.method


def _entries(stats: Any) -> list[Any]:
    """Return every entry in order of name and type, Aggregated last."""
    return [*sorted(stats.entries.values(), key=lambda entry: (entry.name, entry.method or "")), stats.total]


def _ms(value: float | None) -> float | str:
    return "N/A" if value is None else round(value, 3)


def _percentiles(entry: Any) -> list[float | str]:
    """Percentiles by Locust's definition: the longest time such that at most n q samples are shorter."""
    if not entry.num_requests or not entry.response_times:
        return ["N/A"] * len(PERCENTILES)
    buckets = sorted(entry.response_times.items())
    shorter = list(accumulate((count for _, count in buckets), initial=0))[:-1]
    return [_ms(buckets[bisect_right(shorter, int(entry.num_requests * q)) - 1][0]) for q in PERCENTILES]


def _rate_columns(entry: Any, per_s: tuple[float, float]) -> list[Any]:
    return [*(round(rate, 6) for rate in per_s), *_percentiles(entry)]


def _total_columns(entry: Any) -> list[Any]:
    return [
        entry.num_requests, entry.num_failures, _ms(entry.median_response_time), _ms(entry.avg_response_time),
        _ms(entry.min_response_time or 0), _ms(entry.max_response_time), round(entry.avg_content_length, 3),
    ]  # fmt: skip


def _failure_row(error: Any, messages: Mapping[Kind, str]) -> list[Any]:
    instants = [getattr(error, name, None) for name in ("first_seen", "last_seen")]
    failed = _TURN_FAILED.search(str(error.to_dict()["error"]))
    kind = None if failed is None else (failed[1], None if failed[2] is None else int(failed[2]), error.name)
    message = "" if kind is None else messages.get(kind, "")
    return [error.method, error.name, error.error, error.occurrences, *(_utc(at) for at in instants), message]


def _utc(at: Any) -> str:
    return (
        datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(at, int | float) else str(at or "")
    )
