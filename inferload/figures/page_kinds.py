"""Kinds of metrics pages: engines, front ends, routers and exporters, each a row with its names for vLLM's metrics.

A new row is in the scraper, the figures, doctor, the report and the reference pages; nothing else lists kinds of pages.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from inferload.figures import metric_names as names

Labels = tuple[tuple[str, str], ...]  # names and values


class Meaning(Struct, frozen=True):
    """What the series of a page's metric are.

    `metric`: vLLM's name. `only`: labels of the series that have this meaning. `added`: labels that they get; metrics of a page
    with different ones are parts of one metric, which add up.
    """

    metric: str
    only: Labels = ()
    added: Labels = ()

    def labels(self, of: Labels) -> Labels | None:
        """Return the labels of a series with those added; None if the series does not have this meaning."""
        return (*of, *self.added) if set(self.only) <= set(of) else None


class PageKind(Struct, frozen=True, kw_only=True):
    """A kind of page.

    `prefixes`: of its metrics; those of engines, front ends and routers are stored. `marks`: metrics that are read only to
    recognise the page. `meaning`: vLLM's name for each name of the page, or several meanings. Of several names for one metric,
    the first on a page is used. `tested`: version of which a page is tested; None: names are of documentation and sources.
    `why`: by vLLM's name, why a figure that the page seems to have is not read.
    """

    key: str
    title: str
    kind: Literal["engine", "front end", "router", "exporter"]
    prefixes: tuple[str, ...]
    marks: tuple[str, ...] = ()
    meaning: Mapping[str, str | tuple[Meaning, ...]] = {}
    tested: str | None = None
    why: Mapping[str, str] = {}

    @property
    def in_front(self) -> bool:
        """True for what stands before engines: it counts each request of theirs once more."""
        return self.kind in ("front end", "router")

    @property
    def has_own_names(self) -> bool:
        """True unless all metrics have vLLM's names, so that the row does not tell what the page publishes."""
        return self.key not in (VLLM.key, DYNAMO_WORKER.key)

    def meanings(self, metric: str) -> tuple[Meaning, ...]:
        """Return the meanings of a name of the page; empty without any."""
        found = self.meaning.get(metric, ())
        return (Meaning(found),) if isinstance(found, str) else found

    @property
    def metrics(self) -> frozenset[str]:
        """vLLM's names of its metrics, of histograms the families."""
        return frozenset(names.split_suffix(each.metric)[0] for name in self.meaning for each in self.meanings(name))

    def names_of(self, metric: str) -> tuple[str, ...]:
        """Return the page's names for a metric or the family of a histogram."""
        wanted = {metric, names.split_suffix(metric)[0]}
        return tuple(name for name in self.meaning if any(each.metric in wanted for each in self.meanings(name)))


# Some versions publish the old and the new name of a metric.
VLLM = PageKind(
    key="vllm",
    title="vLLM",
    kind="engine",
    prefixes=("vllm:", "inferload_simulator_"),
    tested="0.32",
    meaning={
        "vllm:gpu_cache_usage_perc": names.KV_CACHE_USAGE,
        "vllm:gpu_prefix_cache_queries": names.PREFIX_QUERIES,
        "vllm:gpu_prefix_cache_queries_total": names.PREFIX_QUERIES,
        "vllm:gpu_prefix_cache_hits": names.PREFIX_HITS,
        "vllm:gpu_prefix_cache_hits_total": names.PREFIX_HITS,
        "vllm:prefix_cache_queries": names.PREFIX_QUERIES,
        "vllm:prefix_cache_hits": names.PREFIX_HITS,
        "vllm:num_preemptions": names.PREEMPTIONS,
        "vllm:prompt_tokens": names.PROMPT_TOKENS,
        "vllm:generation_tokens": names.GENERATION_TOKENS,
        "vllm:time_per_output_token_seconds": names.ITL,
    },
)

