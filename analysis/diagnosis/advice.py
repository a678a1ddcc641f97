"""Advice for each cause: a flag of current vLLM, and its cost."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to try. `effects` on TTFT, TPOT, throughput, memory, in this order."""

    do: str
    why: str
    effects: str


_MORE_CACHE = (
    Advice(
        "--gpu-memory-utilization 0.95",
        "more of the GPU's memory becomes KV cache",
        "TTFT shorter, TPOT unchanged, throughput higher, more memory",
    ),
    Advice(
        "--kv-cache-dtype fp8",
        "the same memory holds twice the tokens",
        "TTFT shorter, TPOT shorter or unchanged, throughput higher, less memory; check answers",
    ),
    Advice(
        "--max-model-len N",
        "a lower limit reserves less and refuses what is too long",
        "TTFT shorter, TPOT unchanged, throughput higher, less memory",
    ),
    Advice(
        "--tensor-parallel-size N",
        "weights are shared out, and what they leave is cache",
        "TTFT shorter, TPOT shorter, throughput higher, less memory per GPU",
    ),
    Advice(
        "--quantization fp8 | awq | gptq",
        "smaller weights leave room for cache",
        "TTFT shorter or unchanged, TPOT shorter, throughput higher, less memory; check answers",
    ),
)

ADVICE: Mapping[str, tuple[Advice, ...]] = {
    "client-bound": (
        Advice(
            "locust --processes N, or more workers",
            "one process measures truly up to a number of streams (inferload calibrate)",
            "none: the figures become the server's",
        ),
    ),
    "preemption-thrash": (
        Advice(
            "--max-num-seqs lower",
            "fewer answers grow at once, so none loses its blocks",
            "TTFT longer, TPOT shorter, throughput higher, memory unchanged",
        ),
        *_MORE_CACHE,
    ),
    "queue-bound": (
        Advice(
            "--max-num-seqs higher",
            "more requests share each step",
            "TTFT shorter, TPOT longer, throughput higher, more memory",
        ),
        Advice(
            "more replicas", "the queue is shared out", "TTFT shorter, TPOT shorter, throughput higher, more memory"
        ),
    ),
    "kv-bound": _MORE_CACHE,
    "prefill-bound": (
        Advice(
            "--enable-prefix-caching",
            "prompts that begin alike are computed once (default; salts and changing beginnings undo it)",
            "TTFT shorter, TPOT shorter, throughput higher, memory unchanged",
        ),
        Advice(
            "--max-num-batched-tokens 8192 or more",
            "more prompt tokens go into a step",
            "TTFT shorter, TPOT longer, throughput higher, more memory",
        ),
        Advice(
            "--tensor-parallel-size N",
            "prompts are computed by several GPUs",
            "TTFT shorter, TPOT shorter, throughput higher, less memory per GPU",
        ),
        Advice(
            "--quantization fp8",
            "quicker arithmetic where the GPU has it",
            "TTFT shorter, TPOT shorter, throughput higher, less memory; check answers",
        ),
    ),
    "decode-bound": (
        Advice(
            "--max-num-seqs lower",
            "a step with fewer answers is shorter; others wait",
            "TTFT longer, TPOT shorter, throughput lower, less memory",
        ),
        Advice(
            "--max-num-batched-tokens 2048",
            "prompts hold up fewer answers at a time",
            "TTFT longer, TPOT shorter, throughput lower, less memory",
        ),
        Advice(
            "--quantization awq | gptq | fp8",
            "a step reads fewer bytes of weights",
            "TTFT unchanged, TPOT shorter, throughput higher, less memory; check answers",
        ),
        Advice(
            "--speculative-config {...}",
            "several tokens a step, where few requests run at once",
            "TTFT unchanged, TPOT shorter, throughput lower at large batches, more memory",
        ),
        Advice(
            "without --enforce-eager",
            "CUDA graphs save the host's part of a small step",
            "TTFT unchanged, TPOT shorter, throughput higher, more memory",
        ),
    ),
    "cache-miss-bound": (
        Advice(
            "what changes (a time, an id) behind what does not",
            "a prefix is shared up to its first difference",
            "TTFT shorter, TPOT unchanged, throughput higher, memory unchanged",
        ),
        Advice(
            "route a session to the same replica",
            "its blocks lie there",
            "TTFT shorter, TPOT unchanged, throughput higher, memory unchanged",
        ),
        *_MORE_CACHE[:2],
    ),
    "front-end-bound": (
        Advice(
            "--api-server-count N",
            "several processes take requests and write events",
            "TTFT shorter, TPOT shorter, throughput higher, more memory",
        ),
        Advice(
            "--stream-interval N",
            "fewer, larger events",
            "TTFT unchanged, TPOT unchanged, throughput higher, memory unchanged; gaps grow",
        ),
        Advice(
            "without --enable-log-requests",
            "no line for each request",
            "TTFT shorter, TPOT unchanged, throughput higher, memory unchanged",
        ),
    ),
    "deferred": (
        Advice("look at LoRA slots (--max-loras), grammars and KV transfer", "one of them is waited for", "depends"),
    ),
    "engines-unbalanced": (
        Advice(
            "the router's or --data-parallel balancing",
            "one engine waits while another has room",
            "TTFT shorter, TPOT shorter, throughput higher, memory unchanged",
        ),
    ),
    "speculation": (
        Advice("an arm without --speculative-config", "acceptance alone is no verdict", "depends"),
        Advice(
            "num_speculative_tokens lower",
            "guesses that are not taken are work for nothing",
            "TTFT unchanged, TPOT shorter, throughput higher, memory unchanged",
        ),
    ),
    "kept-up": (
        Advice(
            "more load (inferload search finds how much the server sustains)",
            "nothing holds the server back at this load",
            "none",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Cause:
    """What held the run back at one server: sentences, and what to try as (what, why, effects)."""

    target: str
    sentences: tuple[str, ...]
    advice: tuple[tuple[str, str, str], ...]
