"""Options of `vllm bench serve` and of its predecessor benchmark_serving.py: names, values, and the scenario key that each sets.

`OPTIONS` has the options of vLLM 0.32. Those that only make sense together (target, data set, arrivals) have no key.
"""

import ast
import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from inferload.base.errors import UsageError
from inferload.figures.turn_figures import E2E, TPOT, TTFT
from inferload.scenario.schema.endpoints import ENDPOINTS

from .bench_data import DATASETS
from .bench_translation import Translation
from .kinds import VllmCommand

BACKENDS = {backend: row.name for row in ENDPOINTS.values() for backend in row.vllm_backends}

# -- values of options: readers raise one of _MALFORMED

_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, SyntaxError, MemoryError, RecursionError)
_GOODPUT = {"ttft": TTFT.key, "tpot": TPOT.key, "e2el": E2E.key}


class _Value(NamedTuple):
    """Values of an option. `expected`: text for an error; `secret`: which must not show the word."""

    read: Callable[[str], Any] = str
    fits: Callable[[Any], bool] = lambda _value: True
    expected: str = ""
    secret: bool = False

    def of(self, word: str) -> Any:
        """Read a word. ValueError states what is expected."""
        try:
            value = self.read(word)
            if self.fits(value):
                return value
        except _MALFORMED:
            pass
        raise ValueError(f"must be {self.expected}" + ("" if self.secret else f", not {word}"))


def _whole_number(least: int) -> _Value:
    return _Value(int, lambda value: bool(value >= least), f"a whole number, {least} or more")


def _one_of(names: Iterable[str]) -> _Value:
    return _Value(str, lambda word: word in names, f"one of {', '.join(names)}")


def _header(word: str) -> tuple[str, str]:
    name, value = word.split("=", 1)
    return name.strip(), value.strip()


def _objective(word: str) -> tuple[str, float]:
    name, _, value = word.partition(":")
    return _GOODPUT[name], float(value)


def _ratios(word: str) -> tuple[float, float]:
    value = json.loads(word)
    return (float(value["input"]), float(value["output"])) if isinstance(value, dict) else (float(value), float(value))


def _buckets(word: str) -> dict[tuple[int, ...], float]:
    sizes = {
        (int(height), int(width), int(frames)): share
        for (height, width, frames), share in ast.literal_eval(word).items()
    }
    return {size: float(share) for size, share in sizes.items() if share > 0}


_TEXT, _COUNT, _POSITIVE_COUNT = _Value(), _whole_number(0), _whole_number(1)
_NUMBER = _Value(float, lambda value: not math.isnan(value), "a number")
_POSITIVE = _Value(float, lambda value: bool(value > 0), "greater than 0")
_OBJECT = _Value(json.loads, lambda value: isinstance(value, dict), "a JSON object in single quotes, as '{\"key\": 1}'")
_RATIOS = _Value(
    _ratios,
    lambda ratios: all(0 <= ratio < 1 for ratio in ratios),
    'a number from 0 to below 1, or {"input": 0.3, "output": 0.5}',
)
_BUCKETS = _Value(
    _buckets,
    lambda sizes: bool(sizes) and all(min(size) >= 1 and size[2] == 1 for size in sizes),
    "sizes and shares of images, as '{(256, 256, 1): 1.0}' (no videos)",
)
_OBJECTIVE = _Value(_objective, expected=f"NAME:MILLISECONDS with a name of {', '.join(_GOODPUT)}")
_HEADER = _Value(_header, expected="KEY=VALUE", secret=True)


def _scenario_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-._")[:64] or "bench"


