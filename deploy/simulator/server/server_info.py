"""Options of the server, and the responses of /v1/models and /server_info."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from inferload.measure import clock

from ..answers.usage import UsageOptions
from ..core.queues import SchedulerLimits
from ..metrics.exposition import CacheInfo
from ..protocol.model import Model

VERSION = "0.32.0"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the API. An empty `api_key` requires no key."""

    model: Model
    usage_options: UsageOptions
    cache: CacheInfo
    api_key: str
    chunked: bool
    limits: SchedulerLimits
    stands_for: str  # model and devices whose times the server has
    request_id_headers: bool = False  # --enable-request-id-headers
    load_tracking: bool = False  # --enable-server-load-tracking; else /load returns 0
    log_requests: bool = False  # --enable-log-requests
    log_stats: bool = True  # not --disable-log-stats


def version(options: Options) -> dict[str, object]:
    """Document of /version, with two keys that vLLM lacks."""
    return {"version": VERSION, "engine": "simulator", "stands_for": options.stands_for}


def models(model: Model) -> dict[str, object]:
    """Document of /v1/models: one card per name."""
    now_s = clock.wall_ns() // 1_000_000_000
    cards = []
    for name in (model.name, *model.aliases):
        card = {"id": name, "object": "model", "created": now_s, "owned_by": "vllm", "root": model.name}
        card |= {"parent": None, "max_model_len": model.max_model_len, "permission": [_permission(now_s)]}
        cards.append({**card, "engine": "simulator"})
    return {"object": "list", "data": cards}


def server_info(options: Options, query: Mapping[str, str]) -> dict[str, object]:
    """Document of /server_info, with settings as an object or in one line."""
    cache, limits = options.cache, options.limits
    config: dict[str, dict[str, object]] = {
        "model_config": {"model": options.model.name, "max_model_len": options.model.max_model_len},
        "scheduler_config": {
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "enable_chunked_prefill": limits.chunked_prefill,
            "policy": "fcfs",
        },
        "cache_config": {
            "block_size": cache.block_size,
            "num_gpu_blocks": cache.num_gpu_blocks,
            "enable_prefix_caching": cache.prefix_caching,
            "kv_cache_size_tokens": cache.num_gpu_blocks * cache.block_size,
        },
    }
    as_json = query.get("config_format") == "json"
    vllm_config = (
        config if as_json else ", ".join(f"{key}={value}" for part in config.values() for key, value in part.items())
    )
    return {"vllm_config": vllm_config, "vllm_env": {}, "system_env": {}, "engine": "simulator"}


def _permission(now_s: int) -> dict[str, object]:
    allowed = {"allow_sampling": True, "allow_logprobs": True, "allow_search_indices": False, "allow_view": True}
    return {
        **{"id": f"modelperm-{secrets.token_hex(8)}", "object": "model_permission", "created": now_s},
        **{"allow_create_engine": False, **allowed, "allow_fine_tuning": False},
        **{"organization": "*", "group": None, "is_blocking": False},
    }
