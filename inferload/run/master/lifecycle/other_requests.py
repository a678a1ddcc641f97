"""Requests other than turns, and exceptions of tasks, as counted by Locust."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from inferload.locust_adapters.tables import OWN_ROWS
from inferload.results.documents.summary_document import RequestName
from inferload.results.summarise.counts import Others
from inferload.results.verdict.failures import add_message, message

_QUANTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}


def counted(runner: Any, users: Mapping[str, int], listeners_raised: Mapping[str, int]) -> Others:
    """Count other requests and exceptions of a run. Percentiles are Locust's, of three significant digits.

    `users`: by class. `listeners_raised`: exceptions of event listeners by message.
    """
    entries = [entry for entry in runner.stats.entries.values() if entry.method not in OWN_ROWS]
    raised = list(runner.exceptions.values())
    messages: Counter[str] = Counter()
    for exception in raised:
        text = message(str(exception["msg"]).partition("\n")[0]) or _kind(str(exception.get("traceback")))
        add_message(messages, text, exception["count"])
    for text, count in listeners_raised.items():
        add_message(messages, f"event listener: {text}", count)
    return Others(
        sent=sum(entry.num_requests for entry in entries),
        failed=sum(entry.num_failures for entry in entries),
        raised=messages.total(),
        first=next(iter(messages), None),
        by_name=[_row(entry) for entry in sorted(entries, key=lambda entry: (entry.method or "", entry.name))],
        messages=dict(messages.most_common()),
        users=dict(users),
    )


def _row(entry: Any) -> RequestName:
    timed = entry.num_requests > entry.num_none_requests
    return RequestName(
        type=entry.method,
        name=entry.name,
        sent=entry.num_requests,
        failed=entry.num_failures,
        **{name: entry.get_response_time_percentile(q) if timed else None for name, q in _QUANTILES.items()},
    )


def _kind(traceback: str) -> str:
    """Return a text for an exception without a message, as of a bare assert: its last lines of traceback."""
    return (
        message(" ".join(line.strip() for line in traceback.strip().splitlines()[-2:])) or "exception without a message"
    )
