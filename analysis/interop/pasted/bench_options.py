"""Options of `vllm bench serve` 0.32 and of its predecessor benchmark_serving.py: values, and the scenario keys that they set."""

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan
from typing import Any, NamedTuple

from inferload.figures.turn_figures import E2E, TPOT, TTFT
from inferload.scenario.schema.endpoints import ENDPOINTS

Reader = Callable[[str], Any]

BACKENDS = {backend: row.name for row in ENDPOINTS.values() for backend in row.vllm_backends}

# -- data sets

# Rows of a data set: a key of the workload, the options that set it in their order, and their default. "required" is none, a row
# without options a constant. Values are in YAML.
_PATH = "--dataset-path --dataset required"
_SHUFFLE = "source.shuffle: --disable-shuffle"
DATASETS: Mapping[str, tuple[str, ...]] = {
    "random": (
        "source.kind: random",
        "source.input_tokens: --input-len --random-input-len 1024",
        "source.output_tokens: --output-len --random-output-len 128",
        "source.prefix_tokens: --random-prefix-len",
    ),
    "random-mm": (),  # the rows of random, and images
    "sharegpt": (
        f"source.kind: sharegpt; source.path: {_PATH}; source.sampler: first_two; {_SHUFFLE}",
        "output_tokens: --output-len --sharegpt-output-len",
    ),
    "prefix_repetition": (
        "source.kind: prefix_repetition",
        "source.prefix_tokens: --prefix-repetition-prefix-len 256",
        "source.suffix_tokens: --prefix-repetition-suffix-len 256",
        "source.prefixes: --prefix-repetition-num-prefixes 10",
        "source.output_tokens: --output-len --prefix-repetition-output-len 128",
    ),
    "custom": (
        f"source.kind: jsonl; source.path: {_PATH}; {_SHUFFLE}",
        "output_tokens: --output-len --custom-output-len 256",
    ),
    "hf": (
        f"source.kind: huggingface; source.dataset: --hf-name {_PATH}",
        f"source.subset: --hf-subset; source.split: --hf-split; {_SHUFFLE}",
        "output_tokens: --output-len --hf-output-len",
    ),
    "burstgpt": (f"kind: replay; path: {_PATH}; format: burstgpt-1; pacing: none",),
    "sonnet": (
        "source.kind: prefix_repetition; source.prefix_tokens: --sonnet-prefix-len 200",
        "source.suffix_tokens: --sonnet-input-len 550; source.prefixes: 1; source.output_tokens: --sonnet-output-len 150",
    ),
    "timed_trace": (f"kind: replay; path: {_PATH}; format: bailian; join_turns: false",),
}
UNLIKE: Mapping[str, str] = {
    "hf": "name the data set's columns in source.columns; vLLM knows some by name",
    "burstgpt": "all rows in their order; vLLM draws rows of GPT-4 at random. Remove the other rows for GPT-4 alone",
    "sonnet": "replaced by prefix_repetition of the same lengths with one prefix; its prompts are no lines of a poem",
}

# -- values of options


def _reader(
    read: Reader, expected: str, fits: Callable[[Any], bool] = lambda _value: True, *, shown: bool = True
) -> Reader:
    """Return a reader of a word, with a ValueError that states what is expected. `shown`: it may show the word."""

    def of(word: str) -> Any:
        try:
            if fits(value := read(word)):
                return value
        except (ValueError, KeyError, TypeError, AttributeError, SyntaxError, MemoryError, RecursionError):
            pass
        raise ValueError(f"must be {expected}" + (f", not {word}" if shown else ""))

    return of


def _whole_number(least: int) -> Reader:
    return _reader(int, f"a whole number, {least} or more", lambda value: bool(value >= least))


def _one_of(names: Iterable[str]) -> Reader:
    return _reader(str, f"one of {', '.join(names)}", lambda word: word in names)


def _header(word: str) -> tuple[str, str]:
    name, value = word.split("=", 1)
    return name.strip(), value.strip()


def _objective(word: str) -> tuple[str, float]:
    name, _, value = word.partition(":")
    return _GOODPUT[name], float(value)


def _both_ratios(word: str) -> tuple[float, float]:
    value = json.loads(word)
    return (float(value["input"]), float(value["output"])) if isinstance(value, dict) else (float(value), float(value))


def _image_sizes(word: str) -> dict[tuple[int, ...], float]:
    sizes = {
        (int(height), int(width), int(frames)): share
        for (height, width, frames), share in ast.literal_eval(word).items()
    }
    return {size: float(share) for size, share in sizes.items() if share > 0}


