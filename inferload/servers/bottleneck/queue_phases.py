"""Phases of a queue: the scrapes from which requests wait, or no longer wait, by change points over all scrapes. No I/O.

Each scrape has a level: requests wait at few scrapes, at some, or at most. The phases are those of the most likely sequence of
levels (Viterbi), in which each change has a cost. A change therefore needs about three scrapes against the level before it, and
more at a queue that comes and goes. At the costs below, requests that wait at 20 % of the scrapes or more are a queue.
"""

from itertools import pairwise
from math import log

from msgspec import Struct, field

from inferload.servers.bottleneck.evidence import Scrapes

_WAITING = (0.05, 0.45, 0.95)  # share of the scrapes of each level with waiting requests; the first level has no queue
_CHANGE = 3.0  # negative log likelihood of a change
_LEAST = 5  # scrapes of a phase; a shorter one is noise
_COSTS = {waits: tuple(-log(share if waits else 1 - share) for share in _WAITING) for waits in (True, False)}


class Phase(Struct, frozen=True):
    """Time with a queue, or without one, from a scrape on. `first`: number of this scrape."""

    queued: bool
    first: int
    start_s: float
    before: "Phase | None" = None


class QueuePhases(Struct):
    """Phases up to the newest scrape."""

    count: int = 0
    # For each level of the newest scrape, the best path to it.
    _paths: list[tuple[float, Phase]] = field(default_factory=list)

    def add(self, at_s: float, waits: bool) -> None:
        """Add the next scrape."""
        costs = _COSTS[waits]
        if not self._paths:
            self._paths = [(cost, Phase(level > 0, 0, at_s)) for level, cost in enumerate(costs)]
        else:
            self._paths = [self._extended(level, at_s, cost) for level, cost in enumerate(costs)]
        self.count += 1

    def _extended(self, level: int, at_s: float, cost: float) -> tuple[float, Phase]:
        """Return the best path to a level of the scrape that follows."""
        totals = [total + (0.0 if previous == level else _CHANGE) for previous, (total, _) in enumerate(self._paths)]
        phase, queued = self._paths[totals.index(min(totals))][1], level > 0
        return min(totals) + cost, phase if phase.queued == queued else Phase(queued, self.count, at_s, phase)

    @property
    def newest(self) -> Phase | None:
        """Phase of the newest scrape; None without a scrape."""
        phases = self.all
        return phases[-1] if phases else None

    @property
    def all(self) -> list[Phase]:
        """Phases of the most likely levels, oldest first, without those that are too short; at least one after a scrape."""
        if not self._paths:
            return []
        found: list[Phase] = []
        phase: Phase | None = min(self._paths, key=lambda path: path[0])[1]
        while phase is not None:
            found.insert(0, phase)
            phase = phase.before
        ends = [*(phase.first for phase in found[1:]), self.count]
        lasting = [phase for phase, end in zip(found, ends, strict=True) if end - phase.first >= _LEAST] or found[-1:]
        first = Phase(lasting[0].queued, found[0].first, found[0].start_s)
        return [first, *[later for earlier, later in pairwise(lasting) if later.queued != earlier.queued]]


def phases_of(scrapes: Scrapes) -> list[Phase]:
    """Return the phases of scrapes; none if the number of waiting requests is not known."""
    phases = QueuePhases()
    for at_s, waiting in zip(scrapes.at_s, scrapes.capacity, strict=True):
        if waiting >= 0:  # it is not a number if it was not published
            phases.add(float(at_s), bool(waiting))
    return phases.all
