"""Server configuration from the command line, with vLLM's checks."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace

from inferload.base.errors import UsageError

from . import flags
from .core.hardware import Build, Preset, find, kv_blocks, kv_bytes_per_token, step_cost
from .core.paced import Pace, PacedCore, PacedScheduler
from .core.pipeline import Core, Pipeline
from .core.queues import SchedulerLimits
from .core.scheduler import Scheduler
from .core.speculation import Acceptance, drafts_of
from .core.step_time import FrontEnd, StepClock, StepCost
from .engine.engine import Engine
from .metrics.engine_metrics import Metrics, check_bounds

DEFAULT_HARDWARE = "a100-llama3-8b"
_PACED_BLOCKS, _PACED_LENGTH = 8192, 32_768


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Resolved configuration. `pace` is None for the step model. `shown_blocks` includes vLLM's null block."""

    arguments: argparse.Namespace
    limits: SchedulerLimits
    shown_blocks: int
    pace: Pace | None
    cost: StepCost | None
    front_end: FrontEnd
    stands_for: str  # model and devices of the step times; "no model" for paced timing

    def engine(self, seed: int) -> Engine:
        """Build the engine. `seed`: of the noise of step times and of accepted drafts."""
        drafts, given = self.limits.speculative_tokens, self.arguments
        acceptance = Acceptance(drafts, given.spec_acceptance, seed) if drafts else None
        core: Core
        if self.pace is not None:
            core = PacedCore(PacedScheduler(self.limits), self.pace)
        else:
            assert self.cost is not None
            core = Pipeline(Scheduler(self.limits, acceptance), StepClock(self.cost, seed))
        metrics = Metrics(acceptance.counts if acceptance else None, given.custom_histogram_buckets)
        queued = (given.max_num_queued_reqs, given.max_num_queued_tokens)
        return Engine(core, self.front_end, metrics, given.stream_interval, queued)


def resolve(arguments: argparse.Namespace) -> ServerConfig:
    """Resolve a command line. Raise UsageError for an invalid argument."""
    flags.without_effect(arguments)
    if arguments.model_tag is not None and arguments.model is not None:
        raise UsageError(
            f"{arguments.model_tag}: no flag takes this value, and --model already names the model; a switch takes no value"
        )
    check_values(arguments)
    check_bounds(arguments.custom_histogram_buckets)
    paced = flags.is_paced(arguments)
    preset = find(arguments.hardware or DEFAULT_HARDWARE)
    build = build_of(arguments)
    limits, shown = limits_of(arguments, preset, build, paced)
    query_tokens = 1 + limits.speculative_tokens
    cost = None if paced else _cost(arguments, step_cost(preset, build, limits.max_num_seqs, query_tokens), limits)
    return ServerConfig(
        arguments,
        limits=limits,
        shown_blocks=shown,
        pace=_pace(arguments) if paced else None,
        cost=cost,
        front_end=FrontEnd() if paced else _front_end(arguments, preset),
        stands_for="no model: its TTFT and ITL are set" if paced else preset.stands_for(build.tensor_parallel),
    )


def build_of(arguments: argparse.Namespace) -> Build:
    """Return the arguments that change size and speed of the model."""
    return Build(
        dtype=arguments.dtype,
        quantization=arguments.quantization,
        kv_cache_dtype=arguments.kv_cache_dtype,
        tensor_parallel=arguments.tensor_parallel_size,
        enforce_eager=arguments.enforce_eager,
        speculative=arguments.speculative_config,
    )


def _pace(arguments: argparse.Namespace) -> Pace:
    return Pace(
        ttft_ns=round((50.0 if arguments.ttft_ms is None else arguments.ttft_ms) * 1e6),
        itl_ns=round((10.0 if arguments.itl_ms is None else arguments.itl_ms) * 1e6),
        prefill_tok_per_s=arguments.prefill_tok_per_s or 0.0,
        jitter=arguments.jitter or 0.0,
        seed=arguments.seed,
    )


def limits_of(arguments: argparse.Namespace, preset: Preset, build: Build, paced: bool) -> tuple[SchedulerLimits, int]:
    """Return the limits of the scheduler, and the number of KV blocks that vLLM reports. UsageError if they do not fit."""
    size = arguments.block_size or (16 if paced else preset.block_size)
    blocks, shown = _blocks(arguments, preset, build, size, paced)
    length = _model_length(arguments, blocks * size, _PACED_LENGTH if paced else preset.model.max_model_len)
    seqs, budget = _batch(arguments, preset, length, paced)
    if not paced:
        _check_budget(arguments, budget, seqs, length)
    asynchronous = preset.async_scheduling if arguments.async_scheduling is None else arguments.async_scheduling
    limits = SchedulerLimits(
        max_num_seqs=seqs,
        blocks=blocks,
        block_size=size,
        caching=arguments.enable_prefix_caching,
        max_model_len=length,
        max_num_batched_tokens=budget,
        chunked_prefill=arguments.enable_chunked_prefill,
        long_prefill_token_threshold=arguments.long_prefill_token_threshold,
        long_prefill_adaptive=arguments.long_prefill_token_threshold_adaptive,
        reserve_full_prompt=arguments.scheduler_reserve_full_isl,
        watermark=arguments.watermark,
        async_scheduling=asynchronous,
        speculative_tokens=drafts_of(arguments.speculative_config),
    )
    return limits, shown