_GOODPUT = {"ttft": TTFT.key, "tpot": TPOT.key, "e2el": E2E.key}
_COUNT, _POSITIVE_COUNT, _FROM_MINUS_1 = map(_whole_number, (0, 1, -1))
_NUMBER = _reader(float, "a number", lambda value: not isnan(value))
_POSITIVE = _reader(float, "greater than 0", lambda value: bool(value > 0))
_OBJECT = _reader(
    json.loads, "a JSON object in single quotes, as '{\"key\": 1}'", lambda value: isinstance(value, dict)
)
_RATIOS = _reader(
    _both_ratios,
    'a number from 0 to 1, or {"input": 0.3, "output": 0.5}',
    lambda ratios: all(0 <= ratio <= 1 for ratio in ratios),
)
_IMAGES = _reader(
    _image_sizes,
    "sizes and shares of images, as '{(256, 256, 1): 1.0}' (no videos)",
    lambda sizes: bool(sizes) and all(min(size) >= 1 and size[2] == 1 for size in sizes),
)
_OBJECTIVE = _reader(_objective, f"NAME:MILLISECONDS with a name of {', '.join(_GOODPUT)}")
_HEADER = _reader(_header, "KEY=VALUE", shown=False)


def _scenario_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-._")[:64] or "bench"