def _equal_shares(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return equal shares that add up to 1: the last one absorbs the rounding."""
    names = tuple(dict.fromkeys(names))
    share = round(1 / len(names), 6)
    shares = [share] * (len(names) - 1) + [round(1 - share * (len(names) - 1), 6)]
    return [{"name": name, "share": share} for name, share in zip(names, shares, strict=True)]


# -- options


@dataclass(frozen=True, slots=True)
class Option:
    """An option of `vllm bench serve`. One without `key`, `not_needed` and `unsupported` is read by a function above."""

    value: _Value | None = _TEXT  # None: a switch
    key: str = ""  # the scenario key that takes the value
    to: Callable[[Any], Any] = lambda value: value  # from the option's value to the key's
    many: bool = False
    not_needed: str = ""  # the reason why the scenario needs no key for it
    unsupported: str = ""  # the reason why it has no equivalent, or the replacement


_SWITCH = None
_SAMPLING = "temperature top-p min-p frequency-penalty presence-penalty repetition-penalty"
_PATH = "the run directory holds all records and the summary; see --run-dir"
_TOKENIZER = "the server's own tokenizer counts the lengths"
_REPORT = "the report has the timeline, and every measure with the percentiles that the samples support"
_DATA = "belongs to a data set that has no equivalent"

_ROWS: Mapping[str, Option] = {
    # target
    "backend endpoint-type": Option(_one_of(BACKENDS)),
    "base-url host endpoint model served-model-name": Option(),
    "port": Option(_POSITIVE_COUNT),
    "insecure": Option(_SWITCH),
    "lora-modules": Option(key="request.models", to=_equal_shares, many=True),
    "lora-assignment": Option(not_needed="each session draws its adapter, with equal shares"),
    # data set
    "dataset-name": Option(_one_of(DATASETS)),
    "dataset dataset-path hf-name hf-subset hf-split": Option(),
    "disable-shuffle skip-chat-template self-timed no-self-timed": Option(_SWITCH),
    "input-len random-input-len prefix-repetition-prefix-len prefix-repetition-suffix-len output-len random-output-len "
    "prefix-repetition-output-len sharegpt-output-len hf-output-len prefix-repetition-num-prefixes "
    "timed-trace-chunk-hash-size": Option(_POSITIVE_COUNT),
    "sonnet-input-len sonnet-output-len sonnet-prefix-len": Option(_POSITIVE_COUNT),
    "custom-output-len": Option(_whole_number(-1)),
    "random-prefix-len random-mm-base-items-per-request": Option(_COUNT),
    "random-range-ratio": Option(_RATIOS),
    "timed-trace-sec-multiplier": Option(_POSITIVE),
    **{
        f"timed-trace-label-{column.replace('_', '-')}": Option(_one_of((column,)))
        for column in ("timestamp", "input_length", "output_length", "hash_ids")
    },
    "random-mm-num-mm-items-range-ratio": Option(unsupported="each message has the same number of images"),
    "random-mm-bucket-config": Option(_BUCKETS),
    # arrivals and phases
    "num-prompts": Option(_POSITIVE_COUNT, "phases.sessions"),
    "num-warmups": Option(_COUNT),
    "request-rate burstiness": Option(_POSITIVE),
    "ramp-up-strategy": Option(_one_of(("linear", "exponential"))),
    "max-concurrency ramp-up-start-rps ramp-up-end-rps": Option(_POSITIVE_COUNT),
    # requests
    "label": Option(key="name", to=_scenario_name),
    "seed": Option(_COUNT, "seed"),
    "ignore-eos": Option(_SWITCH, "request.ignore_eos"),
    **{name: Option(_NUMBER, f"request.extra_body.{name.replace('-', '_')}") for name in _SAMPLING.split()},
    "top-k": Option(_whole_number(-1), "request.extra_body.top_k"),
    "logprobs": Option(_COUNT),
    "extra-body": Option(_OBJECT),
    "header": Option(_HEADER, many=True),
    "goodput": Option(_OBJECTIVE, "slo", dict, many=True),
    # not needed
    "percentile-metrics metric-percentiles timeline-itl-thresholds": Option(not_needed=_REPORT),
    "plot-timeline": Option(_SWITCH, not_needed=_REPORT),
    "save-result save-detailed append-result": Option(_SWITCH, not_needed=_PATH),
    "result-dir result-filename": Option(not_needed=_PATH),
    "tokenizer tokenizer-mode": Option(not_needed=_TOKENIZER),
    "skip-tokenizer-init trust-remote-code": Option(_SWITCH, not_needed=_TOKENIZER),
    "disable-tqdm": Option(_SWITCH, not_needed="a run has no such progress bar"),
    "no-stream": Option(_SWITCH, not_needed="concerns only how vLLM loads a data set"),
    "no-oversample": Option(_SWITCH, not_needed="an exhausted data set starts again; inferload plan reports when"),
    "plot-dataset-stats": Option(_SWITCH, not_needed="inferload plan prints the lengths"),
    "random-mm-limit-mm-per-prompt": Option(not_needed="each message has the images of the scenario"),
    "ready-check-timeout-sec": Option(not_needed="the preflight check sends one turn before any load"),
    "use-beam-search": Option(_SWITCH, not_needed="vLLM's benchmark ignores it"),
    # without an equivalent
    "metadata": Option(many=True, unsupported="put it into the name of --run-dir"),
    "request-id-prefix": Option(unsupported="the server's request ids are recorded"),
    "profile": Option(_SWITCH, unsupported="call the server's /start_profile and /stop_profile by hand"),
    "probe-request-rate": Option(unsupported="add a class of short requests to a workload of kind mix"),
    "chat-template-kwargs": Option(unsupported="put chat_template_kwargs into request.extra_body"),
    "best-of": Option(unsupported="a turn has one answer"),
    "enable-multimodal-chat custom-ensure-client-side-data no-reranker": Option(_SWITCH, unsupported=_DATA),
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


# -- command line


def parsed(command: VllmCommand) -> Translation:
    """Read the options of a command; UsageError has one line for each fault."""
    words = [part for word in command.words for part in _parts(word)]
    bench, faults = Translation(words, command.origin[-1] != "serve"), []
    for flag, values in _flags(words):
        name = flag[2:]
        option = OPTIONS.get(name)
        if flag and option is None:
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = REPLACED.get(name) or (f"did you mean --{near[0]}?" if near else "")
            bench.unsupported.append(f"{flag}: no option of vllm bench serve" + (f"; {hint}" if hint else ""))
            continue
        takes = 0 if option is None or option.value is None else len(values) if option.many else 1
        secret = option is not None and option.value is not None and option.value.secret
        bench.unsupported += [
            f"{'a value' if secret else word}: belongs to no option; quote values that contain blanks"
            for word in values[takes:]
        ]
        if option is not None:
            try:
                bench.options[name] = _value(option, values[:takes])
            except ValueError as error:
                faults.append(f"{flag}: {error}")
    if faults:
        raise UsageError("\n".join(faults))
    return bench


def _flags(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each option with the words that follow it, first the words before any option with an empty name."""
    flag, values = "", list[str]()
    for word in words:
        if word.startswith("--"):
            yield flag, values
            flag, values = word, []
        else:
            values.append(word)
    yield flag, values


def _value(option: Option, words: Sequence[str]) -> Any:
    """Return the value of an option. ValueError states what is expected."""
    if option.value is None:
        return True
    if not words:
        raise ValueError(f"expected {'at least ' * option.many}one argument")
    values = [option.value.of(word) for word in words]
    return values if option.many else values[0]


def _parts(word: str) -> tuple[str, ...]:
    """Return an option and its value, which may follow an equals sign."""
    name, equals, value = word.partition("=")
    return (name, value) if equals and word.startswith("--") else (word,)