def _batch(arguments: argparse.Namespace, preset: Preset, length: int, paced: bool) -> tuple[int, int]:
    """Maximum running requests and tokens per step, with defaults as in vLLM's `engine/arg_utils.py`."""
    seqs = arguments.max_num_seqs or (256 if paced else preset.max_num_seqs)
    budget = arguments.max_num_batched_tokens
    if budget is None:
        budget = preset.max_num_batched_tokens
        budget = min(seqs * length, budget if arguments.enable_chunked_prefill else max(budget, length))
    if arguments.max_num_seqs is None and not paced:  # paced timing has no budget
        seqs = min(seqs, budget)
    return seqs, budget


def _blocks(arguments: argparse.Namespace, preset: Preset, build: Build, size: int, paced: bool) -> tuple[int, int]:
    """Blocks available to requests, and the number that vLLM reports."""
    if arguments.num_gpu_blocks is not None:
        return arguments.num_gpu_blocks, arguments.num_gpu_blocks
    if arguments.num_gpu_blocks_override is not None:
        return arguments.num_gpu_blocks_override - 1, arguments.num_gpu_blocks_override
    if arguments.kv_cache_memory_bytes is not None:
        count = int(arguments.kv_cache_memory_bytes // (kv_bytes_per_token(preset, build) * size))
        if count < 2:
            raise UsageError(
                f"--kv-cache-memory-bytes {arguments.kv_cache_memory_bytes}: less than two blocks of {size} tokens; raise it"
            )
        return count - 1, count
    if paced:
        return _PACED_BLOCKS, _PACED_BLOCKS
    count = kv_blocks(preset, build, arguments.gpu_memory_utilization, size)
    return count - 1, count


def _model_length(arguments: argparse.Namespace, capacity: int, default: int) -> int:
    if arguments.max_model_len == -1 or (arguments.max_model_len is None and default > capacity):
        return min(default, capacity)
    length = default if arguments.max_model_len is None else int(arguments.max_model_len)
    if length > capacity:
        raise UsageError(
            f"--max-model-len {length}: more than the {capacity} tokens of the KV cache; "
            "lower it, or raise --num-gpu-blocks-override or --gpu-memory-utilization"
        )
    return length


def _check_budget(arguments: argparse.Namespace, budget: int, seqs: int, length: int) -> None:
    if budget < length and not arguments.enable_chunked_prefill:
        raise UsageError(
            f"--max-num-batched-tokens {budget}: less than --max-model-len {length}, so without chunked prefill longer "
            "prompts cannot run; raise the first or lower the second"
        )
    if budget < seqs:
        raise UsageError(f"--max-num-batched-tokens {budget}: less than --max-num-seqs {seqs}; raise it")
    if arguments.long_prefill_token_threshold > length:
        raise UsageError(
            f"--long-prefill-token-threshold {arguments.long_prefill_token_threshold}: more than --max-model-len {length}"
        )


def _cost(arguments: argparse.Namespace, cost: StepCost, limits: SchedulerLimits) -> StepCost:
    noise = cost.noise if arguments.step_noise is None else arguments.step_noise
    cost = replace(cost, overlapped=limits.async_scheduling, noise=noise)
    if arguments.max_cudagraph_capture_size is not None:
        cost = replace(cost, graphs=tuple(size for size in cost.graphs if size <= arguments.max_cudagraph_capture_size))
    return cost


def _front_end(arguments: argparse.Namespace, preset: Preset) -> FrontEnd:
    if arguments.event_us is None:
        return preset.front_end
    return replace(preset.front_end, event_s=arguments.event_us / 1e6)


_MAX_MS, _MAX_TOKENS = 86_400_000, 1_000_000_000
_RANGES: Mapping[str, tuple[int, float]] = {
    **dict.fromkeys(("jitter", "spec_acceptance", "tool_call_share", "watermark"), (0, 1)),
    **dict.fromkeys(("ttft_ms", "itl_ms", "event_us"), (0, _MAX_MS)),
    **dict.fromkeys(("prefill_tok_per_s", "eos_mean_tokens", "reasoning_mean_tokens"), (0, _MAX_TOKENS)),
    **dict.fromkeys(("long_prefill_token_threshold", "max_num_queued_reqs", "max_num_queued_tokens"), (0, _MAX_TOKENS)),
    **dict.fromkeys(("max_num_batched_tokens", "stream_interval"), (1, _MAX_TOKENS)),
    **dict.fromkeys(("image_tokens", "max_cudagraph_capture_size"), (0, 1_000_000)),
    **dict.fromkeys(("max_num_seqs", "block_size"), (1, 1_000_000)),
    "port": (0, 65_535),
    "step_noise": (0, 10),
    "exit_after_s": (0, 31_536_000),  # a year
    "num_gpu_blocks": (1, 10_000_000),
    "num_gpu_blocks_override": (2, 10_000_000),
    "tensor_parallel_size": (1, 1024),
}


def check_values(arguments: argparse.Namespace) -> None:
    """Raise UsageError for a value out of its range."""
    length = {} if arguments.max_model_len == -1 else {"max_model_len": (1, _MAX_TOKENS)}
    for name, (lower, upper) in {**_RANGES, **length}.items():
        value = getattr(arguments, name)
        if value is not None and not lower <= value <= upper:
            raise UsageError(f"--{name.replace('_', '-')} {value}: from {lower} to {upper}")
    if not 0 < arguments.gpu_memory_utilization <= 1:
        raise UsageError(f"--gpu-memory-utilization {arguments.gpu_memory_utilization}: above 0, at most 1")
    if arguments.enable_auto_tool_choice and not arguments.tool_call_parser:
        raise UsageError("--enable-auto-tool-choice: needs --tool-call-parser, such as hermes")
    if arguments.tls_key is not None and arguments.tls_cert is None:
        raise UsageError(f"--tls-key {arguments.tls_key}: needs --tls-cert")
