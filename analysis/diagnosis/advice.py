"""Advice for each cause: options of the engine with their side effects, and what must hold before they are advised.

Options of vLLM are those of 0.32. Those of the others are of 2026: of SGLang's pages Server Arguments and Hyperparameter Tuning
(docs.sglang.io), of llama.cpp's tools/server/README.md, and of the configuration reference of Dynamo's front end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from inferload.servers.bottleneck.evidence import WindowEvidence

from . import preconditions as only
from .preconditions import Precondition

SGLANG, LLAMA_CPP, DYNAMO = "sglang", "llama.cpp", "dynamo"


@dataclass(frozen=True, slots=True)
class Advice:
    """Change to try. `effects`: on TTFT, TPOT, throughput and memory, in this order. `when`: all must hold.

    `elsewhere`: what to do instead on other engines, by their keys; the condition that the server is vLLM is not theirs.
    """

    do: str
    why: str
    effects: str
    when: tuple[Precondition, ...] = ()
    elsewhere: tuple[tuple[str, str], ...] = ()

    def of(self, evidence: WindowEvidence) -> "Advice | None":
        """Return the advice for the server of this evidence; None if a condition does not hold."""
        do = dict(self.elsewhere).get(evidence.setup.server or "")
        when = tuple(each for each in self.when if do is None or each is not only.VLLM)
        return replace(self, do=do or self.do, when=when) if all(each.holds(evidence) for each in when) else None


_MORE_REPLICAS = Advice(
    "more replicas", "fewer requests per replica", "TTFT shorter, TPOT shorter, throughput higher, more memory"
)


_FEWER_AT_ONCE = Advice(
    "--max-num-seqs lower",
    "fewer concurrent requests, so none is preempted",
    "TTFT longer, TPOT shorter, throughput higher, memory unchanged",
    (only.VLLM, only.SEVERAL_RUN),
    ((SGLANG, "--max-running-requests lower"), (LLAMA_CPP, "--parallel lower")),
)
_MORE_GPUS = Advice(
    "--tensor-parallel-size N",
    "prefill on several GPUs",
    "TTFT shorter, TPOT shorter, throughput higher, less memory per GPU",
    (only.VLLM, only.GPU),
    ((SGLANG, "--tp-size N"),),
)
_SHORTER_REQUESTS = Advice(
    "--max-model-len N",
    "less memory per request; longer requests are refused",
    "TTFT shorter, TPOT unchanged, throughput higher, less memory",
    (only.VLLM, only.KV_SHORT),
)


def _more_cache(need: Precondition) -> tuple[Advice, ...]:
    """Return the advice on a larger KV cache. `need`: why it is too small."""
    return (
        Advice(
            "--gpu-memory-utilization 0.95",
            "more GPU memory for the KV cache",
            "TTFT shorter, TPOT unchanged, throughput higher, more memory",
            (only.VLLM, only.GPU, need, only.SIZED_BY_MEMORY),
            ((SGLANG, "--mem-fraction-static higher"),),
        ),
        Advice(
            "--num-gpu-blocks-override or --kv-cache-memory-bytes higher (on a CPU: VLLM_CPU_KVCACHE_SPACE)",
            "this option sets the size of the KV cache",
            "TTFT shorter, TPOT unchanged, throughput higher, more memory",
            (only.VLLM, need, only.FIXED_SIZE),
        ),
        Advice(
            "--kv-cache-dtype fp8",
            "the same memory holds twice as many tokens",
            "TTFT shorter, TPOT shorter or unchanged, throughput higher, less memory; check answers",
            (only.VLLM, need, only.KV_NOT_FP8, only.BLOCKS_NOT_FIXED),
            ((SGLANG, "--kv-cache-dtype fp8_e4m3"),),
        ),
        replace(
            _MORE_GPUS,
            why="weights are sharded; the freed memory becomes KV cache",
            when=(*_MORE_GPUS.when, need, only.SIZED_BY_MEMORY),
        ),
        Advice(
            "--quantization fp8 | awq | gptq",
            "smaller weights leave more memory for the KV cache",
            "TTFT shorter or unchanged, TPOT shorter, throughput higher, less memory; check answers",
            (only.VLLM, need, only.SIZED_BY_MEMORY, only.UNQUANTIZED),
            ((SGLANG, "--quantization fp8 | awq | gptq"),),
        ),
    )


ADVICE: Mapping[str, tuple[Advice, ...]] = {
    "client-bound": (
        Advice(
            "locust --processes N, or more workers",
            "a worker is accurate up to a certain number of streams (inferload calibrate)",
            "none on the server",
            (only.CLIENT_BUSY,),
        ),
        Advice(
            "a machine for the load generator without the server and other programs",
            "its processes were late although they used little CPU time",
            "none on the server",
            (only.CLIENT_IDLE,),
        ),
    ),
    "stream-held": (
        Advice(
            "no buffering in the proxy (nginx: proxy_buffering off; haproxy: option http-no-delay)",
            "each event is forwarded when it arrives; `inferload doctor` shows how a stream arrives",
            "TTFT shorter, ITL as the server's, throughput unchanged",
        ),
    ),
    "network-bound": (
        Advice(
            "a load generator nearer to the server",
            "the round trip is a part of each TTFT; it does not change with the load",
            "TTFT shorter by a round trip, others unchanged",
        ),
    ),
    "before-server": (
        Advice(
            "the same run against the address of the server itself",
            "shows the times without a proxy, gateway or router",
            "none",
        ),
        Advice(
            "limits and queue of the proxy, gateway or router (connections per server, workers)",
            "requests wait there although the server has no queue",
            "TTFT shorter, throughput higher",
        ),
    ),
    "paused": (
        Advice(
            "resume it (vLLM: /resume, /wake_up)", "turns wait although it is idle", "TTFT shorter, throughput higher"
        ),
    ),
    "tier-load": (
        Advice(
            "the same run without the other tiers, or with a faster one",
            "a load pays only if it takes less time than the prefill that it saves",
            "TTFT shorter if the prefill is, TPOT unchanged, throughput unchanged",
        ),
    ),
    "preemption-thrash": (_FEWER_AT_ONCE, *_more_cache(only.KV_SHORT), _SHORTER_REQUESTS, _MORE_REPLICAS),
    "queue-bound": (
        Advice(
            "--max-num-seqs higher",
            "more requests per step",
            "TTFT shorter, TPOT longer, throughput higher, more memory",
            (only.VLLM, only.KV_FREE),
            (
                (SGLANG, "--max-running-requests higher"),
                (LLAMA_CPP, "--parallel and --ctx-size higher, which slots share"),
            ),
        ),
        _MORE_REPLICAS,
    ),
    "kv-bound": (*_more_cache(only.KV_SHORT), _SHORTER_REQUESTS, _MORE_REPLICAS),
    "prefill-bound": (
        Advice(
            "--enable-prefix-caching",
            "common prefixes are computed once (on by default; salts and changing prefixes prevent it)",
            "TTFT shorter, TPOT shorter, throughput higher, memory unchanged",
            (only.VLLM, only.CACHING_OFF),
        ),
        Advice(
            "--max-num-batched-tokens 8192 or more",
            "more prompt tokens per step",
            "TTFT shorter, TPOT longer, throughput higher, more memory",
            (only.VLLM, only.SMALL_BUDGET),
            ((SGLANG, "--chunked-prefill-size 8192 or more"), (LLAMA_CPP, "--ubatch-size higher")),
        ),
        _MORE_GPUS,
        Advice(
            "--quantization fp8",
            "faster arithmetic if the GPU supports it",
            "TTFT shorter, TPOT shorter, throughput higher, less memory; check answers",
            (only.VLLM, only.GPU, only.UNQUANTIZED),
            ((SGLANG, "--quantization fp8"),),
        ),
        _MORE_REPLICAS,
    ),
    "decode-bound": (
        replace(
            _FEWER_AT_ONCE,
            why="fewer requests per step make it shorter; others wait",
            effects="TTFT longer, TPOT shorter, throughput lower, less memory",
        ),
        Advice(
            "--max-num-batched-tokens 2048",
            "prefill delays decoding less per step",
            "TTFT longer, TPOT shorter, throughput lower, less memory",
            (only.VLLM, only.LARGE_BUDGET, only.PREFILLS),
            ((SGLANG, "--chunked-prefill-size 2048"),),
        ),
        Advice(
            "--quantization awq | gptq | fp8",
            "fewer bytes of weights per step",
            "TTFT unchanged, TPOT shorter, throughput higher, less memory; check answers",
            (only.VLLM, only.UNQUANTIZED),
            ((SGLANG, "--quantization awq | gptq | fp8"), (LLAMA_CPP, "a model file with fewer bits per weight")),
        ),
        Advice(
            "--speculative-config {...}",
            "several tokens per step at low concurrency",
            "TTFT unchanged, TPOT shorter, throughput lower at large batches, more memory",
            (only.VLLM, only.NO_SPECULATION),
            ((SGLANG, "--speculative-algorithm NAME"), (LLAMA_CPP, "--spec-draft-model FILE")),
        ),
        Advice(
            "without --enforce-eager",
            "CUDA graphs reduce host overhead of small steps",
            "TTFT unchanged, TPOT shorter, throughput higher, more memory",
            (only.VLLM, only.EAGER),
        ),
        _MORE_REPLICAS,
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
            (only.SEVERAL_SERVERS,),
            ((DYNAMO, "--router-mode kv of the front end"),),
        ),
        *_more_cache(only.MAY_EVICT),
        replace(_MORE_REPLICAS, why="each caches the prefixes of fewer requests", when=(only.MAY_EVICT,)),
    ),
    "front-end-bound": (
        Advice(
            "--api-server-count N",
            "several processes parse requests and write events",
            "TTFT shorter, TPOT shorter, throughput higher, more memory",
            (only.VLLM,),
            ((SGLANG, "--tokenizer-worker-num N"),),
        ),
        Advice(
            "--stream-interval N",
            "fewer, larger events",
            "TTFT unchanged, TPOT unchanged, throughput higher, memory unchanged; gaps grow",
            (only.VLLM, only.SINGLE_EVENTS),
            ((SGLANG, "--stream-interval N"),),
        ),
        Advice(
            "without --enable-log-requests",
            "no log line per request",
            "TTFT shorter, TPOT unchanged, throughput higher, memory unchanged",
            (only.VLLM, only.LOGS_REQUESTS),
        ),
    ),
    "deferred": (
        Advice(
            "check LoRA slots (--max-loras), grammars and KV transfer",
            "deferred requests wait for one of them",
            "depends",
            (only.VLLM,),
        ),
    ),
    "transfer-bound": (
        Advice(
            "a faster network between prefill and decode (RDMA), or both on one host",
            "each request waits for the KV cache of its prompt",
            "TTFT shorter, TPOT unchanged, throughput higher, memory unchanged",
        ),
        Advice(
            "one kind of server for prefill and decode",
            "without a transfer nothing waits for it",
            "TTFT shorter, TPOT longer, throughput depends, memory unchanged",
        ),
    ),
    "engines-unbalanced": (
        Advice(
            "balance of the router, or of data parallelism",
            "one engine has a queue while another has free capacity",
            "TTFT shorter, TPOT shorter, throughput higher, memory unchanged",
        ),
    ),
    "speculation": (
        Advice(
            "compare with a run without speculation", "the acceptance rate alone does not show the effect", "depends"
        ),
        Advice(
            "fewer draft tokens in a step",
            "rejected draft tokens are wasted work",
            "TTFT unchanged, TPOT shorter, throughput higher, memory unchanged",
            (only.SEVERAL_DRAFTS,),
        ),
    ),
    "kept-up": (
        Advice(
            "higher load (inferload search finds the maximum)",
            "the server is not the limit at this load",
            "none",
            (only.LIMITS_MET,),
        ),
        Advice(
            "lower load (inferload search finds the highest load within the SLO)",
            "latencies miss their limit although few requests wait: with fewer running requests a step is shorter",
            "TTFT shorter, TPOT shorter, throughput lower, memory unchanged",
            (only.LIMITS_MISSED,),
        ),
    ),
}


def advice_on(code: str, evidence: WindowEvidence) -> tuple[Advice, ...]:
    """Return the advice on a cause whose preconditions hold."""
    return tuple(found for entry in ADVICE[code] if (found := entry.of(evidence)) is not None)


@dataclass(frozen=True, slots=True)
class Cause:
    """Diagnosis of a server or of the whole run. `history`: rows of time, load, cause and evidence; empty for a single cause."""

    target: str
    sentences: tuple[str, ...]
    advice: tuple[Advice, ...]
    history: tuple[tuple[str, str, str, str], ...] = ()
