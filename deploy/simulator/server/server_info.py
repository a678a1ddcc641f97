"""Options of the server, and the documents of /version, /v1/models and /server_info."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..answers.completion_events import UsageOptions
from ..core.queues import SchedulerLimits
from ..protocol.model import Model

VERSION = "0.32.0"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the API. An empty `api_key` requires no key."""

    model: Model
    usage_options: UsageOptions
    cache: Mapping[str, object]  # labels of its info metric
    api_key: str
    limits: SchedulerLimits
    corrupt: Mapping[str, float]  # shares of corrupted answers by kind
    stands_for: str  # model and devices whose times the server has


def version(options: Options) -> dict[str, object]:
    """Document of /version, with two keys that vLLM lacks."""
    return {"version": VERSION, "engine": "simulator", "stands_for": options.stands_for}


def models(model: Model, wall_ns: int) -> dict[str, object]:
    """Document of /v1/models: one card per name."""
    now_s = wall_ns // 1_000_000_000
    cards: list[dict[str, object]] = []
    for name in (model.name, *model.aliases):
        card: dict[str, object] = {"id": name, "object": "model", "created": now_s, "owned_by": "vllm"}
        cards.append({**card, "root": model.name, "max_model_len": model.max_model_len, "engine": "simulator"})
    return {"object": "list", "data": cards}


def server_info(options: Options) -> dict[str, object]:
    """Document of /server_info."""
    limits = options.limits
    scheduler = {
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "enable_chunked_prefill": limits.chunked_prefill,
    }
    return {"vllm_config": {"scheduler_config": scheduler}, "engine": "simulator"}
