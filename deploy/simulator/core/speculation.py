"""Speculative decoding: accepted drafts per step, and scheduler settings of a `--speculative-config`.

Methods follow vLLM 0.32 (`config/speculative.py`, `config/vllm.py`).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from inferload.errors import UsageError


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
    """Random acceptance of drafts. `rate` is the acceptance probability of a draft, given that all before it were accepted.

    One rate for all positions gives a truncated geometric number of accepted drafts.
    """

    def __init__(self, tokens: int, rate: float | Sequence[float], seed: int) -> None:
        self.counts = SpecCounts(tokens)
        self._rates = (rate,) * tokens if isinstance(rate, int | float) else tuple(rate)
        self._random = Random(f"{seed}/speculation")

    def draw(self, drafts: int) -> int:
        """Draw the number of accepted drafts and update the counters."""
        if not drafts:
            return 0
        counts, accepted, rates = self.counts, 0, self._rates
        while accepted < drafts and self._random.random() < rates[accepted]:
            counts.per_position[accepted] += 1
            accepted += 1
        counts.drafts += 1
        counts.draft_tokens += drafts
        counts.accepted += accepted
        return accepted


@dataclass(frozen=True, slots=True)
class _Method:
    """Properties of a method.

    `own_cache`: drafts have KV slots ahead of the model's. `reads_states`: the drafter reads the model's hidden states, so the
    last block of a hit is computed again. `overlapped`: compatible with async scheduling.
    """

    own_cache: bool = False
    reads_states: bool = False
    overlapped: bool = True


_HEAD = _Method(own_cache=True, reads_states=True)
_METHODS: Mapping[str, _Method] = {
    **dict.fromkeys(("ngram", "suffix", "medusa", "mlp_speculator"), _Method(overlapped=False)),
    "ngram_gpu": _Method(),
    **dict.fromkeys(("eagle", "eagle3", "mtp", "dflash", "dspark"), _HEAD),
    "draft_model": _Method(own_cache=True),
}


@dataclass(frozen=True, slots=True)
class Speculation:
    """Resolved speculative config: drafts per step, and the slots of `SchedulerLimits`."""

    method: str
    tokens: int
    lookahead_tokens: int = 0
    draft_slots: int = 0
    drop_last_hit: bool = False
    overlapped: bool = True
    rates: tuple[float, ...] | None = None  # acceptance per position, given those before; None if not in the config


def speculation(config: Mapping[str, Any]) -> Speculation | None:
    """Resolve a `--speculative-config`. Return None if it is empty. Raise UsageError for an invalid value."""
    if not config:
        return None
    name = str(config.get("method", "draft_model" if "model" in config else None))
    name = "mtp" if name.endswith("_mtp") else name
    tokens = config.get("num_speculative_tokens")
    if name not in _METHODS:
        raise UsageError(f"--speculative-config: method {name}: unknown; choose from {', '.join(_METHODS)}")
    if type(tokens) is not int or tokens < 1:
        raise UsageError(f"--speculative-config: num_speculative_tokens {tokens}: needs an integer of at least 1")
    method = _METHODS[name]
    return Speculation(
        name,
        tokens,
        lookahead_tokens=tokens + (name == "dflash") if method.own_cache else 0,
        draft_slots=_draft_slots(name, tokens, bool(config.get("parallel_drafting"))),
        drop_last_hit=method.reads_states and not config.get("disable_eagle_block_drop"),
        overlapped=method.overlapped and not config.get("disable_padded_drafter_batch"),
        rates=_rates(config, tokens),
    )


def _rates(config: Mapping[str, Any], tokens: int) -> tuple[float, ...] | None:
    """Acceptance by position in vLLM's synthetic rejection sampling: p(i) / p(i - 1) of the configured shares."""
    rates, length = config.get("synthetic_acceptance_rates"), config.get("synthetic_acceptance_length")
    if config.get("rejection_sample_method") != "synthetic":
        if rates is not None or length is not None:
            raise UsageError(
                "--speculative-config: synthetic_acceptance_*: only with rejection_sample_method synthetic; "
                "use --spec-acceptance instead"
            )
        return None
    if (rates is None) == (length is None):
        raise UsageError(
            "--speculative-config: rejection_sample_method synthetic: needs either "
            "synthetic_acceptance_rates or synthetic_acceptance_length"
        )
    shares = _shares_of_length(length, tokens) if rates is None else rates
    if not _are_shares(shares, tokens):
        raise UsageError(
            f"--speculative-config: synthetic_acceptance_rates {rates}: needs {tokens} numbers from 0 to 1, not increasing"
        )
    return tuple(share / before if before else 0.0 for share, before in zip(shares, (1.0, *shares[:-1]), strict=True))


def _shares_of_length(length: Any, tokens: int) -> list[float]:
    """Acceptance shares by position for a mean length, as in vLLM: 1 first, then the remainder."""
    if isinstance(length, bool) or not isinstance(length, int | float) or not 1 <= length <= tokens + 1:
        raise UsageError(
            f"--speculative-config: synthetic_acceptance_length {length}: needs a number from 1 to {tokens + 1}"
        )
    return [min(1.0, max(0.0, length - 1 - position)) for position in range(tokens)]


def _are_shares(shares: Any, tokens: int) -> bool:
    if not isinstance(shares, Sequence) or len(shares) != tokens:
        return False
    if not all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares):
        return False
    return all(after <= before for before, after in itertools.pairwise(shares))


def _draft_slots(method: str, tokens: int, parallel: bool) -> int:
    """Additional tokens of the step budget per request."""
    if method == "dflash" or (parallel and method == "draft_model"):
        return tokens
    if parallel or method == "dspark":
        return tokens - 1
    return int(method == "draft_model")
