"""Cases of the benchmark: answers of the paced server, and the load. No I/O."""

import math
from dataclasses import dataclass

SIZES = (100, 300, 600, 1000)
_LONGEST_S = 30.0

PLAYED_TOKENS = 50  # of each answer to a worker that `played_workers` plays


@dataclass(frozen=True, slots=True)
class Case:
    """Case of the benchmark. `largest`: maximum number of streams; None: no limit.

    `client_cores`: 1, the core of the client; or 2, also that of the server, whose load must be light.
    """

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
    turns_for_p99: int = 1100  # a p99 needs at least 1,000 turns, and some clients report none below
    largest: int | None = None
    client_cores: int = 1

    @property
    def events(self) -> int:
        """Content events per turn."""
        return math.ceil(self.tokens / self.tokens_per_event)

    @property
    def turn_s(self) -> float:
        return (self.ttft_ms + (self.events - 1) * self.gap_ms) / 1e3

    @property
    def spread_ms(self) -> float:
        """Time over which the starts of the streams are spread; 0: one burst."""
        return self.turn_s * 1e3 if self.spread else 0.0

    def turns_of(self, streams: int) -> int:
        """Return the turns per stream: enough for a p99 of TTFT, within half a minute."""
        maximum = math.floor(_LONGEST_S / self.turn_s)
        return max(self.turns, min(math.ceil(self.turns_for_p99 / streams), maximum))

    def sizes(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """Select the numbers of streams within the limit of the case."""
        return tuple(size for size in numbers if self.largest is None or size <= self.largest)

    def tokens_per_s(self, streams: int) -> float:
        """Return the nominal token rate of a number of streams."""
        return streams * self.tokens / self.turn_s


_ALL = (
    Case("base", "all streams start, and therefore end, in one burst"),
    Case("spread", "starts spread over one turn", spread=True),
    Case("long", "long answers at a slower pace", gap_ms=20, tokens=500, turns=2),
    Case("tls", "TLS", tls=True),
    Case("eight", "eight tokens per event", tokens=800, tokens_per_event=8),
    Case("bodies", "request bodies of 500 kB", body_bytes=500_000, largest=300),
    Case("minute", "one minute, beside which start and report count little", turns=58, largest=600),
    Case(
        "cores", "both cores for the client, beside a light server", gap_ms=50, tokens=50, largest=300, client_cores=2
    ),
)
CASES = {case.name: case for case in _ALL}