def _equal_shares(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return equal shares that add up to 1: the last one absorbs the rounding."""
    names = tuple(dict.fromkeys(names))
    share = round(1 / len(names), 6)
    shares = [share] * (len(names) - 1) + [round(1 - share * (len(names) - 1), 6)]
    return [{"name": name, "share": share} for name, share in zip(names, shares, strict=True)]


# -- options


class Option(NamedTuple):
    """An option. One with neither key nor reason is read by DATASETS or with others: target, arrivals, requests."""

    read: Reader | bool = str  # of a word; of a switch, its value
    key: str = ""  # of the scenario
    to: Callable[[Any], Any] = lambda value: value  # from the option's value to the key's
    many: bool = False
    not_needed: str = ""  # the reason why the scenario needs no key for it
    unsupported: str = ""  # the reason why it has no equivalent, or the replacement


_SAMPLING = "temperature top-p min-p frequency-penalty presence-penalty repetition-penalty"
_FILES = "the run directory holds all records and the summary; see --run-dir"
_TOKENIZER = "the server's own tokenizer counts the lengths"
_REPORT = "the report has the timeline, and every measure with the percentiles that the samples support"
_DATA = "belongs to a data set that has no equivalent"

_ROWS: Mapping[str, Option] = {
    # target
    "backend endpoint-type": Option(_one_of(BACKENDS)),
    "base-url host endpoint model served-model-name": Option(),
    "port": Option(_POSITIVE_COUNT),
    "insecure": Option(True),
    "lora-modules": Option(key="request.models", to=_equal_shares, many=True),
    "lora-assignment": Option(not_needed="each session draws its adapter, with equal shares"),
    # data set
    "dataset-name": Option(_one_of(DATASETS)),
    "dataset dataset-path hf-name hf-subset hf-split": Option(),
    "disable-shuffle": Option(False),
    "skip-chat-template self-timed no-self-timed": Option(True),
    "input-len random-input-len prefix-repetition-prefix-len prefix-repetition-suffix-len output-len random-output-len "
    "prefix-repetition-output-len sharegpt-output-len hf-output-len prefix-repetition-num-prefixes "
    "timed-trace-chunk-hash-size sonnet-input-len sonnet-output-len sonnet-prefix-len": Option(_POSITIVE_COUNT),
    "custom-output-len": Option(_FROM_MINUS_1),
    "random-prefix-len random-mm-base-items-per-request": Option(_COUNT),
    "random-range-ratio": Option(_RATIOS),
    "timed-trace-sec-multiplier": Option(_POSITIVE),
    **{
        f"timed-trace-label-{column.replace('_', '-')}": Option(_one_of((column,)))
        for column in ("timestamp", "input_length", "output_length", "hash_ids")
    },
    "random-mm-num-mm-items-range-ratio": Option(unsupported="each message has the same number of images"),
    "random-mm-bucket-config": Option(_IMAGES),
    # arrivals and phases
    "num-prompts": Option(_POSITIVE_COUNT, "phases.sessions"),
    "num-warmups": Option(_COUNT),
    "request-rate burstiness": Option(_POSITIVE),
    "ramp-up-strategy": Option(_one_of(("linear", "exponential"))),
    "max-concurrency ramp-up-start-rps ramp-up-end-rps": Option(_POSITIVE_COUNT),
    # requests
    "label": Option(key="name", to=_scenario_name),
    "seed": Option(_COUNT, "seed"),
    "ignore-eos": Option(True, "request.ignore_eos"),
    **{name: Option(_NUMBER, f"request.extra_body.{name.replace('-', '_')}") for name in _SAMPLING.split()},
    "top-k": Option(_FROM_MINUS_1, "request.extra_body.top_k"),
    "logprobs": Option(_COUNT),
    "extra-body": Option(_OBJECT),
    "header": Option(_HEADER, many=True),
    "goodput": Option(_OBJECTIVE, "slo", dict, many=True),
    # not needed
    "percentile-metrics metric-percentiles timeline-itl-thresholds": Option(not_needed=_REPORT),
    "plot-timeline": Option(True, not_needed=_REPORT),
    "save-result save-detailed append-result": Option(True, not_needed=_FILES),
    "result-dir result-filename": Option(not_needed=_FILES),
    "tokenizer tokenizer-mode": Option(not_needed=_TOKENIZER),
    "skip-tokenizer-init trust-remote-code": Option(True, not_needed=_TOKENIZER),
    "disable-tqdm": Option(True, not_needed="a run has no such progress bar"),
    "no-stream": Option(True, not_needed="concerns only how vLLM loads a data set"),
    "no-oversample": Option(True, not_needed="an exhausted data set starts again; inferload plan reports when"),
    "plot-dataset-stats": Option(True, not_needed="inferload plan prints the lengths"),
    "random-mm-limit-mm-per-prompt": Option(not_needed="each message has the images of the scenario"),
    "ready-check-timeout-sec": Option(not_needed="the preflight check sends one turn before any load"),
    "use-beam-search": Option(True, not_needed="vLLM's benchmark ignores it"),
    # without an equivalent
    "metadata": Option(many=True, unsupported="put it into the name of --run-dir"),
    "request-id-prefix": Option(unsupported="the server's request ids are recorded"),
    "profile": Option(True, unsupported="call the server's /start_profile and /stop_profile by hand"),
    "probe-request-rate": Option(unsupported="add a class of short requests to a workload of kind mix"),
    "chat-template-kwargs": Option(unsupported="put chat_template_kwargs into request.extra_body"),
    "best-of": Option(unsupported="a turn has one answer"),
    "enable-multimodal-chat custom-ensure-client-side-data no-reranker": Option(True, unsupported=_DATA),
    "spec-bench-output-len spec-bench-category speed-bench-dataset-subset speed-bench-output-len speed-bench-category "
    "blazedit-min-distance blazedit-max-distance asr-max-audio-len-sec asr-min-audio-len-sec bfcl-categories "
    "random-batch-size": Option(unsupported=_DATA),
}
OPTIONS: Mapping[str, Option] = {name: option for names, option in _ROWS.items() for name in names.split()}

# Options of older texts and of other tools, with what takes their place.
REPLACED: Mapping[str, str] = {
    "api-key": "use --api-key-file or OPENAI_API_KEY with inferload run",
    "max-tokens": "use --output-len, or request.extra_body of the scenario",
    "percentage-varied-requests": "vary lengths in the scenario: workload.prompt_tokens and workload.output_tokens",
    "additional-sampled-tokens": "vary the length of answers: workload.output_tokens",
    "share-gpu-memory-fraction": "is an option of the server: --gpu-memory-utilization",
    "output-format": "summary.json of the run directory is JSON",
    "qps": "use --request-rate",
}

# Until then --random-range-ratio R is lengths from R * L to L, since then from L - R * L to L + R * L (pull request 16126 of vLLM).
SYMMETRIC_RATIO = (0, 8, 4)

# Of `vllm bench serve` and of benchmark_serving.py before it: words, data set of a path without a name, data sets with forced
# lengths, sampling parameters without options for them, and what these are called in the file.
WORDS = (("vllm", "bench", "serve"), ("benchmark_serving.py",))
OF_PATH = ("random", "sharegpt")
FORCED_LENGTHS = (("random", "random-mm", "timed_trace"), ())
BODY: tuple[Mapping[str, float], ...] = ({}, {"temperature": 0.0})
BODY_NOTES = (
    "No temperature: the server's default, as with `vllm bench serve`.",
    "benchmark_serving.py sends a temperature of 0 by default.",
)
