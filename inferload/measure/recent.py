"""What the last seconds of a run were like, for who watches it: a few counters and two sketches for each second."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from inferload.measure.sketch import Sketch
from inferload.measure.tally import TallySet

SPAN_S = 10


@dataclass(frozen=True, slots=True)
class RecentFigures:
    """Rates a second and percentiles of what was reported in the last `span_s`; None where nothing was.

    A turn is reported once it has ended, with all its tokens: while long answers stream, these rates lag behind.
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
    planned: int = 0
    started: int = 0
    ok: int = 0
    tokens: int = 0
    ttft_ms: Sketch = field(default_factory=Sketch)
    itl_ms: Sketch = field(default_factory=Sketch)


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
            second.planned += tally.sessions_planned
            second.started += tally.sessions_started
            second.ok += tally.ok
            second.tokens += tally.window_output_tokens
            for name, kept in (("ttft_ms", second.ttft_ms), ("itl_ms", second.itl_ms)):
                if name in tally.sketches:
                    kept.absorb(tally.sketches[name])

    def figures(self, at_s: float) -> RecentFigures:
        """Of the whole seconds that lie behind `at_s`, ten at most."""
        behind = [one for one in self._seconds if at_s - SPAN_S - 1 <= one.number < int(at_s)][-SPAN_S:]
        span_s = min(SPAN_S, int(at_s))
        ttft_ms, itl_ms = Sketch(), Sketch()
        for one in behind:
            ttft_ms.absorb(one.ttft_ms)
            itl_ms.absorb(one.itl_ms)

        def per_s(count: int) -> float | None:
            return count / span_s if behind else None

        return RecentFigures(
            span_s,
            per_s(sum(one.planned for one in behind)),
            per_s(sum(one.started for one in behind)),
            per_s(sum(one.ok for one in behind)),
            per_s(sum(one.tokens for one in behind)),
            (ttft_ms.quantile(0.5), ttft_ms.quantile(0.95)),
            (itl_ms.quantile(0.5), itl_ms.quantile(0.95)),
        )
