"""Data sets of `vllm bench serve` as sources of a scenario's workload."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from inferload.base.errors import UsageError

from .bench_translation import Translation

FORCED_LENGTHS = ("random", "random-mm", "timed_trace")  # `vllm bench serve` sets ignore_eos for these data sets
_TRACE_FORMATS = {(512, 0.001): "mooncake", (16, 1.0): "bailian"}  # (tokens per block, seconds per unit of timestamp)


def _path(bench: Translation) -> str:
    path = bench.options.get("dataset-path") or bench.options.get("dataset")
    if path is None:
        raise UsageError(f"--dataset-path: missing; --dataset-name {bench.options['dataset-name']} needs it")
    return str(path)


def _file(bench: Translation, length: int | None, **source: Any) -> dict[str, Any]:
    """Return the workload of a file of prompts, in its order, with answers of a length."""
    order = {"shuffle": False} if "disable-shuffle" in bench.options else {}
    return {"source": source | order} | ({} if length is None else {"output_tokens": length})


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
    count = bench.options.get("random-mm-base-items-per-request", 1)
    if not count:
        return _random(bench)
    buckets = bench.options.get("random-mm-bucket-config", {(256, 256, 1): 0.5, (720, 1280, 1): 0.5})
    height, width, _ = max(buckets, key=buckets.__getitem__)
    if len(buckets) > 1:
        sizes = f"{len(buckets)} sizes: all images have one size, {width} x {height}"
        bench.unsupported.append(f"--random-mm-bucket-config: {sizes}")
    return _random(bench) | {"images": {"per_message": count, "width_px": width, "height_px": height}}


def _prefix_repetition(bench: Translation) -> dict[str, Any]:
    options, name, prompts = bench.options, "prefix-repetition", bench.prompts
    prefixes = options.get(f"{name}-num-prefixes", 10)
    if prompts < prefixes:
        least = f"must be at least --{name}-num-prefixes {prefixes}, as in vLLM's benchmark"
        raise UsageError(f"--num-prompts {prompts}: {least}")
    if prompts % prefixes:
        options["num-prompts"] = sent = prompts - prompts % prefixes
        bench.note("phases", f"vLLM's benchmark sends each prefix equally often: {sent} of {prompts} prompts.")
    source = {
        "kind": "prefix_repetition",
        "prefix_tokens": options.get(f"{name}-prefix-len", 256),
        "suffix_tokens": options.get(f"{name}-suffix-len", 256),
        "prefixes": prefixes,
        "output_tokens": options.get("output-len") or options.get(f"{name}-output-len", 128),
    }
    return {"source": source}


def _sharegpt(bench: Translation) -> dict[str, Any]:
    length = bench.options.get("output-len") or bench.options.get("sharegpt-output-len")
    workload = _file(bench, length, kind="sharegpt", path=_path(bench), sampler="first_two")
    if length is None:
        return workload
    longest = min(1024, 2048 - length)  # vLLM's limits of a prompt, and of prompt and answer
    if longest < 4:
        raise UsageError(f"--output-len {length}: must be 2044 or less; above it vLLM's benchmark rejects all prompts")
    workload["source"]["filters"] = {"min_prompt_tokens": 4, "max_prompt_tokens": longest}
    return workload


def _custom(bench: Translation) -> dict[str, Any]:
    length = bench.options.get("output-len") or bench.options.get("custom-output-len", 256)
    return _file(bench, None if length == -1 else length, kind="jsonl", path=_path(bench))


def _hub(bench: Translation) -> dict[str, Any]:
    options = bench.options
    columns = "name the data set's columns in source.columns; vLLM knows some by name"
    bench.unsupported.append(f"--dataset-name hf: {columns}")
    parts = {key: options[f"hf-{key}"] for key in ("subset", "split") if f"hf-{key}" in options}
    length = options.get("output-len") or options.get("hf-output-len")
    return _file(bench, length, kind="huggingface", dataset=options.get("hf-name") or _path(bench), **parts)


def _burstgpt(bench: Translation) -> dict[str, Any]:
    rows = "all rows in their order; vLLM draws rows of GPT-4 at random. Remove the other rows for GPT-4 alone"
    bench.unsupported.append(f"--dataset-name burstgpt: {rows}")
    return {"kind": "replay", "path": _path(bench), "format": "burstgpt-1", "pacing": "none"}


def _timed_trace(bench: Translation) -> dict[str, Any]:
    options, path = bench.options, _path(bench)
    form = options.get("timed-trace-chunk-hash-size", 16), options.get("timed-trace-sec-multiplier", 1.0)
    if form not in _TRACE_FORMATS:
        raise UsageError(
            "--dataset-name timed_trace: blocks and times must be 512 tokens and 0.001 s (mooncake) or 16 tokens and 1 s "
            "(bailian); write other traces as jsonl, see the docs of replays"
        )
    return {"kind": "replay", "path": path, "format": _TRACE_FORMATS[form], "join_turns": False}


def _sonnet(bench: Translation) -> dict[str, Any]:
    options = bench.options
    prefix, prompt, answer = (
        options.get(f"sonnet-{name}", default)
        for name, default in (("prefix-len", 200), ("input-len", 550), ("output-len", 150))
    )
    same = "replaced by prefix_repetition of the same lengths with one prefix; its prompts are no lines of a poem"
    bench.unsupported.append(f"--dataset-name sonnet: {same}")
    source = {"kind": "prefix_repetition", "prefix_tokens": prefix, "suffix_tokens": max(1, prompt - prefix)}
    return {"source": source | {"prefixes": 1, "output_tokens": answer}}


DATASETS: Mapping[str, Callable[[Translation], dict[str, Any]]] = {
    "random": _random,
    "random-mm": _random_images,
    "sharegpt": _sharegpt,
    "prefix_repetition": _prefix_repetition,
    "custom": _custom,
    "hf": _hub,
    "burstgpt": _burstgpt,
    "sonnet": _sonnet,
    "timed_trace": _timed_trace,
}
