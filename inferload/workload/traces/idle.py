"""Times of a session with shortened idle gaps: those in which no agent waits for an answer."""

from bisect import bisect_right
from collections.abc import Sequence

from inferload.workload.traces.turn import RecordedTurn
from inferload.workload.traces.weka import ended_s


class IdleCap:
    """Map from the recorded times of a session to those in which no idle gap is longer than `most_s`. It keeps their order."""

    def __init__(self, turns: Sequence[RecordedTurn], most_s: float | None) -> None:
        self.cut = 0  # gaps
        self._starts: list[float] = []  # of the parts that are left out, with the length left out up to their end
        self._ends: list[float] = []
        self._lost: list[float] = []
        if most_s is None or not turns:
            return
        spans = sorted((turn.at_s, ended_s(turn)) for turn in turns)
        busy_s, lost_s = spans[0][1], 0.0
        for start_s, end_s in spans[1:]:
            if start_s - busy_s > most_s:
                self.cut += 1
                lost_s += start_s - busy_s - most_s
                self._starts.append(busy_s + most_s)
                self._ends.append(start_s)
                self._lost.append(lost_s)
            busy_s = max(busy_s, end_s)

    def __call__(self, at_s: float) -> float:
        """Return the time without the parts left out before it."""
        number = bisect_right(self._starts, at_s) - 1
        if number < 0:
            return at_s
        return at_s - self._lost[number] + max(0.0, self._ends[number] - at_s)
