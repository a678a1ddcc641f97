"""SLO of one turn."""

from dataclasses import dataclass

import numpy as np

from inferload.measure.measures import gaps_ms, span_ms, tpot_ms
from inferload.measure.record import TurnRecord
from inferload.measure.sketch import rank


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits per turn, all inclusive; None: no limit. `from_plan`: TTFT and E2E count from the planned instant."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    itl_ms: float | None = None  # of the 99th percentile of the gaps within the turn
    from_plan: bool = False

    def met(self, record: TurnRecord) -> bool | None:
        """Return whether the turn met every limit; a failed turn did not. None: a limit needs tokens that are unknown."""
        if not record.ok:
            return False
        start_ns = record.planned_ns if self.from_plan else record.sent_ns
        if record.cancelled:
            return self._met_so_far(record, start_ns)
        if not _within(span_ms(start_ns, record.first_ns), self.ttft_ms):
            return False
        if not _within(span_ms(start_ns, record.last_ns), self.e2e_ms):
            return False
        if self.itl_ms is not None and not self._gaps_within(record, self.itl_ms):
            return False
        if self.tpot_ms is None or record.event_ns is None or len(record.event_ns) < 2:
            return True  # too short for a TPOT
        if record.output_tokens is None:
            return None
        value = tpot_ms(record)
        return value is None or value <= self.tpot_ms

    def _met_so_far(self, record: TurnRecord, start_ns: int | None) -> bool:
        """Return whether a cancelled turn had exceeded no limit when it was cancelled."""
        first_ns = record.closed_ns if record.first_ns is None else record.first_ns
        return (
            _within(span_ms(start_ns, first_ns), self.ttft_ms)
            and _within(span_ms(start_ns, record.closed_ns), self.e2e_ms)
            and (self.itl_ms is None or self._gaps_within(record, self.itl_ms))
        )

    def _gaps_within(self, record: TurnRecord, limit_ms: float) -> bool:
        gaps = gaps_ms(record)
        if not len(gaps):
            return True
        at = rank(0.99, len(gaps)) - 1
        return bool(np.partition(gaps, at)[at] <= limit_ms)


def _within(value_ms: float | None, limit_ms: float | None) -> bool:
    """Return whether a value is within a limit; a missing value is not."""
    return limit_ms is None or (value_ms is not None and value_ms <= limit_ms)
