"""What a `--speculative-config` asks of the scheduler, by method (vLLM 0.32: `config/speculative.py`, `config/vllm.py`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferload.errors import UsageError


@dataclass(frozen=True, slots=True)
class _Method:
    """`own_cache`: its drafts have KV slots ahead of the model's own. `reads_states`: it reads the model's hidden states, so the
    last block of a hit is computed again. `overlapped`: it goes together with async scheduling.
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
    """What speculates: so many drafts a step. Slots are those of `queues.Limits`."""

    method: str
    tokens: int
    lookahead_tokens: int = 0
    draft_slots: int = 0
    drop_last_hit: bool = False
    overlapped: bool = True


def speculation(said: Mapping[str, Any]) -> Speculation | None:
    """The object as it was given, resolved; None where it is empty. UsageError names what it gets wrong."""
    if not said:
        return None
    name = str(said.get("method", "draft_model" if "model" in said else None))
    name = "mtp" if name.endswith("_mtp") else name
    tokens = said.get("num_speculative_tokens")
    if name not in _METHODS:
        raise UsageError(f"--speculative-config: method {name}: not known here; choose from {', '.join(_METHODS)}")
    if type(tokens) is not int or tokens < 1:
        raise UsageError(f"--speculative-config: num_speculative_tokens {tokens}: a whole number of at least 1")
    method = _METHODS[name]
    return Speculation(
        name,
        tokens,
        lookahead_tokens=tokens + (name == "dflash") if method.own_cache else 0,
        draft_slots=_draft_slots(name, tokens, bool(said.get("parallel_drafting"))),
        drop_last_hit=method.reads_states and not said.get("disable_eagle_block_drop"),
        overlapped=method.overlapped and not said.get("disable_padded_drafter_batch"),
    )


def _draft_slots(method: str, tokens: int, parallel: bool) -> int:
    """Further tokens of the step's budget that each request takes."""
    if method == "dflash" or (parallel and method == "draft_model"):
        return tokens
    if parallel or method == "dspark":
        return tokens - 1
    return int(method == "draft_model")
