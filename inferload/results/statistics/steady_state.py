"""Steady state of a load: constant TTFT, and no growth of the number of turns in flight.

Time is divided into blocks of five seconds. The load is steady if the medians of TTFT in three consecutive blocks, each of at
least ten first tokens, are within 10 % or 5 ms of each other, and the number of turns in flight in the last block exceeds that
in the first by at most 10 % and two turns.
"""

from dataclasses import dataclass, field

from inferload.figures.turn_figures import TTFT
from inferload.turns.sketch import Sketch
from inferload.turns.tally import TallySet

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
    """Detector of the steady state. `since_s`: start of the first steady interval; None so far."""

    def __init__(self) -> None:
        self.since_s: float | None = None
        self._blocks: list[_Block] = []

    def add(self, at_s: float, delta: TallySet, in_flight: int) -> None:
        """Add the delta of a report `at_s` seconds after the load began. `in_flight`: turns of all workers."""
        number = int(max(0.0, at_s) // BLOCK_S)
        if not self._blocks or self._blocks[-1].number != number:
            self._blocks = [*self._blocks[-BLOCKS:], _Block(number)]
            if self.since_s is None and self.now:
                self.since_s = (number - BLOCKS) * BLOCK_S
        block = self._blocks[-1]
        block.in_flight.append(in_flight)
        for _, tally in delta.items():
            if TTFT.key in tally.sketches:
                block.ttft_ms.absorb(tally.sketches[TTFT.key])

    @property
    def now(self) -> bool:
        """True if the last three complete blocks are steady."""
        whole = self._blocks[:-1][-BLOCKS:]
        if len(whole) < BLOCKS or whole[-1].number - whole[0].number != BLOCKS - 1:
            return False
        medians = [block.ttft_ms.quantile(0.5) for block in whole if block.ttft_ms.count >= LEAST]
        known = [median for median in medians if median is not None]
        if len(known) < BLOCKS:
            return False
        alike = max(known) <= max(min(known) * _TENTH, min(known) + _NOTHING_MS)
        return alike and whole[-1].mean_in_flight <= whole[0].mean_in_flight * _TENTH + _FEW_TURNS
