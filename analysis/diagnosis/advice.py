"""Advice for each cause: flags of current vLLM with their side effects."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """Change to try. `effects`: on TTFT, TPOT, throughput and memory, in this order."""

    do: str
    why: str
    effects: str


_MORE_CACHE = (
    Advice(
        "--gpu-memory-utilization 0.95",
        "more GPU memory for the KV cache",
        "TTFT shorter, TPOT unchanged, throughput higher, more memory",
    ),
    Advice(
        "--kv-cache-dtype fp8",
        "the same memory holds twice as many tokens",
        "TTFT shorter, TPOT shorter or unchanged, throughput higher, less memory; check answers",
    ),
    Advice(
        "--max-model-len N",
        "less memory per request; longer requests are refused",
        "TTFT shorter, TPOT unchanged, throughput higher, less memory",
    ),
    Advice(
        "--tensor-parallel-size N",
        "weights are sharded; the freed memory becomes KV cache",
        "TTFT shorter, TPOT shorter, throughput higher, less memory per GPU",
    ),
    Advice(
        "--quantization fp8 | awq | gptq",
        "smaller weights leave more memory for the KV cache",
        "TTFT shorter or unchanged, TPOT shorter, throughput higher, less memory; check answers",
    ),
)

ADVICE: Mapping[str, tuple[Advice, ...]] = {
    "client-bound": (
        Advice(
            "locust --processes N, or more workers",
            "a worker is accurate up to a certain number of streams (inferload calibrate)",
            "none on the server",
        ),
    ),
    "preemption-thrash": (
        Advice(
            "--max-num-seqs lower",
            "fewer concurrent requests, so none is preempted",
            "TTFT longer, TPOT shorter, throughput higher, memory unchanged",
        ),
        *_MORE_CACHE,
    ),
    "queue-bound": (
        Advice(
            "--max-num-seqs higher",
            "more requests per step",
            "TTFT shorter, TPOT longer, throughput higher, more memory",
        ),
        Advice(
            "more replicas", "shorter queue per replica", "TTFT shorter, TPOT shorter, throughput higher, more memory"
        ),
    ),
    "kv-bound": _MORE_CACHE,
    "prefill-bound": (
        Advice(
            "--enable-prefix-caching",
            "common prefixes are computed once (on by default; salts and changing prefixes prevent it)",
            "TTFT shorter, TPOT shorter, throughput higher, memory unchanged",
        ),
        Advice(
            "--max-num-batched-tokens 8192 or more",
            "more prompt tokens per step",
            "TTFT shorter, TPOT longer, throughput higher, more memory",
        ),
        Advice(
            "--tensor-parallel-size N",
            "prefill on several GPUs",
            "TTFT shorter, TPOT shorter, throughput higher, less memory per GPU",
        ),
        Advice(
            "--quantization fp8",
            "faster arithmetic if the GPU supports it",
            "TTFT shorter, TPOT shorter, throughput higher, less memory; check answers",
        ),
    ),
    "decode-bound": (
        Advice(
            "--max-num-seqs lower",
            "fewer requests per step make it shorter; others wait",
            "TTFT longer, TPOT shorter, throughput lower, less memory",
        ),
        Advice(
            "--max-num-batched-tokens 2048",
            "prefill delays decoding less per step",
            "TTFT longer, TPOT shorter, throughput lower, less memory",
        ),
        Advice(
            "--quantization awq | gptq | fp8",
            "fewer bytes of weights per step",
            "TTFT unchanged, TPOT shorter, throughput higher, less memory; check answers",
        ),
        Advice(
            "--speculative-config {...}",
            "several tokens per step at low concurrency",
            "TTFT unchanged, TPOT shorter, throughput lower at large batches, more memory",
        ),
        Advice(
            "without --enforce-eager",
            "CUDA graphs reduce host overhead of small steps",
            "TTFT unchanged, TPOT shorter, throughput higher, more memory",
        ),
    ),
    "cache-miss-bound": (
        Advice(
            "variable parts of the prompt (time, ids) after constant parts",
            "a prefix is shared up to its first difference",
            "TTFT shorter, TPOT unchanged, throughput higher, memory unchanged",
        ),
        Advice(
            "route a session to the same replica",
            "its blocks are cached there",
            "TTFT shorter, TPOT unchanged, throughput higher, memory unchanged",
        ),
        *_MORE_CACHE[:2],
    ),
    "front-end-bound": (
        Advice(
            "--api-server-count N",
            "several processes parse requests and write events",
            "TTFT shorter, TPOT shorter, throughput higher, more memory",
        ),
        Advice(
            "--stream-interval N",
            "fewer, larger events",
            "TTFT unchanged, TPOT unchanged, throughput higher, memory unchanged; gaps grow",
        ),
        Advice(
            "without --enable-log-requests",
            "no log line per request",
            "TTFT shorter, TPOT unchanged, throughput higher, memory unchanged",
        ),
    ),
    "deferred": (
        Advice(
            "check LoRA slots (--max-loras), grammars and KV transfer",
            "deferred requests wait for one of them",
            "depends",
        ),
    ),
    "engines-unbalanced": (
        Advice(
            "balancing of the router or of --data-parallel-size",
            "one engine has a queue while another has free capacity",
            "TTFT shorter, TPOT shorter, throughput higher, memory unchanged",
        ),
    ),
    "speculation": (
        Advice(
            "compare with a run without --speculative-config",
            "the acceptance rate alone does not show the effect",
            "depends",
        ),
        Advice(
            "num_speculative_tokens lower",
            "rejected draft tokens are wasted work",
            "TTFT unchanged, TPOT shorter, throughput higher, memory unchanged",
        ),
    ),
    "kept-up": (
        Advice(
            "higher load (inferload search finds the maximum)",
            "the server is not the limit at this load",
            "none",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Cause:
    """Diagnosis of a server or of the whole run."""

    target: str
    sentences: tuple[str, ...]
    advice: tuple[Advice, ...]
