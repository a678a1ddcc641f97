"""What the last seconds of a run were like, for who watches it: a few counters and two sketches for each second."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from inferload.measure.tally import Tally, TallySet
from inferload.results import summary

SPAN_S = 10
_SHOWN = ("ttft_ms", "itl_ms")


@dataclass(frozen=True, slots=True)
class RecentFigures:
    """Rates a second and percentiles of what was reported in the last `span_s`; None where nothing was.

    The counters and formulas are those of the summary's rates, over the seconds of the reports: a turn is reported once it
    has ended, with all its tokens, so while long answers stream, turns and tokens lag behind. Achieved are sessions started.
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
    tally: Tally = field(default_factory=Tally)  # all counters, and the sketches that are shown


class Recent:
    """Fed with the deltas of reports as they come in. `failed`: turns that failed since the run began."""

    def __init__(self) -> None:
        self.failed = 0
        self._seconds: deque[_Second] = deque(maxlen=SPAN_S)

    def add(self, at_s: float, delta: TallySet) -> None:
        """A report that came `at_s` seconds after the load began; before it counts as its first second."""
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
        """Of the whole seconds that lie behind `at_s`, ten at most."""
        behind = [one for one in self._seconds if at_s - SPAN_S - 1 <= one.number < int(at_s)][-SPAN_S:]
        span_s = min(SPAN_S, int(at_s))
        total = Tally()
        for one in behind:
            total.absorb(one.tally)
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
