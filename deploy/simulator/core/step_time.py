"""Duration of a step: linear model with separate constants for decode-only steps.

    device = fixed + token * tokens + context * decode context + attention * (chunk tokens x context before them)
    step   = max(host, device) * noise        with async scheduling: the host plans while the device computes
    step   = (host + device) * noise          without

A step without prefill chunks has the constants of a decode-only step, and its tokens are padded to the next CUDA graph size.
The front end, a separate process, adds e0 + e1 * prompt tokens before a request reaches the scheduler, and e2 per event; when
it is late, the deltas of a request merge into one event.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from random import Random

from .scheduler import Step

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Pass:
    """Duration of a forward pass: fixed, per token, and per token of context read."""

    fixed_s: float
    token_s: float
    context_s: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """Constants of the step model. `noise` is the sigma of a lognormal factor with mean 1. Empty `graphs`: no padding."""

    decode: Pass
    mixed: Pass
    attention_s: float  # per chunk token and preceding token
    host_s: float
    noise: float
    graphs: tuple[int, ...] = ()
    overlapped: bool = True  # async scheduling


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Time of the API server: per request, per prompt token, and per event."""

    request_s: float = 0.0
    prompt_token_s: float = 0.0
    event_s: float = 0.0

    def before_ns(self, prompt_tokens: int) -> int:
        """Time from the arrival of a request until it reaches the scheduler."""
        return round((self.request_s + self.prompt_token_s * prompt_tokens) * NS_PER_S)


def graph_sizes(max_num_seqs: int, query_tokens: int = 1) -> tuple[int, ...]:
    """Batch sizes that vLLM 0.32 captures as CUDA graphs: 1, 2, 4, steps of 8 up to 256, steps of 16 up to 512."""
    largest = min(max_num_seqs * query_tokens * 2, 512)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


def padded(tokens: int, graphs: Sequence[int]) -> int:
    """Tokens of a decode-only step, padded to the next CUDA graph size; not padded above the largest."""
    index = bisect_left(graphs, tokens)
    return graphs[index] if index < len(graphs) else tokens


def device_s(cost: StepCost, step: Step) -> float:
    """Device time of a step, without noise."""
    if step.prefill_tokens:
        of_pass, tokens, attention_s = cost.mixed, step.tokens, cost.attention_s * step.chunk_context
    else:
        of_pass, tokens, attention_s = cost.decode, padded(step.tokens, cost.graphs), 0.0
    return of_pass.fixed_s + of_pass.token_s * tokens + of_pass.context_s * step.decode_context + attention_s


class StepClock:
    """Durations of consecutive steps, with seeded noise."""

    def __init__(self, cost: StepCost, seed: int) -> None:
        self.cost = cost
        self._random = Random(f"{seed}/steps")

    def duration_ns(self, step: Step) -> int:
        """Duration of this step, at least 1 ns."""
        cost, device = self.cost, device_s(self.cost, step)
        seconds = max(cost.host_s, device) if cost.overlapped else cost.host_s + device
        if cost.noise:
            seconds *= exp(cost.noise * self._random.gauss(0.0, 1.0) - cost.noise * cost.noise / 2)
        return max(1, round(seconds * NS_PER_S))
