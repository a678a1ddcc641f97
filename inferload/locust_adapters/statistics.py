"""Turns in Locust's tables and events: one request for each turn, and rows for TTFT and ITL beside Aggregated."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from inferload.base.clock import NS_PER_MS
from inferload.client.turn_record import TurnResult
from inferload.figures.turn_batch import TurnBatch
from inferload.figures.turn_figures import ITL, TTFT
from inferload.locust_adapters import events
from inferload.locust_adapters.tables import OWN_ROWS, log_many, only_locust_listens
from inferload.results.verdict.failures import message
from inferload.turns.record import Failure, TurnRecord


class TurnFailed(Exception):
    """A failed turn in Locust's tables: failure class and status, or the text with which a task rejected it."""


def failure_text(result: TurnResult) -> str:
    """Return the text of a failure in Locust's tables: class and status, or the text with which a task rejected the answer."""
    record = result.record
    if record.failure is Failure.REJECTED:
        return f"{record.failure}: {message(result.detail)}"
    return f"{record.failure} {record.status or ''}".strip()


def response_time_ms(record: TurnRecord) -> float:
    """Return the E2E of a successful turn; of a failed or cancelled one, the time until it was closed."""
    start_ns = record.planned_ns if record.sent_ns is None else record.sent_ns
    end_ns = record.last_ns if record.ok and not record.cancelled and record.last_ns is not None else record.closed_ns
    return (end_ns - start_ns) / NS_PER_MS


class LocustStats:
    """Adds results to Locust's tables, and fires `request`, `first_token` and `turn_end`."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def add(self, results: Sequence[TurnResult]) -> None:
        """Add results, and fire their events. Listeners may block, so the event loop must not call it."""
        self._fill_rows(
            [result.record for result in results if result.record.ok and result.record.first_ns is not None]
        )
        in_batches = only_locust_listens(self._environment)
        if in_batches:
            self._add_requests([result.record for result in results if result.record.ok])
        values, rows = TTFT.values(TurnBatch.of_records([result.record for result in results]))
        ttft_ms = dict(zip(rows.tolist(), values.tolist(), strict=True))
        for row, result in enumerate(results):
            if result.record.finished and not (result.record.ok and in_batches):
                self._fire_request(result)
            self._fire_own(result, ttft_ms.get(row) if result.record.ok else None)

    def _fill_rows(self, records: Sequence[TurnRecord]) -> None:
        for name, members in _by_class(records).items():
            turns = TurnBatch.of_records(members)
            for figure in (TTFT, ITL):
                log_many(self._environment.stats.get(name, figure.title), figure.values(turns)[0])

    def _add_requests(self, records: Sequence[TurnRecord]) -> None:
        """Add many successful requests at once, as Locust's own listener adds each."""
        for name, members in _by_class(records).items():
            times_ms = np.array([response_time_ms(record) for record in members])
            for entry in (self._environment.stats.total, self._environment.stats.get(name, _TURN)):
                log_many(entry, times_ms)

    def _fire_request(self, result: TurnResult) -> None:
        record = result.record
        self._environment.events.request.fire(
            request_type=_TURN,
            name=record.class_name,
            response_time=response_time_ms(record),
            response_length=0,
            exception=None if record.ok else TurnFailed(failure_text(result)),
            context={"turn_id": record.turn_id},
        )

    def _fire_own(self, result: TurnResult, ttft_ms: float | None) -> None:
        record = result.record
        if ttft_ms is not None:
            events.first_token.fire(record=record, ttft_ms=ttft_ms)
        events.turn_end.fire(record=record, detail=result.detail)


_TURN = OWN_ROWS[0]


def _by_class(records: Sequence[TurnRecord]) -> dict[str, list[TurnRecord]]:
    by_class: dict[str, list[TurnRecord]] = {}
    for record in records:
        by_class.setdefault(record.class_name, []).append(record)
    return by_class
