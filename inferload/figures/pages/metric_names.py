"""Names of the metrics that figures are read from: those of vLLM 0.32, of a GPU exporter and of our own.

Scrapes store the names of their pages. `page_kinds` has the names of each kind of page, `page_names` translates them.
"""

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
# Label source: DEVICE and the tiers beyond it. Counted at admission, as the queries; their sum is that of all prefix-cache hits.
CACHED_BY_SOURCE = "vllm:prompt_tokens_cached_by_source_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
FINISHED = "vllm:request_success_total"
COMPONENT_REQUESTS = "dynamo_component_requests_total"  # of a worker; label dynamo_component
HTTP_REQUESTS = "http_requests_total"  # of vLLM's API server; labels handler, method, status
REJECTIONS = "vllm:admission_rejections_total"
SPEC_DRAFTS = "vllm:spec_decode_num_drafts_total"
SPEC_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
SPEC_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
SPEC_ACCEPTED_PER_POS = "vllm:spec_decode_num_accepted_tokens_per_pos_total"  # label position
MM_QUERIES = "vllm:mm_cache_queries_total"
MM_HITS = "vllm:mm_cache_hits_total"
PROCESS_CPU = "process_cpu_seconds_total"
PROCESS_START = "process_start_time_seconds"  # a gauge; it changes when the server restarts

# Counters of transfers between the KV cache and the tiers beyond it.
LOAD_BYTES, STORE_BYTES = "vllm:kv_offload_load_bytes_total", "vllm:kv_offload_store_bytes_total"
LOAD_SECONDS, STORE_SECONDS = "vllm:kv_offload_load_time_total", "vllm:kv_offload_store_time_total"
LOADS = "vllm:kv_offload_load_size_count"
# The same between host memory and the tiers beyond that.
READ_BYTES, WRITTEN_BYTES = "vllm:kv_offload_tiering_read_bytes_total", "vllm:kv_offload_tiering_write_bytes_total"
READ_SECONDS = "vllm:kv_offload_tiering_read_time_total"
HOST_USAGE = "vllm:kv_offload_cpu_cache_usage_perc"  # a gauge, 0..1

# Histograms, in seconds.
TTFT = "vllm:time_to_first_token_seconds"
ITL = "vllm:inter_token_latency_seconds"  # one sample per engine output of a request, not per token
QUEUE = "vllm:request_queue_time_seconds"
PREFILL = "vllm:request_prefill_time_seconds"
DECODE = "vllm:request_decode_time_seconds"
E2E = "vllm:e2e_request_latency_seconds"

DEVICE, HOST, DISK, PEER, OTHER = "device", "host", "disk", "p2p", "external_unspecified"
BEYOND = (HOST, DISK, PEER, OTHER)  # tiers beyond the memory of the engine
# Transfer of KV blocks by the NixlConnector, counted by the server that fetches them. `_BYTES`: in bytes.
TRANSFER = "vllm:nixl_xfer_time_seconds"
TRANSFER_POST = "vllm:nixl_post_time_seconds"
TRANSFER_BYTES = "vllm:nixl_bytes_transferred"
TRANSFER_FAILURES = "vllm:nixl_num_failed_transfers_total"
TRANSFER_LOST = "vllm:nixl_num_failed_notifications_total"
TRANSFER_EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"  # at the server that holds them
TRANSFER_LATE = "vllm:nixl_num_notifications_after_expiry_total"
FETCHING = "vllm:num_requests_kv_fetch_by_stage"  # label stage: waiting_to_start | in_progress | completed_waiting

# Prefixes of names that servers publish with a KV connector only.
OF_CONNECTORS = ("vllm:kv_offload_", "vllm:nixl_", "vllm:num_requests_kv_fetch_")

ROLES = ("prefill", "decode")
LOCAL_COMPUTE, RECEIVED = "local_compute", "external_kv_transfer"
CAPACITY, DEFERRED = "capacity", "deferred"
AWAKE = "awake"
# Labels of FINISHED for requests without a full answer.
DROPPED = ({"finished_reason": "abort"}, {"finished_reason": "error"})

# Gauges of NVIDIA's DCGM exporter, one series per GPU.
GPU_USE = "DCGM_FI_DEV_GPU_UTIL"  # per cent
GPU_MEMORY = "DCGM_FI_DEV_FB_USED"  # MiB
GPU_POWER = "DCGM_FI_DEV_POWER_USAGE"  # W
GPU_SM_CLOCK = "DCGM_FI_DEV_SM_CLOCK"  # MHz
GPU_ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"  # mJ, a counter since the driver was loaded
GPU_METRICS = (GPU_USE, GPU_MEMORY, GPU_POWER, GPU_SM_CLOCK, GPU_ENERGY)

# Written by the scraper: duration of the scrape, age of the page's oldest sample that has its own time, lines that are no samples.
SCRAPE_DURATION = "inferload_scrape_duration_seconds"
SAMPLE_AGE = "inferload_scrape_sample_age_seconds"
SCRAPE_UNREAD = "inferload_scrape_unread_lines"
OF_SCRAPES = (SCRAPE_DURATION, SAMPLE_AGE, SCRAPE_UNREAD)
# In its lines only: a page of what stands before engines; one whose running requests leave out those in prefill.
IN_FRONT, DECODES_ONLY = "inferload_in_front", "inferload_running_decodes_only"
ROLE = "inferload_role_"  # in its lines only, before the role of the page

# Gauges without a name in vLLM, which counts hits and has the cache size in a label.
HIT_RATE = "inferload_prefix_cache_hit_rate"  # 0..1, over a recent interval that the server chooses
KV_CACHE_TOKENS = "inferload_kv_cache_size_tokens"
KV_BLOCK_TOKENS = "inferload_kv_block_tokens"
SLOTS = "inferload_slots"  # requests that run at once at most
BEFORE_FIRST_TOKEN = "inferload_requests_before_first_token"  # waiting or in prefill

# Of routers and gateways. An attempt is a request to a server, a request may have several.
ROUTER = "inferload_router_"
ROUTER_REQUESTS = ROUTER + "requests_total"
ROUTER_ATTEMPTS = ROUTER + "attempts_total"
ROUTER_FAILED = ROUTER + "failed_total"
ROUTER_RETRIES = ROUTER + "retries_total"
ROUTER_IN_FLIGHT = ROUTER + "in_flight"
ROUTER_WAITING = ROUTER + "waiting"
ROUTER_QUEUE = ROUTER + "queue_seconds"  # a histogram

# Counters without a name in vLLM.
FAILED = "inferload_requests_failed_total"  # label reason
MIGRATIONS = "inferload_migrations_total"
OFFLOAD_FAILURES = "inferload_offload_failures_total"
PREFILL_SECONDS = "inferload_prefill_seconds_total"  # sum over requests, counted with the computed prompt tokens
DECODE_SECONDS = "inferload_decode_seconds_total"  # the same, with the output tokens

HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


def split_suffix(metric: str) -> tuple[str, str]:
    """Split a histogram's series name into (family, suffix); the suffix is empty for other metrics."""
    for suffix in HISTOGRAM_SUFFIXES:
        if metric.endswith(suffix):
            return metric[: -len(suffix)], suffix
    return metric, ""
