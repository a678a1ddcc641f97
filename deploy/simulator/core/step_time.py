"""Duration of a step: a linear model with separate constants for decode-only steps.

    device = fixed + token * tokens + context * decode context + attention * (chunk tokens x context before them)
    step   = max(host, device) * noise        with async scheduling, where the host plans while the device computes
    step   = (host + device) * noise          without

Without chunks the tokens are padded to the next CUDA graph's size, and the constants are those of a decode-only step.
The front end, a process of its own, takes e0 + e1 * prompt tokens before a request reaches the scheduler, and e2 for
each event on its way out; where it is behind, the deltas of one request merge into one event.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from random import Random

from .scheduler import Step

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Pass:
    """Seconds of one pass through the model: in any case, for each token, for each token of context that is read."""

    fixed_s: float
    token_s: float
    context_s: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """The constants of the model. `noise` is the sigma of a lognormal factor with mean 1; `graphs` empty: no padding."""

    decode: Pass
    mixed: Pass
    attention_s: float  # for each chunk token and each token of context before it
    host_s: float
    noise: float
    graphs: tuple[int, ...] = ()
    overlapped: bool = True  # the host plans the next step meanwhile


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Seconds that the API server takes: for each request, for each of its prompt tokens, for each event."""

    request_s: float = 0.0
    prompt_token_s: float = 0.0
    event_s: float = 0.0

    def before_ns(self, prompt_tokens: int) -> int:
        """From a request's arrival until the scheduler has it."""
        return round((self.request_s + self.prompt_token_s * prompt_tokens) * NS_PER_S)


def graph_sizes(max_num_seqs: int, query_tokens: int = 1) -> tuple[int, ...]:
    """The batch sizes that vLLM 0.32 captures as CUDA graphs: 1, 2, 4, steps of 8 to 256, of 16 to 512 at most."""
    most = min(max_num_seqs * query_tokens * 2, 512)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)]
    return tuple(size for size in sizes if size <= most)


def padded(tokens: int, graphs: Sequence[int]) -> int:
    """The tokens that a decode-only step computes: up to the next graph's size; above the largest nothing is added."""
    place = bisect_left(graphs, tokens)
    return graphs[place] if place < len(graphs) else tokens


def device_s(cost: StepCost, step: Step) -> float:
    """Time of the accelerator in a step, without noise."""
    if step.prefill_tokens:
        own = cost.mixed
        extra = cost.attention_s * step.chunk_context
        return own.fixed_s + own.token_s * step.tokens + own.context_s * step.decode_context + extra
    own = cost.decode
    return own.fixed_s + own.token_s * padded(step.tokens, cost.graphs) + own.context_s * step.decode_context


class StepClock:
    """Durations of steps, one after another; the same seed gives the same noise."""

    def __init__(self, cost: StepCost, seed: int) -> None:
        self.cost = cost
        self._dice = Random(f"{seed}/steps")

    def duration_ns(self, step: Step) -> int:
        """How long this step takes, at least 1 ns."""
        cost, device = self.cost, device_s(self.cost, step)
        seconds = max(cost.host_s, device) if cost.overlapped else cost.host_s + device
        if cost.noise:
            seconds *= exp(cost.noise * self._dice.gauss(0.0, 1.0) - cost.noise * cost.noise / 2)
        return max(1, round(seconds * NS_PER_S))


def eager(cost: StepCost) -> StepCost:
    """Without CUDA graphs: no padding, and the host launches each kernel itself (assumed: four times its time)."""
    return replace(cost, graphs=(), host_s=4 * cost.host_s)
