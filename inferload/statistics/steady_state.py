"""Whether a load has settled: the TTFT of the last seconds does not move any more, and turns do not pile up.

Time is cut into blocks of five seconds. It is steady when the medians of three blocks in a row lie within a tenth of each
other (or within 5 ms, which is less than anybody feels), each of ten first tokens or more, and no more turns are in flight
in the last of them than in the first, give or take a tenth and two turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inferload.measure.sketch import Sketch
from inferload.measure.tally import TallySet

BLOCK_S = 5.0
BLOCKS = 3
LEAST = 10
_TENTH = 1.1
_NOTHING_MS = 5.0
_FEW_TURNS = 2.0


@dataclass(slots=True)
class _Block:
    number: int
    ttft_ms: Sketch = field(default_factory=Sketch)
    in_flight: list[int] = field(default_factory=list)

    @property
    def mean_in_flight(self) -> float:
        return sum(self.in_flight) / len(self.in_flight) if self.in_flight else 0.0


class Steadiness:
    """Fed with the deltas of reports. `since_s`: when the first steady stretch began; None so far."""

    def __init__(self) -> None:
        self.since_s: float | None = None
        self._blocks: list[_Block] = []

    def add(self, at_s: float, delta: TallySet, in_flight: int) -> None:
        """A report that came `at_s` seconds after the load began; `in_flight`: turns of all workers at that moment."""
        number = int(max(0.0, at_s) // BLOCK_S)
        if not self._blocks or self._blocks[-1].number != number:
            self._blocks = [*self._blocks[-BLOCKS:], _Block(number)]
            if self.since_s is None and self.now:
                self.since_s = (number - BLOCKS) * BLOCK_S
        block = self._blocks[-1]
        block.in_flight.append(in_flight)
        for _, tally in delta.items():
            if "ttft_ms" in tally.sketches:
                block.ttft_ms.absorb(tally.sketches["ttft_ms"])

    @property
    def now(self) -> bool:
        """Whether the last three whole blocks are alike."""
        whole = self._blocks[:-1][-BLOCKS:]
        if len(whole) < BLOCKS or whole[-1].number - whole[0].number != BLOCKS - 1:
            return False
        medians = [one.ttft_ms.quantile(0.5) for one in whole if one.ttft_ms.count >= LEAST]
        known = [median for median in medians if median is not None]
        if len(known) < BLOCKS:
            return False
        alike = max(known) <= max(min(known) * _TENTH, min(known) + _NOTHING_MS)
        return alike and whole[-1].mean_in_flight <= whole[0].mean_in_flight * _TENTH + _FEW_TURNS
