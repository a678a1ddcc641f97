"""Speculative decoding as a scheduler sees it: so many drafts a step, of which a run from the front is accepted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random


@dataclass(slots=True)
class SpecCounts:
    """vLLM's counters; `per_position[i]` counts the steps that accepted draft i. The bonus token is in none of them."""

    tokens: int  # drafts a step
    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    per_position: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.per_position = self.per_position or [0] * self.tokens

    def reset(self) -> None:
        """Back to nothing."""
        self.drafts = self.draft_tokens = self.accepted = 0
        self.per_position = [0] * self.tokens


class Acceptance:
    """Each draft is accepted with a chance, given that all before it were: the same for all, which makes a truncated geometric
    length, or one for each position.
    """

    def __init__(self, tokens: int, rate: float | Sequence[float], seed: int) -> None:
        self.counts = SpecCounts(tokens)
        self._rates = (rate,) * tokens if isinstance(rate, int | float) else tuple(rate)
        self._dice = Random(f"{seed}/speculation")

    def draw(self, drafts: int) -> int:
        """How many of so many drafts are accepted; counted."""
        if not drafts:
            return 0
        counts, accepted, rates = self.counts, 0, self._rates
        while accepted < drafts and self._dice.random() < rates[accepted]:
            counts.per_position[accepted] += 1
            accepted += 1
        counts.drafts += 1
        counts.draft_tokens += drafts
        counts.accepted += accepted
        return accepted
