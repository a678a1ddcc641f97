"""The names that an inference server gives its figures: vLLM 0.32's, and what older servers called the same thing.

Scrapes keep a server's own words; whoever reads them asks `normalise` or `current_names`, and then knows one name only.
"""

from collections.abc import Iterable

# Gauges, one series per engine.
KV_CACHE_USAGE = (
    "vllm:kv_cache_usage_perc"  # 0..1 of the blocks that are referenced; cached but free ones count as free
)
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"  # label reason: capacity | deferred
CACHE_CONFIG = "vllm:cache_config_info"  # always 1; the figures are its labels, kv_cache_size_tokens among them

# Counters.
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"  # tokens looked up at admission
PREFIX_HITS = "vllm:prefix_cache_hits_total"  # tokens found
PREEMPTIONS = "vllm:num_preemptions_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"  # cached ones included
PROMPT_TOKENS_BY_SOURCE = "vllm:prompt_tokens_by_source_total"  # label source: local_compute is the part computed here
PROMPT_TOKENS_CACHED = "vllm:prompt_tokens_cached_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
FINISHED = "vllm:request_success_total"
REJECTIONS = "vllm:admission_rejections_total"
SPEC_DRAFTS = "vllm:spec_decode_num_drafts_total"
SPEC_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
SPEC_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
SPEC_ACCEPTED_PER_POS = "vllm:spec_decode_num_accepted_tokens_per_pos_total"  # label position
PROCESS_CPU = "process_cpu_seconds_total"
PROCESS_START = "process_start_time_seconds"  # a gauge; it moves when the server was started anew

# Histograms, in seconds.
TTFT = "vllm:time_to_first_token_seconds"
ITL = "vllm:inter_token_latency_seconds"  # one sample per engine output of a request, not per token
QUEUE = "vllm:request_queue_time_seconds"
PREFILL = "vllm:request_prefill_time_seconds"
DECODE = "vllm:request_decode_time_seconds"
E2E = "vllm:e2e_request_latency_seconds"

LOCAL_COMPUTE = "local_compute"
CAPACITY, DEFERRED = "capacity", "deferred"

# Of our own: how long a scrape took, beside the figures that it brought.
SCRAPE_DURATION = "inferload_scrape_duration_seconds"

# What a scraper keeps of a server's page: everything that starts so.
KEPT_PREFIXES = ("vllm:", "inferload_simulator_", PROCESS_CPU, PROCESS_START)

HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")

# Family names of older servers. Some versions publish the old name beside the new one: see `current_names`.
RENAMED = {
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


def split_suffix(metric: str) -> tuple[str, str]:
    """A histogram's series name as (family, suffix); the suffix is empty for every other metric."""
    for suffix in HISTOGRAM_SUFFIXES:
        if metric.endswith(suffix):
            return metric[: -len(suffix)], suffix
    return metric, ""


def normalise(metric: str) -> str:
    """The name that vLLM 0.32 gives this metric; a name that was never changed comes back as it is."""
    if metric in RENAMED:
        return RENAMED[metric]
    family, suffix = split_suffix(metric)
    return RENAMED.get(family, family) + suffix


def current_names(metrics: Iterable[str]) -> dict[str, str | None]:
    """What each of one server's names means today; None for an old name whose new name the server publishes too."""
    names = set(metrics)
    meanings: dict[str, str | None] = {}
    for metric in sorted(names):
        meant = normalise(metric)
        meanings[metric] = None if meant != metric and meant in names else meant
    return meanings


def is_counter(metric: str) -> bool:
    """Whether a series only ever grows while its server lives (parts of histograms included)."""
    return metric.endswith(("_total", *HISTOGRAM_SUFFIXES))
