"""Causes of a server over time: one rule for the live view and the report. No I/O.

A window ends at each instant at which the rules are applied, and has the scrapes of the `WINDOW_S` seconds before it. Equal causes
of successive windows are one span. A window shows a queue later than it began, so a span of a queue begins, and ends, at the scrape
at which most requests began, or ceased, to wait.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from inferload.bottleneck.evidence import Scrapes, WindowEvidence
from inferload.bottleneck.finding import QUEUED_SHARE, Finding

WINDOW_S = 30.0
LEAST_S = 5.0  # of scrapes before a first statement
_SHORTEST_S = 1.0  # of a span between two others


@dataclass(frozen=True, slots=True)
class Span:
    """Time with one cause; `finding`: of its last window, None without a cause. Times are on the clock of the scrapes."""

    finding: Finding | None
    start_s: float
    end_s: float

    @property
    def code(self) -> str | None:
        """Code of the cause."""
        return None if self.finding is None else self.finding.code

    @property
    def length_s(self) -> float:
        """Length of the span."""
        return self.end_s - self.start_s


@dataclass(slots=True)
class History:
    """Spans of a server, oldest first."""

    spans: list[Span] = field(default_factory=list)
    _queued: bool = False  # in the last window

    def add(self, at_s: float, finding: Finding | None, evidence: WindowEvidence) -> None:
        """Add the finding of the window that ends at `at_s`. The finding is None for a window without fresh scrapes."""
        queued = finding is not None and evidence.waiting_share >= QUEUED_SHARE
        begins_s = self._begins_s(at_s, finding, queued, evidence.scrapes)
        while self.spans and self._covers(begins_s):
            self.spans.pop()
        last = self.spans[-1] if self.spans else None
        if last is not None and last.code == (None if finding is None else finding.code):
            self.spans[-1] = Span(finding, last.start_s, at_s)
        else:
            if last is not None:
                self.spans[-1] = Span(last.finding, last.start_s, begins_s)
            self.spans.append(Span(finding, begins_s, at_s))
        self._queued = queued

    def _covers(self, begins_s: float) -> bool:
        """Return True if a span that begins at this time leaves nothing, or too little, of the last one."""
        start_s = self.spans[-1].start_s
        return start_s >= begins_s or (len(self.spans) > 1 and start_s > begins_s - _SHORTEST_S)

    def _begins_s(self, at_s: float, finding: Finding | None, queued: bool, scrapes: Scrapes) -> float:
        """Return the begin of a span that this window would begin."""
        if not len(scrapes.at_s):
            return at_s
        if not self.spans:
            return float(scrapes.at_s[0])
        if finding is None:
            return float(scrapes.at_s[-1])
        return at_s if queued == self._queued else _changed_s(scrapes, queued, self.spans[-1].start_s)


def _changed_s(scrapes: Scrapes, rising: bool, since_s: float) -> float:
    """Return the scrape from which requests wait (`rising`) or do not wait, most of the time; before it, the reverse."""
    later = scrapes.at_s >= since_s
    if not later.any():
        return float(scrapes.at_s[-1])
    excess = np.concatenate([[0.0], np.cumsum(np.where(scrapes.waits[later], 0.5, -0.5))[:-1]])
    return float(scrapes.at_s[later][int(np.argmin(excess) if rising else np.argmax(excess))])


def window_ends(start_s: float, end_s: float, step_s: float) -> Iterator[float]:
    """Yield the ends of the windows between two instants; the last one is `end_s`."""
    count = max(1, int((end_s - start_s - LEAST_S) // step_s))
    yield from (end_s - step_s * back for back in range(count - 1, -1, -1))
