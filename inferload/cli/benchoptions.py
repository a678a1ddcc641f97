"""The options of `vllm bench serve` as of vLLM 0.32, those of its forerunner benchmark_serving.py, and what becomes of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# read: its value goes into the scenario, or says why it cannot. ours: always so, or of no use to a run of ours; said in the
# file. lost: asks for something that has no counterpart; said in the file and aloud.
Fate = Literal["read", "ours", "lost"]
Takes = Literal["switch", "one", "many"]


@dataclass(frozen=True, slots=True)
class BenchOption:
    """One option. `why`: what to say of one that is not read."""

    fate: Fate = "read"
    takes: Takes = "one"
    why: str = ""


_READ = BenchOption()
_LIST = BenchOption(takes="many")
_SWITCH = BenchOption(takes="switch")


def _ours(why: str, takes: Takes = "one") -> BenchOption:
    return BenchOption("ours", takes, why)


def _lost(why: str, takes: Takes = "one") -> BenchOption:
    return BenchOption("lost", takes, why)


_FILES = "every run writes its records and its summary; --run-dir says where"
_TOKENIZER = "lengths are counted by the server's own tokenizer"
_PAGE = "the report has every measure and percentile that its samples carry"
_OTHER_DATA = "belongs to a data set that is not read here"

OPTIONS: Mapping[str, BenchOption] = {
    # what is asked, and whom
    "backend": _READ,
    "base-url": _READ,
    "host": _READ,
    "port": _READ,
    "endpoint": _READ,
    "header": _LIST,
    "model": _READ,
    "served-model-name": _READ,
    "lora-modules": _LIST,
    "lora-assignment": _READ,
    "insecure": _SWITCH,
    # data sets
    "dataset-name": _READ,
    "dataset-path": _READ,
    "num-prompts": _READ,
    "seed": _READ,
    "input-len": _READ,
    "output-len": _READ,
    "disable-shuffle": _SWITCH,
    "skip-chat-template": _SWITCH,
    "random-input-len": _READ,
    "random-output-len": _READ,
    "random-range-ratio": _READ,
    "random-prefix-len": _READ,
    "sharegpt-output-len": _READ,
    "custom-output-len": _READ,
    "prefix-repetition-prefix-len": _READ,
    "prefix-repetition-suffix-len": _READ,
    "prefix-repetition-num-prefixes": _READ,
    "prefix-repetition-output-len": _READ,
    "hf-subset": _READ,
    "hf-split": _READ,
    "hf-name": _READ,
    "hf-output-len": _READ,
    # when
    "request-rate": _READ,
    "burstiness": _READ,
    "num-warmups": _READ,
    "max-concurrency": _READ,
    "ramp-up-strategy": _READ,
    "ramp-up-start-rps": _READ,
    "ramp-up-end-rps": _READ,
    # what goes into a request
    "ignore-eos": _SWITCH,
    "logprobs": _READ,
    "extra-body": _READ,
    "top-p": _READ,
    "top-k": _READ,
    "min-p": _READ,
    "temperature": _READ,
    "frequency-penalty": _READ,
    "presence-penalty": _READ,
    "repetition-penalty": _READ,
    "goodput": _LIST,
    "label": _READ,
    # always so, or of no use here
    "percentile-metrics": _ours(_PAGE),
    "metric-percentiles": _ours(_PAGE),
    "save-result": _ours(_FILES, "switch"),
    "save-detailed": _ours(_FILES, "switch"),
    "append-result": _ours("each run has a directory of its own", "switch"),
    "result-dir": _ours(_FILES),
    "result-filename": _ours(_FILES),
    "disable-tqdm": _ours("there is no such bar", "switch"),
    "tokenizer": _ours(_TOKENIZER),
    "tokenizer-mode": _ours(_TOKENIZER),
    "skip-tokenizer-init": _ours(_TOKENIZER, "switch"),
    "trust-remote-code": _ours(_TOKENIZER, "switch"),
    "no-stream": _ours("about how a data set is loaded", "switch"),
    "no-oversample": _ours("a data set that is used up begins again, and the plan says so", "switch"),
    "ready-check-timeout-sec": _ours("a run looks at the server first, and does not start where it does not answer"),
    "plot-timeline": _ours("report.html has the timeline", "switch"),
    "timeline-itl-thresholds": _ours("report.html has the timeline"),
    "plot-dataset-stats": _ours("inferload plan says what lengths come", "switch"),
    "use-beam-search": _ours("vLLM's benchmark reads it and does nothing with it", "switch"),
    # no counterpart
    "metadata": _lost("a run's manifest takes no words of one's own; put them into the name of --run-dir", "many"),
    "request-id-prefix": _lost("the server's own request ids are recorded"),
    "profile": _lost("start and stop the server's profiler by hand: POST /start_profile, /stop_profile", "switch"),
    "probe-request-rate": _lost("add a class of short requests to a workload of kind mix"),
    "chat-template-kwargs": _lost("put chat_template_kwargs into request.extra_body: the server applies the template"),
    "enable-multimodal-chat": _lost(_OTHER_DATA, "switch"),
    "custom-ensure-client-side-data": _lost(_OTHER_DATA, "switch"),
    "self-timed": _SWITCH,
    "no-self-timed": _SWITCH,
    "timed-trace-chunk-hash-size": _READ,
    "timed-trace-sec-multiplier": _READ,
    "timed-trace-label-timestamp": _READ,
    "timed-trace-label-input-length": _READ,
    "timed-trace-label-output-length": _READ,
    "timed-trace-label-hash-ids": _READ,
    "random-mm-base-items-per-request": _READ,
    "random-mm-num-mm-items-range-ratio": _READ,
    "random-mm-bucket-config": _READ,
    "random-mm-limit-mm-per-prompt": _READ,
    **{
        name: _lost(_OTHER_DATA)
        for name in (
            *("spec-bench-output-len", "spec-bench-category", "blazedit-min-distance", "blazedit-max-distance"),
            *("asr-max-audio-len-sec", "asr-min-audio-len-sec", "bfcl-categories", "random-batch-size"),
            *("speed-bench-dataset-subset", "speed-bench-output-len"),
            *("speed-bench-category", "sonnet-input-len", "sonnet-output-len", "sonnet-prefix-len"),
        )
    },
    "no-reranker": _lost(_OTHER_DATA, "switch"),
    # of benchmark_serving.py only
    "endpoint-type": _READ,
    "dataset": _READ,
    "best-of": _lost("one answer a turn"),
}

# What is passed on in articles and was never an option of vLLM's benchmark, and what to say instead.
NEVER: Mapping[str, str] = {
    "percentage-varied-requests": "for lengths that vary use --random-range-ratio",
    "share-gpu-memory-fraction": "the server has --gpu-memory-utilization",
    "qps": "the rate is --request-rate",
    "additional-sampled-tokens": "for lengths that vary use --random-range-ratio",
    "max-tokens": "the length of an answer is --output-len",
    "prompt-len": "the length of a prompt is --input-len",
    "generation-len": "the length of an answer is --output-len",
    "concurrency": "the limit is --max-concurrency",
    "api-key": "the key is read from OPENAI_API_KEY, here too, or from --api-key-file; never from a command line",
    "output-json": "results are saved by --save-result; a run of ours always does",
    "output-format": "results are saved by --save-result; a run of ours always does",
}
