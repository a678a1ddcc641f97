"""Workloads that are equivalent to the data sets of `vllm bench serve`."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from inferload.errors import UsageError
from inferload.vllm_bench.translation import DEFAULT_PROMPTS, Translation

FORCED_LENGTHS = ("random", "random-mm", "timed_trace")  # `vllm bench serve` sets ignore_eos for these data sets
_TRACE_FORMATS = {(512, 0.001): "mooncake", (16, 1.0): "bailian"}  # (tokens per block, seconds per unit of timestamp)


def _path(bench: Translation) -> str:
    path = bench.options.get("dataset-path") or bench.options.get("dataset")
    if path is None:
        raise UsageError(f"--dataset-path: missing; --dataset-name {bench.options['dataset-name']} needs it")
    return str(path)


def _ordered(bench: Translation, source: dict[str, Any]) -> dict[str, Any]:
    return source | ({"shuffle": False} if "disable-shuffle" in bench.options else {})


def _random(bench: Translation) -> dict[str, Any]:
    options = bench.options
    prompt = options.get("input-len") or options.get("random-input-len", 1024)
    answer = options.get("output-len") or options.get("random-output-len", 128)
    prefix = options.get("random-prefix-len", 0)
    of_prompt, of_answer = options.get("random-range-ratio", (0.0, 0.0))
    if of_prompt == of_answer:
        more = {"range_ratio": of_prompt, "prefix_tokens": prefix}
        source = {"kind": "random", "input_tokens": prompt, "output_tokens": answer}
        return {"source": source | {key: value for key, value in more.items() if value}}
    lengths = {"prompt_tokens": _around(prompt, of_prompt), "output_tokens": _around(answer, of_answer)}
    return lengths | ({"system_prompt_tokens": prefix} if prefix else {})


def _around(mean: int, ratio: float) -> int | dict[str, Any]:
    if not ratio:
        return mean
    return {"dist": "uniform", "min": max(1, math.floor(mean * (1 - ratio))), "max": math.ceil(mean * (1 + ratio))}


def _random_images(bench: Translation) -> dict[str, Any]:
    options = bench.options
    count = options.get("random-mm-base-items-per-request", 1)
    if not count:
        return _random(bench)
    buckets = options.get("random-mm-bucket-config", {(256, 256, 1): 0.5, (720, 1280, 1): 0.5})
    height, width, _ = max(buckets, key=buckets.__getitem__)
    if len(buckets) > 1:
        bench.unsupported.append(
            f"--random-mm-bucket-config: {len(buckets)} sizes: all images have one size, {width} x {height}"
        )
    return _random(bench) | {"images": {"per_message": count, "width_px": width, "height_px": height}}


def _prefix_repetition(bench: Translation) -> dict[str, Any]:
    options, name = bench.options, "prefix-repetition"
    prefixes, prompts = options.get(f"{name}-num-prefixes", 10), options.get("num-prompts", DEFAULT_PROMPTS)
    if prompts < prefixes:
        raise UsageError(
            f"--num-prompts {prompts}: must be at least --{name}-num-prefixes {prefixes}, as in vLLM's benchmark"
        )
    if prompts % prefixes:
        options["num-prompts"] = prompts - prompts % prefixes
        bench.note(
            "phases",
            f"vLLM's benchmark sends each prefix equally often: {options['num-prompts']} of {prompts} prompts.",
        )
    source = {
        "kind": "prefix_repetition",
        "prefix_tokens": options.get(f"{name}-prefix-len", 256),
        "suffix_tokens": options.get(f"{name}-suffix-len", 256),
        "prefixes": prefixes,
        "output_tokens": options.get("output-len") or options.get(f"{name}-output-len", 128),
    }
    return {"source": source}


def _sharegpt(bench: Translation) -> dict[str, Any]:
    source = _ordered(bench, {"kind": "sharegpt", "path": _path(bench), "sampler": "first_two"})
    length = bench.options.get("output-len") or bench.options.get("sharegpt-output-len")
    if length is None:
        return {"source": source}
    longest = min(1024, 2048 - length)  # vLLM's limits of a prompt, and of prompt and answer
    if longest < 4:
        raise UsageError(f"--output-len {length}: must be 2044 or less; above it vLLM's benchmark rejects all prompts")
    filters = {"min_prompt_tokens": 4, "max_prompt_tokens": longest}
    return {"source": source | {"filters": filters}, "output_tokens": length}


def _custom(bench: Translation) -> dict[str, Any]:
    source = _ordered(bench, {"kind": "jsonl", "path": _path(bench)})
    length = bench.options.get("output-len") or bench.options.get("custom-output-len", 256)
    if length == -1:
        return {"source": source}
    return {"source": source, "output_tokens": length}


def _hub(bench: Translation) -> dict[str, Any]:
    source = {"kind": "huggingface", "dataset": bench.options.get("hf-name") or _path(bench)}
    source |= {key: bench.options[f"hf-{key}"] for key in ("subset", "split") if f"hf-{key}" in bench.options}
    bench.unsupported.append(
        "--dataset-name hf: name the data set's columns in source.columns; vLLM knows some by name"
    )
    length = bench.options.get("output-len") or bench.options.get("hf-output-len")
    return {"source": _ordered(bench, source)} | ({} if length is None else {"output_tokens": length})


def _burstgpt(bench: Translation) -> dict[str, Any]:
    bench.unsupported.append(
        "--dataset-name burstgpt: all rows in their order; vLLM draws rows of GPT-4 at random. Remove the other rows for "
        "GPT-4 alone"
    )
    return {"kind": "replay", "path": _path(bench), "format": "burstgpt-1", "pacing": "none"}


def _timed_trace(bench: Translation) -> dict[str, Any]:
    options = bench.options
    form = options.get("timed-trace-chunk-hash-size", 16), options.get("timed-trace-sec-multiplier", 1.0)
    path = _path(bench)
    if form not in _TRACE_FORMATS:
        raise UsageError(
            "--dataset-name timed_trace: blocks and times must be 512 tokens and 0.001 s (mooncake) or 16 tokens and 1 s "
            "(bailian); write other traces as jsonl, see the docs of replays"
        )
    return {"kind": "replay", "path": path, "format": _TRACE_FORMATS[form], "join_turns": False}


DATASETS: Mapping[str, Callable[[Translation], dict[str, Any]]] = {
    "random": _random,
    "random-mm": _random_images,
    "sharegpt": _sharegpt,
    "prefix_repetition": _prefix_repetition,
    "custom": _custom,
    "hf": _hub,
    "burstgpt": _burstgpt,
    "timed_trace": _timed_trace,
}
