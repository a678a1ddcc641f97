"""Locust's tables of requests: buckets, bounds, batches, final tables."""

import contextlib
import math
import os
import sys
from collections.abc import Callable
from typing import Any

import locust
import locust.main
import locust.runners
import locust.stats
import numpy as np
import numpy.typing as npt

from inferload.locust_adapters import compat
from inferload.locust_adapters.compat import names_in, parameters
from inferload.turns.bounded_names import OTHER_NAMES, BoundedNames

OWN_ROWS = ("TURN", "TTFT", "ITL")  # types of the rows of turns in Locust's table
FINAL_TABLES = ("print_stats", "print_percentile_stats", "print_error_report")  # of locust.stats


def has_bucket_hook() -> bool:
    """Return True if response times are rounded by the documented hook."""
    hook, entry = locust.stats.bucket_response_time, new_entry()
    locust.stats.bucket_response_time = lambda _ms: 7.25
    try:
        entry.log(1.5, 0)
    finally:
        locust.stats.bucket_response_time = hook
    return list(entry.response_times) == [7.25]


def new_entry() -> Any:
    """Return an empty entry of Locust's statistics."""
    return locust.stats.RequestStats(use_response_times_cache=False).get("name", "method")


def use_fine_buckets() -> None:
    """Set Locust's documented hook for response time buckets."""
    locust.stats.bucket_response_time = bucket_ms


def bucket_ms(response_time_ms: float) -> float:
    """Round to three significant digits; Locust rounds 1.5 ms to 2 and 1234 ms to 1200."""
    if response_time_ms <= 0:
        return 0
    return round(response_time_ms, 2 - math.floor(math.log10(response_time_ms)))


