"""What Locust's own tables and events learn of a turn: one request, and rows beside Aggregated for TTFT and ITL."""

from typing import Any

from inferload.measure.clock import NS_PER_MS
from inferload.measure.measures import gaps_ms
from inferload.measure.record import TurnRecord
from inferload.swarm import events
from inferload.swarm.compat import log_many
from inferload.wire.turn import TurnResult


class TurnFailed(Exception):
    """A failed turn as Locust counts it: failure class and status, so that its table of failures cannot grow without end."""


def response_time_ms(record: TurnRecord) -> float:
    """E2E of an answered turn; of a failed one the time until it was given up."""
    start_ns = record.planned_ns if record.sent_ns is None else record.sent_ns
    end_ns = record.last_ns if record.ok and record.last_ns is not None else record.closed_ns
    return (end_ns - start_ns) / NS_PER_MS


def book_with_locust(environment: Any, result: TurnResult) -> None:
    """Fire `request`, `first_token` and `turn_end`, and log the two rows. Listeners may block: not for the event loop."""
    record = result.record
    ttft_ms = None
    if record.ok and record.first_ns is not None and record.sent_ns is not None and record.event_ns is not None:
        ttft_ms = (record.first_ns - record.sent_ns) / NS_PER_MS
        stats, name = environment.stats, record.class_name
        stats.get(name, "TTFT").log(ttft_ms, 0)
        log_many(stats.get(name, "ITL"), gaps_ms(record))
    if record.finished:
        environment.events.request.fire(
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