# docs.sglang.io, Production Metrics, and sglang/srt/metrics/collector.py of 2025 and 2026. `token_usage` excludes cached tokens
# without a reference, as in vLLM. Hits are cached_tokens / prompt_tokens; `cache_hit_rate` is of the last batch only.
SGLANG = PageKind(
    key="sglang",
    title="SGLang",
    kind="engine",
    prefixes=("sglang:",),
    meaning={
        "sglang:token_usage": names.KV_CACHE_USAGE,
        "sglang:num_running_reqs": names.RUNNING,
        "sglang:num_queue_reqs": names.WAITING,
        "sglang:cache_hit_rate": names.HIT_RATE,
        "sglang:max_total_num_tokens": names.KV_CACHE_TOKENS,
        "sglang:prompt_tokens_total": names.PROMPT_TOKENS,
        "sglang:cached_tokens_total": names.PROMPT_TOKENS_CACHED,
        "sglang:generation_tokens_total": names.GENERATION_TOKENS,
        "sglang:num_requests_total": names.FINISHED,
        "sglang:num_retracted_requests_total": names.PREEMPTIONS,
        "sglang:time_to_first_token_seconds": names.TTFT,
        "sglang:inter_token_latency_seconds": names.ITL,
        "sglang:time_per_output_token_seconds": names.ITL,  # of 2025: a sample per token, not per request
        "sglang:queue_time_seconds": names.QUEUE,
        "sglang:e2e_request_latency_seconds": names.E2E,
    },
)

_TENSORRT_LLM = {
    "kv_cache_utilization": names.KV_CACHE_USAGE,
    "num_requests_running": names.RUNNING,
    "num_active_requests": names.RUNNING,
    "num_requests_waiting": names.WAITING,
    "server_queue_length": names.WAITING,
    "kv_cache_hit_rate": names.HIT_RATE,
    "prompt_tokens_total": names.PROMPT_TOKENS,
    "prompt_cached_tokens_total": names.PROMPT_TOKENS_CACHED,
    "generation_tokens_total": names.GENERATION_TOKENS,
    "request_success_total": names.FINISHED,
    "spec_decode_num_draft_tokens_total": names.SPEC_DRAFT_TOKENS,
    "spec_decode_num_accepted_tokens_total": names.SPEC_ACCEPTED,
    "time_to_first_token_seconds": names.TTFT,
    "request_queue_time_seconds": names.QUEUE,
    "request_prefill_time_seconds": names.PREFILL,
    "request_decode_time_seconds": names.DECODE,
    "e2e_request_latency_seconds": names.E2E,
}
# tensorrt_llm/metrics/collector.py of 1.x and main, on the page /prometheus/metrics (`/metrics` is JSON). Gauges need
# `enable_iter_perf_stats`, histograms `return_perf_metrics`. Some versions of an NVIDIA front end use the second prefix.
_TENSORRT_LLM_PREFIXES = ("trtllm_", "trtllm:")
TENSORRT_LLM = PageKind(
    key="tensorrt-llm",
    title="TensorRT-LLM",
    kind="engine",
    prefixes=_TENSORRT_LLM_PREFIXES,
    meaning={prefix + name: now for prefix in _TENSORRT_LLM_PREFIXES for name, now in _TENSORRT_LLM.items()},
    why={names.ITL: "time_per_output_token is a mean for each request"},
)

DYNAMO_WORKER = PageKind(
    key="dynamo-worker",
    title="Dynamo's worker",
    kind="engine",
    prefixes=("dynamo_component_",),
    marks=("dynamo_component_uptime_seconds",),
    tested="1.6.1",
)

DCGM = PageKind(key="dcgm", title="DCGM exporter", kind="exporter", prefixes=("DCGM_FI_",))

# A page is of the first kind with one of its prefixes.
KINDS = (DYNAMO_WORKER, VLLM, SGLANG, TENSORRT_LLM, DCGM)
# Prefixes of the metrics that are stored.
PREFIXES = tuple(prefix for kind in KINDS if kind.kind != "exporter" for prefix in kind.prefixes)