def _buckets_ms(values_ms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    positive = np.maximum(values_ms, 1e-6)
    scale = 10.0 ** (2 - np.floor(np.log10(positive)))
    return np.where(values_ms > 0, np.round(positive * scale) / scale, 0.0)


def has_whole_milliseconds() -> bool:
    """Return True if a table row has minimum and maximum."""
    entry = new_entry()
    entry.log(1.5, 0)
    return {"min_response_time", "max_response_time"} <= set(entry.to_dict(escape_string_values=True))


def keep_fractions() -> None:
    """Keep fractions of minimum and maximum: Locust's page and console would show 8.37 ms as 8."""
    original = locust.stats.StatsEntry.to_dict

    @compat.replacing(locust.stats.StatsEntry, "to_dict")
    def to_dict(self: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        row: dict[str, Any] = original(self, *arguments, **options)
        row["min_response_time"] = round(self.min_response_time or 0, 2)
        row["max_response_time"] = round(self.max_response_time, 2)
        return row


def keeps_entries() -> bool:
    """Return True if statistics are entries of a replaceable dictionary."""
    kind = locust.stats.RequestStats
    uses = all("EntriesDict" in names_in(function) for function in (kind.__init__, kind.clear_all))
    entries = locust.stats.EntriesDict(kind(use_response_times_cache=False))
    entry = entries["name", "method"]
    stores = isinstance(entries, dict) and list(entries.items()) == [(("name", "method"), entry)]
    return (
        uses and stores and entry.name == "name" and parameters(kind.log_error) == ["self", "method", "name", "error"]
    )


def bound_names() -> None:
    """Bound the number of entries in Locust's tables: request names that contain IDs would exhaust memory."""
    if hasattr(locust.stats.EntriesDict, "bounds_names"):
        return
    locust.stats.EntriesDict = _bounded_entries(locust.stats.EntriesDict)
    log_error = locust.stats.RequestStats.log_error

    @compat.replacing(locust.stats.RequestStats, "log_error")
    def log_bounded(self: Any, method: str, name: str, error: Any) -> None:
        log_error(self, method, self.entries[name, method].name, error)


def _bounded_entries(base: Any) -> Any:
    """Return Locust's dictionary of entries with one bound for each type of turn rows, and one for all other requests."""

    class BoundedEntries(base):  # type: ignore[misc]
        bounds_names = True

        def __init__(self, request_stats: Any) -> None:
            super().__init__(request_stats)
            self._requests = BoundedNames(kind="requests")
            self._turns = {kind: BoundedNames() for kind in OWN_ROWS}

        def __missing__(self, key: tuple[str, str]) -> Any:
            return super().__missing__(key) if self._admits(key) else self[OTHER_NAMES, key[1]]

        def __setitem__(self, key: tuple[str, str], entry: Any) -> None:
            if self._admits(key):  # Locust's master sets an entry before it reads it
                super().__setitem__(key, entry)

        def _admits(self, key: tuple[str, str]) -> bool:
            return key[0] == OTHER_NAMES or self._turns.get(key[1], self._requests).admits(key)

    return BoundedEntries


def logs_in_batches() -> bool:
    """Return True if `log_batch` has the same effect as Locust's `log` for each value."""
    values_ms, single, many = np.array([0.25, 12.5, 1234.5]), new_entry(), new_entry()
    for value in values_ms.tolist():
        single.log(value, 0)
    log_batch(many, values_ms)
    return _counters(single) == _counters(many) and "on_request" in names_in(locust.runners.Runner.__init__)


def _counters(entry: Any) -> dict[str, Any]:
    """Return the counters of an entry, without instants."""
    counters = {name: value for name, value in vars(entry).items() if name not in ("stats", "start_time")}
    counters["last_request_timestamp"] = counters["last_request_timestamp"] is not None
    return counters | {"num_reqs_per_sec": sum(counters["num_reqs_per_sec"].values())}


def has_listeners(hook: Any) -> bool:
    """Return True if an event has listeners, or if that is not known."""
    return bool(getattr(hook, "_handlers", True))


def only_locust_listens(environment: Any) -> bool:
    """Return True if only Locust's own listener receives request events; `log_batch` may then add many at once."""
    names = [getattr(handler, "__qualname__", "") for handler in environment.events.request._handlers]
    others = [name for name in names if name != _FAILURES]  # of failures only, and a batch has none
    return "batches" not in compat.left_out and others == ["Runner.__init__.<locals>.on_request"]


def listen_for_failures(environment: Any, failed: Callable[[tuple[str, str], object], None]) -> None:
    """Call `failed` with type and name, as counted, and the exception of each failed request that is not a turn."""

    def on_failed_request(request_type: str, name: str, exception: object = None, **_event: object) -> None:
        if exception and request_type not in OWN_ROWS:  # the same condition as Locust's
            failed((request_type, environment.stats.entries[name, request_type].name), exception)

    environment.events.request.add_listener(on_failed_request)


_FAILURES = f"{listen_for_failures.__qualname__}.<locals>.on_failed_request"


def log_many(entry: Any, values_ms: npt.NDArray[np.float64]) -> None:
    """Add many samples to one of Locust's entries; its own `log` reads the clock for each sample."""
    if "batches" not in compat.left_out:
        log_batch(entry, values_ms)
        return
    for value in values_ms.tolist():
        entry.log(value, 0)


def log_batch(entry: Any, values_ms: npt.NDArray[np.float64]) -> None:
    if not len(values_ms):
        return
    entry.log(float(values_ms[0]), 0)  # updates the cache of its sliding window
    rest = values_ms[1:]
    if not len(rest):
        return
    buckets, counts = np.unique(_buckets_ms(rest), return_counts=True)
    for bucket, count in zip(buckets.tolist(), counts.tolist(), strict=True):
        entry.response_times[bucket] += count
    entry.num_requests += len(rest)
    entry.total_response_time += float(rest.sum())
    entry.min_response_time = min(entry.min_response_time, float(rest.min()))
    entry.max_response_time = max(entry.max_response_time, float(rest.max()))
    entry.num_reqs_per_sec[int(entry.last_request_timestamp)] += len(rest)


def prints_tables() -> bool:
    """Return True if the final tables are printed by replaceable functions."""
    return locust.main.stats is locust.stats and all(
        parameters(getattr(locust.stats, name))[:1] == ["stats"] for name in FINAL_TABLES
    )


def omit_final_tables() -> None:
    """Omit the tables that Locust prints at the end of a headless run; the run's own summary contains their figures."""
    if "final_tables" in compat.left_out:
        return
    for name in FINAL_TABLES:
        setattr(locust.stats, name, lambda *_arguments, **_options: None)


def prints_json() -> bool:
    """Return True if statistics are printed as JSON by a replaceable function."""
    return "print_stats_json" in names_in(locust.main.main) and parameters(locust.stats.print_stats_json) == ["stats"]


def keep_stdout_for_json() -> None:
    """Print all but Locust's JSON on standard error, also what programs of tasks print: a program reads standard output."""
    if "json_output" in compat.left_out or hasattr(locust.stats.print_stats_json, "stream") or not sys.stdout:
        return
    sys.stdout.flush()
    print_json, stream = locust.stats.print_stats_json, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def print_stats_json(stats: Any) -> None:
        with contextlib.redirect_stdout(stream):
            print_json(stats)
            stream.flush()

    print_stats_json.stream = stream  # type: ignore[attr-defined]
    locust.stats.print_stats_json = print_stats_json


def omit_json(options: Any) -> None:
    """Have a forked worker print and write no statistics: those of all workers are the master's."""
    options.json, options.json_file = False, None
