"""Turns in Locust's tables and events: one request for each turn, and rows for TTFT and ITL beside Aggregated."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from inferload.base.clock import NS_PER_MS
from inferload.client.turn_record import TurnResult
from inferload.figures.counting import KeyedTurns
from inferload.figures.turn_batch import TurnBatch
from inferload.figures.turn_figures import ITL, TTFT
from inferload.locust_adapters import events
from inferload.locust_adapters.tables import OWN_ROWS, has_listeners, log_many, only_locust_listens
from inferload.results.verdict.failures import message
from inferload.turns.record import Failure
from inferload.turns.sketch import Floats


class TurnFailed(Exception):
    """A failed turn in Locust's tables: failure class and status, or the text with which a task rejected it."""


def failure_text(result: TurnResult) -> str:
    """Return the text of a failure in Locust's tables: class and status, or the text with which a task rejected the answer."""
    record = result.record
    if record.failure is Failure.REJECTED:
        return f"{record.failure}: {message(result.detail)}"
    return f"{record.failure} {record.status or ''}".strip()


def response_times_ms(turns: TurnBatch) -> Floats:
    """Return the E2E of each successful turn; of a failed or cancelled one, the time until it was closed."""
    planned, sent, last, closed = (turns.numbers[name] for name in ("planned_ns", "sent_ns", "last_ns", "closed_ns"))
    answered = turns.ok & ~turns.cancelled & last.known
    start_ns = np.where(sent.known, sent.values, planned.values)
    times_ms: Floats = (np.where(answered, last.values, closed.values) - start_ns) / NS_PER_MS
    return times_ms


class LocustStats:
    """Adds results to Locust's tables, and fires `request`, `first_token` and `turn_end`."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def add(self, results: Sequence[TurnResult], by_key: Sequence[KeyedTurns]) -> None:
        """Add results, and fire their events. Listeners may block, so the event loop must not call it.

        `by_key`: the turns of the results.
        """
        in_batches = only_locust_listens(self._environment)
        for group in by_key:
            self._fill_rows(group.key[1], group.columns)
            if in_batches:
                self._add_requests(group.key[1], group.columns)
        listened = has_listeners(events.first_token) or has_listeners(events.turn_end)
        ttft_ms = _ttft_ms(results) if listened else {}
        for row, result in enumerate(results):
            if result.record.finished and not (result.record.ok and in_batches):
                self._fire_request(result)
            if listened:
                self._fire_own(result, ttft_ms.get(row))

    def _fill_rows(self, name: str, turns: TurnBatch) -> None:
        well = turns.ok & turns.numbers["first_ns"].known
        for figure in (TTFT, ITL):
            values, rows = figure.values(turns)
            self._log(name, figure.title, values if well.all() else values[well[rows]])

    def _add_requests(self, name: str, turns: TurnBatch) -> None:
        """Add many successful requests at once, as Locust's own listener adds each."""
        times_ms = response_times_ms(turns)[turns.ok]
        log_many(self._environment.stats.total, times_ms)
        self._log(name, _TURN, times_ms)

    def _log(self, name: str, kind: str, values_ms: Floats) -> None:
        """Add samples to a row, which the first one creates."""
        if len(values_ms):
            log_many(self._environment.stats.get(name, kind), values_ms)

    def _fire_request(self, result: TurnResult) -> None:
        record = result.record
        self._environment.events.request.fire(
            request_type=_TURN,
            name=record.class_name,
            response_time=float(response_times_ms(TurnBatch.of_records([record]))[0]),
            response_length=0,
            exception=None if record.ok else TurnFailed(failure_text(result)),
            context={"turn_id": record.turn_id},
        )

    def _fire_own(self, result: TurnResult, ttft_ms: float | None) -> None:
        if result.record.ok and ttft_ms is not None:
            events.first_token.fire(record=result.record, ttft_ms=ttft_ms)
        events.turn_end.fire(record=result.record, detail=result.detail)


_TURN = OWN_ROWS[0]


def _ttft_ms(results: Sequence[TurnResult]) -> dict[int, float]:
    """Return the TTFT of the turns that have one, by their number."""
    values, rows = TTFT.values(TurnBatch.of_records([result.record for result in results]))
    return dict(zip(rows.tolist(), values.tolist(), strict=True))
