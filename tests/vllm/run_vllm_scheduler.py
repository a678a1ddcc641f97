"""Run cases (JSON on stdin) with vLLM's scheduler classes and without a model; print counts. Runs in the Python of vLLM.

The answers are given, and drafts are accepted at random. Without a GPU this is the only test of async scheduling, which vLLM
disables on the CPU (`platforms/cpu.py`).
"""

import json
import os
import sys
from collections import deque
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

END = 9_999  # stop token


class Drafter:
    """Speculative config with the attributes that the scheduler reads."""

    num_speculative_tokens_per_batch_size = None
    disable_eagle_block_drop = False

    def __init__(self, tokens: int) -> None:
        self.num_speculative_tokens = tokens
        self.max_num_new_slots_for_drafting = 0

    def _no(self) -> bool:
        return False

    use_eagle = use_eagle_block_drop = _no
    uses_draft_model = use_dspark = use_dflash = use_multi_module_mtp = uses_dynamic_speculative_decoding = _no


def scheduler(case: dict[str, Any], model: str) -> Any:
    """Return a vLLM scheduler with the limits of a case."""
    limits = case["limits"]
    size = limits["block_size"]
    config = VllmConfig(
        model_config=ModelConfig(model=model, max_model_len=limits["max_model_len"]),
        scheduler_config=SchedulerConfig(
            max_num_seqs=limits["max_num_seqs"],
            max_num_batched_tokens=limits["max_num_batched_tokens"],
            max_model_len=limits["max_model_len"],
            enable_chunked_prefill=limits["chunked_prefill"],
            is_encoder_decoder=False,
        ),
        cache_config=CacheConfig(block_size=size, enable_prefix_caching=limits["caching"]),
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.block_size = size
    config.cache_config.num_gpu_blocks = limits["blocks"] + 1
    if case["drafts"]:
        object.__setattr__(config, "speculative_config", Drafter(case["drafts"]))
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv = KVCacheConfig(
        num_blocks=limits["blocks"] + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    kind = AsyncScheduler if case["asynchronous"] else Scheduler
    return kind(config, kv, StructuredOutputManager(config), block_size=size, hash_block_size=size, log_stats=True)


def run(case: dict[str, Any], model: str) -> dict[str, Any]:
    """Run requests that all arrive at the start, until all are finished."""
    core, answers = scheduler(case, model), {}
    hasher = get_request_block_hasher(case["limits"]["block_size"], sha256)
    for number, spec in enumerate(case["requests"]):
        params = SamplingParams(max_tokens=spec["max_tokens"], stop_token_ids=[END], temperature=0)
        request = Request(str(number), spec["prompt"], params, None, block_hasher=hasher)
        answers[request.request_id] = spec["answer"]
        core.add_request(request)
    random = Random(f"{case['seed']}/speculation")
    counts: dict[str, Any] = {"steps": [], "queries": 0, "hits": 0, "preemptions": 0, "cached": {}, "accepted": 0}
    under_way: deque[tuple[Any, set[str]]] = deque()
    while True:
        while len(under_way) < (2 if case["asynchronous"] else 1):
            planned = core.schedule()
            if not planned.total_num_scheduled_tokens:
                break
            counts["steps"].append(planned.total_num_scheduled_tokens)
            outputs = {each for each in planned.num_scheduled_tokens if not core.requests[each].is_prefill_chunk}
            under_way.append((planned, outputs))
        if not under_way:
            return counts
        _end(core, *under_way.popleft(), answers, random, case, counts)


def _end(  # noqa: PLR0917
    core: Any,
    planned: Any,
    outputs: set[str],
    answers: Any,
    random: Random,
    case: dict[str, Any],
    counts: dict[str, Any],
) -> None:
    names, sampled = list(planned.num_scheduled_tokens), []
    for name in names:
        request = core.requests.get(name)
        if name not in outputs or request is None:
            sampled.append([])
            continue
        accepted, drafts = 0, len(planned.scheduled_spec_decode_tokens.get(name, ()))
        while accepted < drafts and random.random() < case["rate"]:
            accepted += 1
        done = request.num_output_tokens
        tokens = answers[name][done : done + 1 + accepted]
        sampled.append(tokens + [1] * (1 + accepted - len(tokens)))
    index = {name: position for position, name in enumerate(names)}
    result = core.update_from_output(planned, ModelRunnerOutput(names, index, sampled))
    if case["drafts"] and not case["asynchronous"]:
        core.update_draft_token_ids(DraftTokenIds(names, [[-1] * case["drafts"]] * len(names)))
    for each in result.values():
        for output in each.outputs:
            if output.prefill_stats is not None:
                counts["cached"][output.request_id] = output.prefill_stats.num_cached_tokens
            counts["preemptions"] += sum(event.type.name == "PREEMPTED" for event in output.events or ())
        stats = each.scheduler_stats
        if stats is not None:
            counts["queries"] += stats.prefix_cache_stats.queries
            counts["hits"] += stats.prefix_cache_stats.hits
            if stats.spec_decoding_stats is not None:
                counts["accepted"] += stats.spec_decoding_stats.num_accepted_tokens


if __name__ == "__main__":
    init_none_hash(sha256)
    folder = str(Path(sys.argv[1]).resolve())
    json.dump([run(case, folder) for case in json.load(sys.stdin)], sys.stdout)
