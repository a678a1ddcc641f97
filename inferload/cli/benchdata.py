"""The data sets of `vllm bench serve` as workloads. Pure."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from inferload.cli.benchline import BenchLine
from inferload.cli.benchmade import Translated
from inferload.cli.benchnumbers import ratios, whole
from inferload.cli.benchtraces import burstgpt, images, timed_trace
from inferload.errors import UsageError

_OTHER_DATA = {
    "random-rerank": "reranking answers are no streams",
    "custom_audio": "audio is not sent",
    "custom_image": "images of one's own files are not sent; see the images of workload kind chat",
    "spec_bench": "save its questions as a jsonl file: --dataset-name custom --dataset-path FILE",
    "speed_bench": "save its questions as a jsonl file: --dataset-name custom --dataset-path FILE",
    "sonnet": "prompts with a shared beginning: --dataset-name prefix_repetition",
}


def workload(line: BenchLine, made: Translated, data: str) -> dict[str, Any]:
    """The workload that a data set comes to; UsageError where it has no counterpart."""
    if data not in _DATA:
        why = _OTHER_DATA.get(data, f"data sets that are read here: {', '.join(_DATA)}")
        raise UsageError(f"--dataset-name {data}: has no counterpart; {why}")
    found = _DATA[data](line, made)
    return found if "kind" in found else {"kind": "chat", **found}


def _random(line: BenchLine, made: Translated) -> dict[str, Any]:
    prompt = whole(line, "input-len") or whole(line, "random-input-len", 1024, 1)
    answer = whole(line, "output-len") or whole(line, "random-output-len", 128, 1)
    prefix = whole(line, "random-prefix-len", 0) or 0
    of_prompt, of_answer = ratios(line)
    assert prompt is not None
    assert answer is not None
    if of_prompt == of_answer:
        source = {"kind": "random", "input_tokens": prompt, "output_tokens": answer}
        more: dict[str, Any] = {"range_ratio": of_prompt, "prefix_tokens": prefix}
        return {"source": source | {key: value for key, value in more.items() if value}}
    made.say("workload", "Two ratios: the lengths are drawn here, each from its own range.")
    shared = {"system_prompt_tokens": prefix} if prefix else {}
    return {"prompt_tokens": _around(prompt, of_prompt), "output_tokens": _around(answer, of_answer), **shared}


def _random_mm(line: BenchLine, made: Translated) -> dict[str, Any]:
    pictures = images(line, made)
    return _random(line, made) | ({} if pictures is None else {"images": pictures})


def _around(mean: int, ratio: float) -> int | dict[str, Any]:
    if not ratio:
        return mean
    return {"dist": "uniform", "min": max(1, math.floor(mean * (1 - ratio))), "max": math.ceil(mean * (1 + ratio))}


def _prefixes(line: BenchLine, _made: Translated) -> dict[str, Any]:
    at = "prefix-repetition"
    source = {
        "kind": "prefix_repetition",
        "prefix_tokens": whole(line, f"{at}-prefix-len", 256, 1),
        "suffix_tokens": whole(line, f"{at}-suffix-len", 256, 1),
        "prefixes": whole(line, f"{at}-num-prefixes", 10, 1),
        "output_tokens": whole(line, "output-len") or whole(line, f"{at}-output-len", 128, 1),
    }
    return {"source": source}


def _sharegpt(line: BenchLine, made: Translated) -> dict[str, Any]:
    path = line.word("dataset-path") or line.word("dataset")
    if path is None:
        raise UsageError("--dataset-path: missing; --dataset-name sharegpt needs the file")
    source: dict[str, Any] = {"kind": "sharegpt", "path": path, "sampler": "first_two", **_order(line)}
    made.say(
        "workload", "first_two: as vLLM samples, of each conversation the first message, and the length of the second."
    )
    length = whole(line, "output-len") or whole(line, "sharegpt-output-len")
    if length is None:
        return {"source": source}
    # vLLM counts the length that is asked for in the total, not the recorded answer's.
    most = min(1024, 2048 - length)
    if most < 4:
        raise UsageError(f"--output-len {length}: vLLM's benchmark leaves out all prompts then; at most 2044")
    source["filters"] = {"min_prompt_tokens": 4, "max_prompt_tokens": most}
    return {"source": source, "output_tokens": length}


def _custom(line: BenchLine, made: Translated) -> dict[str, Any]:
    path = line.word("dataset-path")
    if path is None:
        raise UsageError("--dataset-path: missing; --dataset-name custom needs a jsonl file")
    length = whole(line, "output-len") or whole(line, "custom-output-len", 256, -1)
    own = {"source": {"kind": "jsonl", "path": path, **_order(line)}}
    if length == -1:
        made.say("workload", "Lengths of answers are those of the file: output_tokens.")
        return own
    return own | {"output_tokens": length}


def _hub(line: BenchLine, made: Translated) -> dict[str, Any]:
    name = line.word("hf-name") or line.word("dataset-path")
    if name is None:
        raise UsageError("--dataset-path: missing; --dataset-name hf needs the data set's name")
    source: dict[str, Any] = {"kind": "huggingface", "dataset": name, **_order(line)}
    for option, key in (("hf-subset", "subset"), ("hf-split", "split")):
        if (word := line.word(option)) is not None:
            source[key] = word
    made.lose("--dataset-name hf: vLLM knows the columns of each data set; name those of yours in source.columns")
    length = whole(line, "output-len") or whole(line, "hf-output-len")
    return {"source": source} | ({} if length is None else {"output_tokens": length})


def _order(line: BenchLine) -> dict[str, Any]:
    return {"shuffle": False} if "disable-shuffle" in line.given else {}


_DATA: Mapping[str, Callable[[BenchLine, Translated], dict[str, Any]]] = {
    "random": _random,
    "random-mm": _random_mm,
    "sharegpt": _sharegpt,
    "prefix_repetition": _prefixes,
    "custom": _custom,
    "hf": _hub,
    "burstgpt": burstgpt,
    "timed_trace": timed_trace,
}
