"""Options of `vllm bench serve` and the scenario keys that they set."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferload.scenario.schema.endpoints import Endpoint
from inferload.vllm_bench.datasets import DATASETS
from inferload.vllm_bench.option_values import (
    BUCKETS,
    COUNT,
    JSON_OBJECT,
    NUMBER,
    OBJECTIVE,
    POSITIVE,
    POSITIVE_COUNT,
    RATIOS,
    header,
    one_of,
    whole_number,
)

BACKENDS: Mapping[str, Endpoint] = {
    "openai": "completions",
    "vllm": "completions",
    "openai-chat": "chat",
    "openai-responses": "responses",
    "sglang": "completions",
    "lmdeploy": "completions",
    "scalellm": "completions",
}


def _scenario_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-._")[:64] or "bench"


def _equal_shares(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return equal shares that add up to 1: the last one absorbs the rounding."""
    names = tuple(dict.fromkeys(names))
    share = round(1 / len(names), 6)
    shares = [share] * (len(names) - 1) + [round(1 - share * (len(names) - 1), 6)]
    return [{"name": name, "share": share} for name, share in zip(names, shares, strict=True)]


@dataclass(frozen=True, slots=True)
class Option:
    """An option of `vllm bench serve`.

    One without `key`, `note` and `unsupported` is read by a function of `translate`, `datasets` or `arrivals`.
    """

    read: Callable[[str], Any] | None = str  # None: a switch
    key: str = ""  # the scenario key that takes the value
    to: Callable[[Any], Any] = lambda value: value  # from the option's value to the key's
    many: bool = False
    note: str = ""  # the reason why the scenario needs no key for it
    unsupported: str = ""  # the reason why it has no equivalent, or the replacement


def _each(names: str, option: Option) -> dict[str, Option]:
    return dict.fromkeys(names.split(), option)


_SAMPLING = "temperature top-p min-p frequency-penalty presence-penalty repetition-penalty"
_PATH = "the run directory holds all records and the summary; see --run-dir"
_TOKENIZER = "the server's own tokenizer counts the lengths"
_REPORT = "the report has the timeline, and every measure with the percentiles that the samples support"
_DATA = "belongs to a data set that has no equivalent"

OPTIONS: Mapping[str, Option] = {
    # target
    **_each("backend endpoint-type", Option(one_of(BACKENDS))),
    **_each("base-url host endpoint model served-model-name", Option()),
    "port": Option(POSITIVE_COUNT),
    "insecure": Option(None),
    "lora-modules": Option(key="request.models", to=_equal_shares, many=True),
    "lora-assignment": Option(note="each session draws its adapter, with equal shares"),
    # data set
    "dataset-name": Option(one_of(DATASETS)),
    **_each("dataset dataset-path hf-name hf-subset hf-split", Option()),
    **_each("disable-shuffle skip-chat-template self-timed no-self-timed", Option(None)),
    **_each(
        "input-len random-input-len prefix-repetition-prefix-len prefix-repetition-suffix-len "
        "output-len random-output-len prefix-repetition-output-len sharegpt-output-len hf-output-len "
        "prefix-repetition-num-prefixes timed-trace-chunk-hash-size",
        Option(POSITIVE_COUNT),
    ),
    "custom-output-len": Option(whole_number(-1)),
    "random-prefix-len": Option(COUNT),
    "random-range-ratio": Option(RATIOS),
    "timed-trace-sec-multiplier": Option(POSITIVE),
    **{
        f"timed-trace-label-{column.replace('_', '-')}": Option(one_of((column,)))
        for column in ("timestamp", "input_length", "output_length", "hash_ids")
    },
    "random-mm-base-items-per-request": Option(COUNT),
    "random-mm-num-mm-items-range-ratio": Option(unsupported="each message has the same number of images"),
    "random-mm-bucket-config": Option(BUCKETS),
    # arrivals and phases
    "num-prompts": Option(POSITIVE_COUNT, "phases.sessions"),
    "num-warmups": Option(COUNT),
    **_each("request-rate burstiness", Option(POSITIVE)),
    "ramp-up-strategy": Option(one_of(("linear", "exponential"))),
    **_each("max-concurrency ramp-up-start-rps ramp-up-end-rps", Option(POSITIVE_COUNT)),
    # requests
    "label": Option(key="name", to=_scenario_name),
    "seed": Option(COUNT, "seed"),
    "ignore-eos": Option(None, "request.ignore_eos"),
    **{name: Option(NUMBER, f"request.extra_body.{name.replace('-', '_')}") for name in _SAMPLING.split()},
    "top-k": Option(whole_number(-1), "request.extra_body.top_k"),
    "logprobs": Option(COUNT),
    "extra-body": Option(JSON_OBJECT),
    "header": Option(header, many=True),
    "goodput": Option(OBJECTIVE, "slo", dict, many=True),
    # not needed
    **_each("percentile-metrics metric-percentiles timeline-itl-thresholds", Option(note=_REPORT)),
    "plot-timeline": Option(None, note=_REPORT),
    **_each("save-result save-detailed append-result", Option(None, note=_PATH)),
    **_each("result-dir result-filename", Option(note=_PATH)),
    **_each("tokenizer tokenizer-mode", Option(note=_TOKENIZER)),
    **_each("skip-tokenizer-init trust-remote-code", Option(None, note=_TOKENIZER)),
    "disable-tqdm": Option(None, note="a run has no such progress bar"),
    "no-stream": Option(None, note="concerns only how vLLM loads a data set"),
    "no-oversample": Option(None, note="an exhausted data set starts again; inferload plan reports when"),
    "plot-dataset-stats": Option(None, note="inferload plan prints the lengths"),
    "random-mm-limit-mm-per-prompt": Option(note="each message has the images of the scenario"),
    "ready-check-timeout-sec": Option(note="the preflight check sends one turn before any load"),
    "use-beam-search": Option(None, note="vLLM's benchmark ignores it"),
    # without an equivalent
    "metadata": Option(many=True, unsupported="put it into the name of --run-dir"),
    "request-id-prefix": Option(unsupported="the server's request ids are recorded"),
    "profile": Option(None, unsupported="call the server's /start_profile and /stop_profile by hand"),
    "probe-request-rate": Option(unsupported="add a class of short requests to a workload of kind mix"),
    "chat-template-kwargs": Option(unsupported="put chat_template_kwargs into request.extra_body"),
    "best-of": Option(unsupported="a turn has one answer"),
    **_each("enable-multimodal-chat custom-ensure-client-side-data no-reranker", Option(None, unsupported=_DATA)),
    **_each(
        "spec-bench-output-len spec-bench-category speed-bench-dataset-subset speed-bench-output-len speed-bench-category "
        "blazedit-min-distance blazedit-max-distance asr-max-audio-len-sec asr-min-audio-len-sec bfcl-categories "
        "random-batch-size sonnet-input-len sonnet-output-len sonnet-prefix-len",
        Option(unsupported=_DATA),
    ),
}
