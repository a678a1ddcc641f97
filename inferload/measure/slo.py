"""SLO of one turn."""

from dataclasses import dataclass

import numpy as np

from inferload.measure.measures import gaps_ms, span_ms, tpot_ms
from inferload.measure.record import TurnRecord
from inferload.measure.sketch import rank

FAILED = "failed"  # beside the names of limits: a turn that failed, or did not end


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
        missed = self.missed(record)
        return None if missed is None else not missed

    def missed(self, record: TurnRecord) -> tuple[str, ...] | None:
        """Return the limits that the turn missed, or FAILED; None: it missed no other, and one needs tokens that are unknown.

        A cancelled turn missed those that it had exceeded when it was cancelled.
        """
        if not record.ok:
            return (FAILED,)
        start_ns = record.planned_ns if self.from_plan else record.sent_ns
        now_ns = record.closed_ns if record.cancelled else None
        first_ns = now_ns if record.first_ns is None else record.first_ns
        last_ns = record.last_ns if now_ns is None else now_ns
        within = {
            "ttft_ms": _within(span_ms(start_ns, first_ns), self.ttft_ms),
            "tpot_ms": True if record.cancelled else self._tpot_within(record),
            "e2e_ms": _within(span_ms(start_ns, last_ns), self.e2e_ms),
            "itl_ms": self.itl_ms is None or self._gaps_within(record, self.itl_ms),
        }
        missed = tuple(name for name, held in within.items() if held is False)
        return None if not missed and within["tpot_ms"] is None else missed

    def _tpot_within(self, record: TurnRecord) -> bool | None:
        """Return whether the TPOT is within its limit; None: the number of tokens is unknown."""
        if self.tpot_ms is None or record.event_ns is None or len(record.event_ns) < 2:
            return True  # too short for a TPOT
        if record.output_tokens is None:
            return None
        value = tpot_ms(record)
        return value is None or value <= self.tpot_ms

    def _gaps_within(self, record: TurnRecord, limit_ms: float) -> bool:
        gaps = gaps_ms(record)
        if not len(gaps):
            return True
        at = rank(0.99, len(gaps)) - 1
        return bool(np.partition(gaps, at)[at] <= limit_ms)


def _within(value_ms: float | None, limit_ms: float | None) -> bool:
    """Return whether a value is within a limit; a missing value is not."""
    return limit_ms is None or (value_ms is not None and value_ms <= limit_ms)
