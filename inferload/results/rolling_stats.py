"""Rolling statistics over the last 10 s for the live display: counters and two sketches per second."""

from collections import deque

from inferload.figures.rate_figures import ACHIEVED
from inferload.figures.rate_figures import rates as rates_of
from inferload.figures.turn_figures import HEADLINES
from inferload.turns.tally import Tally, TallySet, summed

SPAN_S = 10
STATISTICS = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_MEASURES = tuple(figure.key for figure in HEADLINES)

# Rates by key, and percentiles of the headline measures by column, such as `ttft_ms_p95`; None without reports in the span.
RecentFigures = dict[str, float | None]


class Recent:
    """Rolling window over the deltas of reports. `failed`: failed turns since the run began.

    `sketches`: names of the measures whose percentiles are displayed; without them only counters are added.
    """

    def __init__(self, span_s: int = SPAN_S, sketches: tuple[str, ...] = _MEASURES) -> None:
        self.failed = 0
        self._span_s = span_s
        self._sketches = sketches
        # By number, with the current second: all counters, and the displayed sketches.
        self._seconds: deque[tuple[int, Tally]] = deque(maxlen=span_s + 1)

    def add(self, at_s: float, delta: TallySet) -> None:
        """Add a report `at_s` seconds after the load began; earlier ones count for the first second."""
        for _, tally in delta.items():
            self.add_tally(at_s, tally)

    def add_tally(self, at_s: float, tally: Tally) -> None:
        """Add the part of a report that belongs to one key."""
        number = max(0, int(at_s))
        if not self._seconds or self._seconds[-1][0] != number:
            self._seconds.append((number, Tally()))
        self.failed += tally.failed
        self._seconds[-1][1].absorb_counts(tally, self._sketches)

    def total(self, at_s: float) -> Tally | None:
        """Return the sum of the complete seconds of the span before `at_s`; None without reports in it."""
        end = int(at_s)
        behind = [tally for number, tally in self._seconds if end - self._span_s <= number < end]
        return summed(behind) if behind else None

    def figures(self, at_s: float) -> RecentFigures:
        """Return the figures of the complete seconds of the span before `at_s`.

        Counters and formulas are those of the summary's rates. A turn is reported when it has ended, with all its tokens, so
        turns and tokens lag behind while long answers stream. Achieved sessions are started sessions.
        """
        known = self.total(at_s)
        total, span_s = known or Tally(), min(self._span_s, int(at_s))
        started = total.sessions_started / span_s if known is not None and span_s else None
        percentiles = {
            figure.column(name): total.sketch(figure.key).quantile(q)
            for figure in HEADLINES
            for name, q in STATISTICS.items()
        }
        return {**rates_of(total, None if known is None else span_s), ACHIEVED.key: started, **percentiles}
