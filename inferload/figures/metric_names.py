"""Metric names of inference servers: those of vLLM 0.32, and the names of older vLLM versions and other engines.

Scrapes store the server's names; `normalise` and `current_names` translate them to vLLM 0.32's. The maps of SGLang and
TensorRT-LLM follow their documentation and sources; they are not tested with such a server.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

# Gauges, one series per engine.
# 0..1, share of referenced blocks; cached blocks without a reference count as free
KV_CACHE_USAGE = "vllm:kv_cache_usage_perc"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"  # label reason: capacity | deferred
SLEEP_STATE = "vllm:engine_sleep_state"  # label sleep_state: awake | weights_offloaded | discard_all; 1: it is
CACHE_CONFIG = "vllm:cache_config_info"  # always 1; the values are labels, such as kv_cache_size_tokens

# Counters.
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"  # tokens looked up at admission
PREFIX_HITS = "vllm:prefix_cache_hits_total"  # tokens found
PREEMPTIONS = "vllm:num_preemptions_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"  # cached tokens included
PROMPT_TOKENS_BY_SOURCE = "vllm:prompt_tokens_by_source_total"  # label source: local_compute is the computed part
PROMPT_TOKENS_CACHED = "vllm:prompt_tokens_cached_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
FINISHED = "vllm:request_success_total"
REJECTIONS = "vllm:admission_rejections_total"
SPEC_DRAFTS = "vllm:spec_decode_num_drafts_total"
SPEC_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
SPEC_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
SPEC_ACCEPTED_PER_POS = "vllm:spec_decode_num_accepted_tokens_per_pos_total"  # label position
MM_QUERIES = "vllm:mm_cache_queries_total"
MM_HITS = "vllm:mm_cache_hits_total"
PROCESS_CPU = "process_cpu_seconds_total"
PROCESS_START = "process_start_time_seconds"  # a gauge; it changes when the server restarts

# Histograms, in seconds.
TTFT = "vllm:time_to_first_token_seconds"
ITL = "vllm:inter_token_latency_seconds"  # one sample per engine output of a request, not per token
QUEUE = "vllm:request_queue_time_seconds"
PREFILL = "vllm:request_prefill_time_seconds"
DECODE = "vllm:request_decode_time_seconds"
E2E = "vllm:e2e_request_latency_seconds"

LOCAL_COMPUTE = "local_compute"
CAPACITY, DEFERRED = "capacity", "deferred"
AWAKE = "awake"
ABORTED = {"finished_reason": "abort"}  # label of FINISHED

# Gauges of NVIDIA's DCGM exporter, one series per GPU.
GPU_USE = "DCGM_FI_DEV_GPU_UTIL"  # per cent
GPU_MEMORY = "DCGM_FI_DEV_FB_USED"  # MiB
GPU_POWER = "DCGM_FI_DEV_POWER_USAGE"  # W
GPU_SM_CLOCK = "DCGM_FI_DEV_SM_CLOCK"  # MHz

# Written by the scraper: duration of the scrape.
SCRAPE_DURATION = "inferload_scrape_duration_seconds"

# Gauges without a name in vLLM, which counts hits and has the cache size in a label.
HIT_RATE = "inferload_prefix_cache_hit_rate"  # 0..1, over a recent interval that the server chooses
KV_CACHE_TOKENS = "inferload_kv_cache_size_tokens"

# Prefixes of all metrics of an engine.
PREFIXES = ("vllm:", "sglang:", "trtllm_", "trtllm:", "inferload_simulator_")

HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")

# Family names of older vLLM versions. Some versions publish both names: see `current_names`.
OLD_VLLM = {
    "vllm:gpu_cache_usage_perc": KV_CACHE_USAGE,
    "vllm:gpu_prefix_cache_queries": PREFIX_QUERIES,
    "vllm:gpu_prefix_cache_queries_total": PREFIX_QUERIES,
    "vllm:gpu_prefix_cache_hits": PREFIX_HITS,
    "vllm:gpu_prefix_cache_hits_total": PREFIX_HITS,
    "vllm:prefix_cache_queries": PREFIX_QUERIES,
    "vllm:prefix_cache_hits": PREFIX_HITS,
    "vllm:num_preemptions": PREEMPTIONS,
    "vllm:prompt_tokens": PROMPT_TOKENS,
    "vllm:generation_tokens": GENERATION_TOKENS,
    "vllm:time_per_output_token_seconds": ITL,
}


class EngineNames(Struct, frozen=True):
    """Names of another engine, with vLLM's name for each. Of several names for one metric, the first on a page is used."""

    engine: str
    title: str
    prefix: str
    meaning: Mapping[str, str]


