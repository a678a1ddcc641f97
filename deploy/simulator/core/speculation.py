"""Speculative decoding: accepted drafts per step, and the number of drafts of a `--speculative-config`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from inferload.base.errors import UsageError


@dataclass(slots=True)
class SpecCounts:
    """Counters as in vLLM, without the bonus token; `per_position[i]` counts the steps that accepted draft i."""

    tokens: int  # drafts per step
    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    per_position: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.per_position = self.per_position or [0] * self.tokens

    def reset(self) -> None:
        """Reset all counts."""
        self.drafts = self.draft_tokens = self.accepted = 0
        self.per_position = [0] * self.tokens


class Acceptance:
    """Random acceptance of drafts: a truncated geometric number of them.

    `rate` is the acceptance probability of a draft, given that all before it were accepted.
    """

    def __init__(self, tokens: int, rate: float, seed: int) -> None:
        self.counts = SpecCounts(tokens)
        self._rate = rate
        self._random = Random(f"{seed}/speculation")

    def draw(self, drafts: int) -> int:
        """Draw the number of accepted drafts and update the counters."""
        if not drafts:
            return 0
        counts, accepted = self.counts, 0
        while accepted < drafts and self._random.random() < self._rate:
            counts.per_position[accepted] += 1
            accepted += 1
        counts.drafts += 1
        counts.draft_tokens += drafts
        counts.accepted += accepted
        return accepted


def drafts_of(config: Mapping[str, Any]) -> int:
    """Drafts per step of a `--speculative-config`, by any method; 0 if it is empty. Raise UsageError if it is invalid."""
    tokens = config.get("num_speculative_tokens") if config else 0
    if type(tokens) is not int or (config and tokens < 1):
        raise UsageError(f"--speculative-config: num_speculative_tokens {tokens}: needs an integer of at least 1")
    return tokens
