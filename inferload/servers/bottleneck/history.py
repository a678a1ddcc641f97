"""Causes over time: one rule for the live view and the report. No I/O.

A window ends at each instant at which the rules are applied, and has the scrapes of the `WINDOW_S` seconds before it, but none of
an earlier phase of the queue. Equal causes of successive windows are one span. A phase begins at a scrape (`queue_phases`), and so
does its first span; within a phase, a span begins with the window that has another cause.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
from msgspec import Struct, field

from inferload.servers.bottleneck.evidence import Scrapes
from inferload.servers.bottleneck.finding import Finding
from inferload.servers.bottleneck.queue_phases import phases_of

WINDOW_S = 30.0
LEAST_S = 5.0  # of scrapes before a first statement
_MOST_WINDOWS = 120


class Span(Struct, frozen=True):
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


class History(Struct):
    """Spans of a server, oldest first."""

    spans: list[Span] = field(default_factory=list)
    _phase_s: float | None = None  # begin of the phase of the last window

    def add(self, at_s: float, finding: Finding | None, phase_s: float, silent_since_s: float | None = None) -> None:
        """Add the finding of the window that ends at `at_s`, in the phase of the queue that began at `phase_s`.

        `silent_since_s`: last scrape, of a window without fresh ones.
        """
        before_s, self._phase_s = self._phase_s, phase_s
        if silent_since_s is not None:
            begins_s = silent_since_s
        elif before_s == phase_s:
            begins_s = at_s
        else:  # a phase has begun, or the newest one was noise
            begins_s = phase_s if before_s is None else max(phase_s, before_s)
        while self.spans and self.spans[-1].start_s >= begins_s:
            self.spans.pop()
        last = self.spans[-1] if self.spans else None
        if last is not None and last.code == (None if finding is None else finding.code):
            self.spans[-1] = Span(finding, last.start_s, at_s)
            return
        if last is not None:
            self.spans[-1] = Span(last.finding, last.start_s, begins_s)
        self.spans.append(Span(finding, begins_s, at_s))


def window_ends(start_s: float, end_s: float, step_s: float) -> Iterator[float]:
    """Yield the ends of the windows between two instants; the last one is `end_s`."""
    count = max(1, int((end_s - start_s - LEAST_S) // step_s))
    yield from (end_s - step_s * back for back in range(count - 1, -1, -1))


def spans_of(
    cause: Callable[[float, float, float], Finding | None], scrapes: Scrapes, end_s: float, silence_s: float
) -> list[Span]:
    """Return the causes from the first scrape on. A window whose newest scrape is older than `silence_s` has none.

    `cause`: by the scrapes between the first two instants, and the failures between the first and the last one.
    """
    history = History()
    begins = [phase.start_s for phase in phases_of(scrapes)] or scrapes.at_s[:1].tolist()
    pauses_s = scrapes.at_s[np.diff(scrapes.at_s, append=end_s) > silence_s]
    step_s = max(1.0, (end_s - begins[0]) / _MOST_WINDOWS) if begins else 1.0
    window_s = max(WINDOW_S, step_s)
    for phase_s, until_s in pairwise([*begins, end_s]):
        for at_s in window_ends(phase_s, until_s, step_s):
            last_s = float(scrapes.at_s[scrapes.at_s < at_s][-1])
            if at_s - last_s > silence_s:
                history.add(at_s, None, phase_s, last_s)
                continue
            # The first windows of a phase are longer than the time since its begin: the cause of a few scrapes is uncertain.
            high_s = max(at_s, min(phase_s + window_s, until_s, *pauses_s[pauses_s >= last_s][:1]))
            history.add(at_s, cause(max(phase_s, high_s - window_s), high_s, at_s), phase_s)
    return history.spans
