"""What to try against each cause: a flag of current vLLM, and what it costs. Effects: + better, - worse, 0 the same."""

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
        "TTFT +, TPOT 0, throughput +, memory -",
    ),
    Advice(
        "--kv-cache-dtype fp8",
        "the same memory holds twice the tokens",
        "TTFT +, TPOT +/0, throughput +, memory +; check answers",
    ),
    Advice(
        "--max-model-len N",
        "a lower limit reserves less and refuses what is too long",
        "TTFT +, TPOT 0, throughput +, memory +",
    ),
    Advice(
        "--tensor-parallel-size N",
        "weights are shared out, and what they leave is cache",
        "TTFT +, TPOT +, throughput +, memory + per GPU",
    ),
    Advice(
        "--quantization fp8 | awq | gptq",
        "smaller weights leave room for cache",
        "TTFT +/0, TPOT +, throughput +, memory +; check answers",
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
            "TTFT -, TPOT +, throughput +, memory 0",
        ),
        *_MORE_CACHE,
    ),
    "queue-bound": (
        Advice("--max-num-seqs higher", "more requests share each step", "TTFT +, TPOT -, throughput +, memory -"),
        Advice("more replicas", "the queue is shared out", "TTFT +, TPOT +, throughput +, memory -"),
    ),
    "kv-bound": _MORE_CACHE,
    "prefill-bound": (
        Advice(
            "--enable-prefix-caching",
            "prompts that begin alike are computed once (default; salts and changing beginnings undo it)",
            "TTFT +, TPOT +, throughput +, memory 0",
        ),
        Advice(
            "--max-num-batched-tokens 8192 or more",
            "more prompt tokens go into a step",
            "TTFT +, TPOT -, throughput +, memory -",
        ),
        Advice(
            "--tensor-parallel-size N",
            "prompts are computed by several GPUs",
            "TTFT +, TPOT +, throughput +, memory + per GPU",
        ),
        Advice(
            "--quantization fp8",
            "quicker arithmetic where the GPU has it",
            "TTFT +, TPOT +, throughput +, memory +; check answers",
        ),
    ),
    "decode-bound": (
        Advice(
            "--max-num-seqs lower",
            "a step with fewer answers is shorter; others wait",
            "TTFT -, TPOT +, throughput -, memory +",
        ),
        Advice(
            "--max-num-batched-tokens 2048",
            "prompts hold up fewer answers at a time",
            "TTFT -, TPOT +, throughput -, memory +",
        ),
        Advice(
            "--quantization awq | gptq | fp8",
            "a step reads fewer bytes of weights",
            "TTFT 0, TPOT +, throughput +, memory +; check answers",
        ),
        Advice(
            "--speculative-config {...}",
            "several tokens a step, where few requests run at once",
            "TTFT 0, TPOT +, throughput - at large batches, memory -",
        ),
        Advice(
            "without --enforce-eager",
            "CUDA graphs save the host's part of a small step",
            "TTFT 0, TPOT +, throughput +, memory -",
        ),
    ),
    "cache-miss-bound": (
        Advice(
            "what changes (a time, an id) behind what does not",
            "a prefix is shared up to its first difference",
            "TTFT +, TPOT 0, throughput +, memory 0",
        ),
        Advice("route a session to the same replica", "its blocks lie there", "TTFT +, TPOT 0, throughput +, memory 0"),
        *_MORE_CACHE[:2],
    ),
    "front-end-bound": (
        Advice(
            "--api-server-count N",
            "several processes take requests and write events",
            "TTFT +, TPOT +, throughput +, memory -",
        ),
        Advice("--stream-interval N", "fewer, larger events", "TTFT 0, TPOT 0, throughput +, memory 0; gaps grow"),
        Advice("without --enable-log-requests", "no line for each request", "TTFT +, TPOT 0, throughput +, memory 0"),
    ),
    "deferred": (
        Advice("look at LoRA slots (--max-loras), grammars and KV transfer", "one of them is waited for", "depends"),
    ),
    "engines-unbalanced": (
        Advice(
            "the router's or --data-parallel balancing",
            "one engine waits while another has room",
            "TTFT +, TPOT +, throughput +, memory 0",
        ),
    ),
    "speculation": (
        Advice("an arm without --speculative-config", "acceptance alone is no verdict", "depends"),
        Advice(
            "num_speculative_tokens lower",
            "guesses that are not taken are work for nothing",
            "TTFT 0, TPOT +, throughput +, memory 0",
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
