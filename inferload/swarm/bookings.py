"""What Locust's own tables and events learn of a turn: one request, and rows beside Aggregated for TTFT and ITL."""

from typing import Any

import numpy as np

from inferload.measure.clock import NS_PER_MS
from inferload.measure.measures import Floats, gaps_ms, span_ms
from inferload.measure.record import TurnRecord
from inferload.swarm import events
from inferload.swarm.compat import log_many
from inferload.wire.turn import TurnResult


class TurnFailed(Exception):
    """A failed turn as Locust counts it: failure class and status, so that its table of failures cannot grow without end."""


def response_time_ms(record: TurnRecord) -> float:
    """E2E of an answered turn; of a failed or cancelled one the time until it was given up."""
    start_ns = record.planned_ns if record.sent_ns is None else record.sent_ns
    end_ns = record.last_ns if record.ok and not record.cancelled and record.last_ns is not None else record.closed_ns
    return (end_ns - start_ns) / NS_PER_MS


class LocustBooks:
    """Books results with Locust. TTFT and ITL rows are gathered, and written by `flush`: many samples cost little more than one."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._samples: dict[tuple[str, str], list[Floats]] = {}

    def book(self, result: TurnResult) -> None:
        """Fire `request`, `first_token` and `turn_end`. Listeners may block: not for the event loop."""
        record = result.record
        ttft_ms = span_ms(record.sent_ns, record.first_ns) if record.ok else None
        if ttft_ms is not None:
            self._samples.setdefault((record.class_name, "TTFT"), []).append(np.array([ttft_ms]))
            self._samples.setdefault((record.class_name, "ITL"), []).append(gaps_ms(record))
        if record.finished:
            self._environment.events.request.fire(
                request_type="TURN",
                name=record.class_name,
                response_time=response_time_ms(record),
                response_length=0,
                exception=None if record.ok else TurnFailed(f"{record.failure} {record.status or ''}".strip()),
                context={"turn_id": record.turn_id},
            )
        if ttft_ms is not None:
            events.first_token.fire(record=record, ttft_ms=ttft_ms)
        events.turn_end.fire(record=record, detail=result.detail)

    def flush(self) -> None:
        """Write what was gathered into Locust's rows."""
        samples, self._samples = self._samples, {}
        for (name, row), arrays in samples.items():
            log_many(self._environment.stats.get(name, row), np.concatenate(arrays))
