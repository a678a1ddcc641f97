"""Cached tokens beyond the expected upper bound, with one common bound for turns that were in flight at the same time.

Expectations are computed in one order of the turns; a server can compute prompts that overlap in time in another order.
The turn that came first by expectation then has an excess, and the turn that the server computed first has a deficit of the
same tokens: positions of a prefix that both have. Such a deficit explains the excess if its turn was sent before the other
turn's first token. A deficit of a turn that was sent later, as after an eviction, explains nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from inferload.workload.prefix_cache.expected import Span, common_tokens

_Range = tuple[int, int]  # positions of a prompt, half-open


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that was sent, and its time in flight before the first token. `cached`: as reported; None: not reported."""

    row: Sequence[Span]
    tokens: int
    cached: int | None
    sent_ns: int
    first_ns: int


@dataclass(slots=True)
class _Open:
    """A turn with unexplained cached tokens; `tolerance`: error of approximate lengths, in tokens."""

    prompt: Prompt
    unexplained: list[_Range]
    tolerance: int

    @property
    def tokens(self) -> int:
        return _size(self.unexplained)

    @property
    def far(self) -> int:
        return max(0, self.tokens - self.tolerance)


@dataclass(slots=True)
class Excess:
    """Unexplained cached tokens over turns. `far`: beyond the error of approximate lengths."""

    _settled: int = 0
    _settled_far: int = 0
    _open: list[_Open] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """All unexplained tokens."""
        return self._settled + sum(turn.tokens for turn in self._open)

    @property
    def far(self) -> int:
        """Unexplained tokens beyond the tolerance of each turn."""
        return self._settled_far + sum(turn.far for turn in self._open)

    def add(self, prompt: Prompt, most: int, tolerance: int) -> None:
        """Book a turn. `most`: upper bound of its cached tokens. Without a report any of these may be a deficit."""
        cached = prompt.cached or 0
        if cached > most:
            self._open.append(_Open(prompt, [(most, cached)], tolerance))
        elif cached < most:
            self._explain(prompt, [(cached, most)])

    def settle(self, from_ns: int) -> None:
        """Close turns whose first token came by then: all turns that are booked from now on were sent later."""
        closed = [turn for turn in self._open if turn.prompt.first_ns <= from_ns]
        if closed:
            self._settled += sum(turn.tokens for turn in closed)
            self._settled_far += sum(turn.far for turn in closed)
            self._open = [turn for turn in self._open if turn.prompt.first_ns > from_ns and turn.unexplained]

    def _explain(self, prompt: Prompt, deficit: list[_Range]) -> None:
        for turn in self._open:
            if prompt.sent_ns >= turn.prompt.first_ns or not _overlap(turn.unexplained, deficit):
                continue
            common = common_tokens(turn.prompt.row, prompt.row)
            moved = _overlap(_overlap(turn.unexplained, deficit), [(0, common)])
            turn.unexplained = _without(turn.unexplained, moved)
            deficit = _without(deficit, moved)


def _size(ranges: Sequence[_Range]) -> int:
    return sum(end - start for start, end in ranges)


def _overlap(ranges: Sequence[_Range], others: Sequence[_Range]) -> list[_Range]:
    both = [(max(start, a), min(end, b)) for start, end in ranges for a, b in others]
    return [(start, end) for start, end in both if start < end]


def _without(ranges: Sequence[_Range], removed: Sequence[_Range]) -> list[_Range]:
    left = list(ranges)
    for a, b in removed:
        pieces = [piece for start, end in left for piece in ((start, min(end, a)), (max(start, b), end))]
        left = [(start, end) for start, end in pieces if start < end]
    return left
