"""Preconditions of advice: what must hold of a server, by the evidence, before a change is worth a try."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from inferload.results.verdict.evidence import has_idle_workers
from inferload.servers.bottleneck.evidence import WindowEvidence, mean_of, option_of, quantity
from inferload.servers.bottleneck.finding import HIGH_KV_USAGE
from inferload.servers.bottleneck.queue_rules import head_exceeds_free, preemption

_MOST_MEMORY = 0.95  # highest --gpu-memory-utilization that is advised


@dataclass(frozen=True, slots=True)
class Precondition:
    """Condition in words, and its test."""

    text: str
    holds: Callable[[WindowEvidence], bool]


def _kv_short(evidence: WindowEvidence) -> bool:
    """Return True with a usage from 85 % on, with preemptions, or with too few free blocks for the head of the queue."""
    usage, waits = evidence.scrapes.kv_usage, evidence.scrapes.waits
    full = (mean_of(usage[waits] if waits.any() else usage) or 0.0) >= HIGH_KV_USAGE
    return full or bool(head_exceeds_free(evidence)) or preemption(evidence) is not None


def _may_evict(evidence: WindowEvidence) -> bool:
    kv, computed_tok_per_s = evidence.setup.kv, evidence.served.computed_tok_per_s
    if kv is None or computed_tok_per_s is None:
        return False
    return computed_tok_per_s * evidence.length_s > kv.usable * kv.size


def _option(evidence: WindowEvidence, option: str, label: str = "") -> str | None:
    """Return an option of the command line, or the label of this name that the server publishes; None if absent or unknown."""
    given = option_of(evidence.setup.command or (), option)
    published = evidence.setup.cache_config.get(label or option.removeprefix("--").replace("-", "_"))
    return given if given is not None else None if published in (None, "", "None") else published


def _value(evidence: WindowEvidence, option: str) -> float | None:
    return quantity(_option(evidence, option))


def _fixed_size(evidence: WindowEvidence) -> bool:
    options = ("--num-gpu-blocks-override", "--kv-cache-memory-bytes")
    return any(_option(evidence, option) is not None for option in options)


def _budget(evidence: WindowEvidence) -> float | None:
    return _value(evidence, "--max-num-batched-tokens") or _value(evidence, "--chunked-prefill-size")  # of SGLang


def _may_be_set(option: str, *, is_set: bool = True) -> Precondition:
    def holds(evidence: WindowEvidence) -> bool:
        command = evidence.setup.command
        return command is None or (option_of(command, option) is not None) == is_set

    return Precondition(f"{option} is {'' if is_set else 'not '}set, or the command line is not known", holds)


VLLM = Precondition("vLLM", lambda evidence: evidence.setup.server == "vllm")
GPU = Precondition("not on a CPU", lambda evidence: evidence.setup.gpus != 0)
KV_SHORT = Precondition("the KV cache is short", _kv_short)
KV_FREE = Precondition("the KV cache is not short", lambda evidence: not _kv_short(evidence))
MAY_EVICT = Precondition("more prompt tokens were computed than the KV cache holds", _may_evict)
SIZED_BY_MEMORY = Precondition(
    f"--gpu-memory-utilization sets the size of the KV cache, and is below {_MOST_MEMORY} or not known",
    lambda evidence: not _fixed_size(evidence) and (_value(evidence, "--gpu-memory-utilization") or 0.0) < _MOST_MEMORY,
)
FIXED_SIZE = Precondition("--num-gpu-blocks-override or --kv-cache-memory-bytes is set", _fixed_size)
KV_NOT_FP8 = Precondition(
    "--kv-cache-dtype is not fp8, or not known",
    lambda evidence: not (_option(evidence, "--kv-cache-dtype", "cache_dtype") or "").startswith("fp8"),
)
BLOCKS_NOT_FIXED = _may_be_set("--num-gpu-blocks-override", is_set=False)
UNQUANTIZED = _may_be_set("--quantization", is_set=False)
CACHING_OFF = Precondition(
    "prefix caching is off",
    lambda evidence: (
        evidence.setup.cache_config.get("enable_prefix_caching") == "False"
        or option_of(evidence.setup.command or (), "--no-enable-prefix-caching") is not None
    ),
)
SMALL_BUDGET = Precondition(
    "--max-num-batched-tokens below 8192, or not known", lambda evidence: (_budget(evidence) or 0) < 8192
)
LARGE_BUDGET = Precondition(
    "--max-num-batched-tokens above 2048, or not known", lambda evidence: (_budget(evidence) or float("inf")) > 2048
)
PREFILLS = Precondition("prompt tokens are computed", lambda evidence: bool(evidence.served.computed_tok_per_s))
EAGER = _may_be_set("--enforce-eager")
LOGS_REQUESTS = _may_be_set("--enable-log-requests")
NO_SPECULATION = Precondition("no speculation", lambda evidence: evidence.served.mean_acceptance_length is None)
SEVERAL_DRAFTS = Precondition("several draft tokens", lambda evidence: (evidence.served.draft_tokens or 0) > 1)
SEVERAL_RUN = Precondition(
    "several requests run at once", lambda evidence: bool((np.nan_to_num(evidence.scrapes.running) > 1).any())
)
SINGLE_EVENTS = Precondition(
    "--stream-interval 1, or not known", lambda evidence: (evidence.setup.stream_interval or 1) == 1
)
LIMITS_MET = Precondition("no latency gate or SLO is missed", lambda evidence: not evidence.run.missed)
LIMITS_MISSED = Precondition("a latency gate or the SLO is missed", lambda evidence: bool(evidence.run.missed))
SEVERAL_SERVERS = Precondition(
    "several servers or engines", lambda evidence: evidence.setup.servers * evidence.setup.engines > 1
)
CLIENT_BUSY = Precondition(
    "a client process used half a core or more, or its CPU time is not known",
    lambda evidence: not has_idle_workers(evidence.client.client_cpu_share),
)
CLIENT_IDLE = Precondition(
    "no client process used half a core", lambda evidence: has_idle_workers(evidence.client.client_cpu_share)
)