# docs.sglang.io, Production Metrics, and sglang/srt/metrics/collector.py of 2025 and 2026. `token_usage` excludes cached tokens
# without a reference, as in vLLM. Hits are cached_tokens / prompt_tokens; `cache_hit_rate` is of the last batch only.
SGLANG = EngineNames(
    "sglang",
    "SGLang",
    "sglang:",
    {
        "sglang:token_usage": KV_CACHE_USAGE,
        "sglang:num_running_reqs": RUNNING,
        "sglang:num_queue_reqs": WAITING,
        "sglang:cache_hit_rate": HIT_RATE,
        "sglang:max_total_num_tokens": KV_CACHE_TOKENS,
        "sglang:prompt_tokens_total": PROMPT_TOKENS,
        "sglang:cached_tokens_total": PROMPT_TOKENS_CACHED,
        "sglang:generation_tokens_total": GENERATION_TOKENS,
        "sglang:num_requests_total": FINISHED,
        "sglang:num_retracted_requests_total": PREEMPTIONS,
        "sglang:time_to_first_token_seconds": TTFT,
        "sglang:inter_token_latency_seconds": ITL,
        "sglang:time_per_output_token_seconds": ITL,  # of 2025: a sample per token, not per request
        "sglang:queue_time_seconds": QUEUE,
        "sglang:e2e_request_latency_seconds": E2E,
    },
)

# tensorrt_llm/metrics/collector.py of 1.x and main, on the page /prometheus/metrics (`/metrics` is JSON). Gauges need
# `enable_iter_perf_stats`, histograms `return_perf_metrics`. Its time_per_output_token is a mean per request: no ITL.
TENSORRT_LLM = EngineNames(
    "tensorrt-llm",
    "TensorRT-LLM",
    "trtllm_",
    {
        "trtllm_kv_cache_utilization": KV_CACHE_USAGE,
        "trtllm_num_requests_running": RUNNING,
        "trtllm_num_active_requests": RUNNING,
        "trtllm_num_requests_waiting": WAITING,
        "trtllm_server_queue_length": WAITING,
        "trtllm_kv_cache_hit_rate": HIT_RATE,
        "trtllm_prompt_tokens_total": PROMPT_TOKENS,
        "trtllm_prompt_cached_tokens_total": PROMPT_TOKENS_CACHED,
        "trtllm_generation_tokens_total": GENERATION_TOKENS,
        "trtllm_request_success_total": FINISHED,
        "trtllm_spec_decode_num_draft_tokens_total": SPEC_DRAFT_TOKENS,
        "trtllm_spec_decode_num_accepted_tokens_total": SPEC_ACCEPTED,
        "trtllm_time_to_first_token_seconds": TTFT,
        "trtllm_request_queue_time_seconds": QUEUE,
        "trtllm_request_prefill_time_seconds": PREFILL,
        "trtllm_request_decode_time_seconds": DECODE,
        "trtllm_e2e_request_latency_seconds": E2E,
    },
)
OTHERS = (SGLANG, TENSORRT_LLM)
# Some versions of an NVIDIA front end use another prefix.
_OLD_PREFIX = ("trtllm:", "trtllm_")

# Other names and vLLM 0.32's name for each. The order decides if a page has several names for one metric.
RENAMED: Mapping[str, str] = {
    **OLD_VLLM,
    **SGLANG.meaning,
    **TENSORRT_LLM.meaning,
    **{_OLD_PREFIX[0] + name.removeprefix(_OLD_PREFIX[1]): now for name, now in TENSORRT_LLM.meaning.items()},
}
_RANK = {was: rank for rank, was in enumerate(RENAMED)}


def split_suffix(metric: str) -> tuple[str, str]:
    """Split a histogram's series name into (family, suffix); the suffix is empty for other metrics."""
    for suffix in HISTOGRAM_SUFFIXES:
        if metric.endswith(suffix):
            return metric[: -len(suffix)], suffix
    return metric, ""


def normalise(metric: str) -> str:
    """Return vLLM 0.32's name of a metric; an unknown name is returned unchanged."""
    if metric in RENAMED:
        return RENAMED[metric]
    family, suffix = split_suffix(metric)
    return RENAMED.get(family, family) + suffix


def current_names(metrics: Iterable[str]) -> dict[str, str | None]:
    """Return vLLM 0.32's name for each name on a page; None if another name of the page has the same meaning."""
    names = set(metrics)
    meanings: dict[str, str | None] = {}
    taken: set[str] = set()
    for metric in sorted(names, key=lambda metric: (_rank(metric), metric)):
        meant = normalise(metric)
        beside = meant in taken or (meant != metric and meant in names)
        meanings[metric] = None if beside else meant
        taken.add(meant)
    return meanings


def _rank(metric: str) -> int:
    return _RANK.get(metric, _RANK.get(split_suffix(metric)[0], -1))


def engine_of(metrics: Iterable[str]) -> str | None:
    """Return the engine of a page, by its metric names; None if unknown."""
    names = tuple(metrics)
    if any(name.startswith("vllm:") for name in names):
        return "vllm"
    marks = [(other.prefix, other.engine) for other in OTHERS] + [(_OLD_PREFIX[0], TENSORRT_LLM.engine)]
    return next((engine for prefix, engine in marks if any(name.startswith(prefix) for name in names)), None)


def published_by(engine: str | None) -> frozenset[str]:
    """Return vLLM's names of the metrics that an engine publishes; empty for vLLM, which publishes all."""
    return frozenset(now for other in OTHERS if other.engine == engine for now in other.meaning.values())


def names_on_pages(metrics: Iterable[str]) -> frozenset[str]:
    """Return all names, also of other versions and engines, of metrics with vLLM 0.32's names."""
    current = set(metrics)
    families = {split_suffix(metric) for metric in current}
    old = {was + suffix for was, now in RENAMED.items() for family, suffix in families if now == family}
    return frozenset(current | old)
