"""What is measured: the answers of the paced server, and how they are asked for. Pure data and arithmetic."""

import math
from dataclasses import dataclass

SIZES = (100, 300, 600, 1000)
_LONGEST_S = 30.0


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of answers. `largest`: the most streams that it is measured with; None: as many as asked for."""

    name: str
    text: str
    ttft_ms: float = 50.0
    gap_ms: float = 10.0
    tokens: int = 100
    tokens_per_event: int = 1
    body_bytes: int = 0
    tls: bool = False
    spread: bool = False
    turns: int = 6
    turns_for_p99: int = 1100  # a p99 of fewer than 1,000 turns says little, and some clients then print none
    largest: int | None = None

    @property
    def events(self) -> int:
        """Events that carry content, of one turn."""
        return math.ceil(self.tokens / self.tokens_per_event)

    @property
    def turn_s(self) -> float:
        """How long a turn takes where nobody is late."""
        return (self.ttft_ms + (self.events - 1) * self.gap_ms) / 1e3

    @property
    def spread_ms(self) -> float:
        """Over how long the starts of the streams are spread, so that they do not beat together; 0: one burst."""
        return self.turn_s * 1e3 if self.spread else 0.0

    def turns_of(self, streams: int) -> int:
        """Turns of each stream: enough for a p99 of TTFT where that takes no longer than half a minute."""
        affordable = math.floor(_LONGEST_S / self.turn_s)
        return max(self.turns, min(math.ceil(self.turns_for_p99 / streams), affordable))

    def sizes(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the wanted numbers of streams that the case is measured with."""
        return tuple(size for size in wanted if self.largest is None or size <= self.largest)

    def tokens_per_s(self, streams: int) -> float:
        """What so many streams take in one second where nobody is late."""
        return streams * self.tokens / self.turn_s


_ALL = (
    Case("base", "all streams start, and therefore end, in one burst"),
    Case("spread", "starts spread over one turn", spread=True),
    Case("long", "long answers at a slower pace", gap_ms=20, tokens=500, turns=2),
    Case("tls", "TLS", tls=True),
    Case("eight", "eight tokens in each event", tokens=800, tokens_per_event=8),
    Case("bodies", "request bodies of 500 kB", body_bytes=500_000, largest=300),
)
CASES = {case.name: case for case in _ALL}
