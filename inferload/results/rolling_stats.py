"""Rolling statistics over the last 10 s for the live display: counters and two sketches per second."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from inferload.measure.tally import Tally, TallySet
from inferload.results import summary

SPAN_S = 10
_SHOWN = ("ttft_ms", "itl_ms")


@dataclass(frozen=True, slots=True)
class RecentFigures:
    """Rates per second and percentiles of the reports of the last `span_s`; None without reports.

    Counters and formulas are those of the summary's rates. A turn is reported when it has ended, with all its tokens, so turns
    and tokens lag behind while long answers stream. Achieved sessions are started sessions.
    """

    span_s: float
    offered_sessions_per_s: float | None
    achieved_sessions_per_s: float | None
    turns_per_s: float | None
    output_tok_per_s: float | None
    ttft_ms: tuple[float | None, float | None]  # p50, p95
    itl_ms: tuple[float | None, float | None]


@dataclass(slots=True)
class _Second:
    number: int
    tally: Tally = field(default_factory=Tally)  # all counters, and the displayed sketches


class Recent:
    """Rolling window over the deltas of reports. `failed`: failed turns since the run began."""

    def __init__(self) -> None:
        self.failed = 0
        self._seconds: deque[_Second] = deque(maxlen=SPAN_S)

    def add(self, at_s: float, delta: TallySet) -> None:
        """Add a report `at_s` seconds after the load began; earlier ones count for the first second."""
        number = max(0, int(at_s))
        if not self._seconds or self._seconds[-1].number != number:
            self._seconds.append(_Second(number))
        second = self._seconds[-1]
        for _, tally in delta.items():
            self.failed += tally.failed
            second.tally.absorb_counts(tally)
            for name in _SHOWN:
                if name in tally.sketches:
                    second.tally.sketch(name).absorb(tally.sketches[name])

    def figures(self, at_s: float) -> RecentFigures:
        """Return the figures of at most ten complete seconds before `at_s`."""
        behind = [second for second in self._seconds if at_s - SPAN_S - 1 <= second.number < int(at_s)][-SPAN_S:]
        span_s = min(SPAN_S, int(at_s))
        total = Tally()
        for second in behind:
            total.absorb(second.tally)
        rates = summary.rates(total, span_s if behind else None)
        ttft_ms, itl_ms = (total.sketch(name) for name in _SHOWN)
        return RecentFigures(
            span_s,
            rates["offered_sessions_per_s"],
            total.sessions_started / span_s if behind else None,
            rates["turns_per_s"],
            rates["output_tok_per_s"],
            (ttft_ms.quantile(0.5), ttft_ms.quantile(0.95)),
            (itl_ms.quantile(0.5), itl_ms.quantile(0.95)),
        )
