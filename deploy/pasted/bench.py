"""Translation of a `vllm bench serve` command line into a scenario document.

`OPTIONS` maps each option of vLLM 0.32 and of its predecessor benchmark_serving.py to the scenario key that it sets. Options
that only make sense together (target, data set, arrivals) are read by one function each.
"""

import ast
import difflib
import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from inferload.base.errors import UsageError
from inferload.base.redaction import without_userinfo
from inferload.client.endpoints.table import DIALECTS
from inferload.figures.turn_figures import E2E, TPOT, TTFT
from inferload.scenario.schema.endpoints import ENDPOINTS, EndpointName
from inferload.scenario.schema.fields import RESERVED, secret_header

_DEFAULT_PROMPTS = 1000  # vLLM's default of --num-prompts


@dataclass(slots=True)
class Translation:
    """A command line and the equivalent scenario."""

    words: list[str]  # of the command line, with options in the form `--name value`
    script: bool  # benchmark_serving.py instead of `vllm bench serve`
    options: dict[str, Any] = field(default_factory=dict)  # values by option name, without absent options
    document: dict[str, Any] = field(default_factory=dict)
    run: list[str] = field(default_factory=list)  # options of `inferload run`
    notes: dict[str, list[str]] = field(default_factory=dict)  # by top-level key of the document
    unsupported: list[str] = field(default_factory=list)

    @property
    def prompts(self) -> int:
        """Number of prompts."""
        return int(self.options.get("num-prompts", _DEFAULT_PROMPTS))

    def note(self, key: str, line: str) -> None:
        """Add a comment above a top-level key."""
        self.notes.setdefault(key, []).append(line)


def translate(text: str) -> Translation:
    """Return the scenario that sends the load of a command line; UsageError if there is none."""
    bench = _parsed(text)
    options = bench.options
    data = options.get("dataset-name") or ("sharegpt" if options.get("dataset") else "random")
    endpoint = _endpoint(bench, data)
    forced = data in _FORCED_LENGTHS and not bench.script and ENDPOINTS[endpoint].ignore_eos
    bench.document = {
        "schema": 1,
        "name": f"bench-{data}",
        "workload": {"kind": "chat", **_DATASETS[data](bench)},
        "arrivals": _arrivals(bench, data == "timed_trace" and "no-self-timed" not in options),
        "phases": {"warmup_s": 0, "sessions": _DEFAULT_PROMPTS, "drain_s": 600},
        "request": {"endpoint": endpoint, "ignore_eos": forced},
        "cache": {"isolate": "run"},
        "seed": 0,
    }
    for name, value in options.items():
        option = OPTIONS[name]
        if option.key:
            _set(bench.document, option.key, option.to(value))
        if option.not_needed:
            bench.note("schema", f"--{name}: {option.not_needed}")
        if option.unsupported:
            bench.unsupported.append(f"--{name}: {option.unsupported}")
    _add_warmup(bench)
    _add_request(bench)
    _add_target(bench)
    bench.note(
        "cache",
        "In vLLM's benchmark the prompts of a second run are cached by the first; isolate: none has the same effect.",
    )
    return bench


def _set(document: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        document = document.setdefault(parent, {})
    document[last] = value


# -- data sets

_FORCED_LENGTHS = ("random", "random-mm", "timed_trace")  # `vllm bench serve` sets ignore_eos for these data sets
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


_DATASETS: Mapping[str, Callable[[Translation], dict[str, Any]]] = {
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


# -- arrivals and warm-up

_RAMP_SEGMENTS = 20


def _arrivals(bench: Translation, timed: bool) -> dict[str, Any]:
    options, limit = bench.options, bench.options.get("max-concurrency")
    ramp, rate = options.get("ramp-up-strategy"), options.get("request-rate", math.inf)
    if not timed and ramp is None and math.isinf(rate):
        users = min(limit or bench.prompts, bench.prompts)
        if limit is None:
            bench.note("arrivals", "All requests at once: as many users as prompts.")
        return {"kind": "closed", "users": users, "spawn_per_s": max(users, 100)}
    if timed:
        arrivals: dict[str, Any] = {"kind": "trace"}
    else:
        load = {"sessions_per_s": rate} if ramp is None else {"profile": _ramp(bench, ramp)}
        arrivals = _intervals(options.get("burstiness", 1.0)) | load
    if limit is None:
        return arrivals
    bench.note("arrivals", "Requests above max_in_flight are delayed; ttft_planned_ms includes that delay.")
    return arrivals | {"max_in_flight": limit, "when_full": "delay"}


def _intervals(burstiness: float) -> dict[str, Any]:
    if math.isinf(burstiness):
        return {"kind": "constant"}
    return {"kind": "poisson"} if burstiness == 1 else {"kind": "gamma", "burstiness": burstiness}


def _ramp(bench: Translation, strategy: str) -> dict[str, Any]:
    """Return vLLM's ramp as a piecewise-linear function of time; vLLM defines it by the number of the request."""
    first, last = (bench.options.get(f"ramp-up-{end}-rps") for end in ("start", "end"))
    if first is None or last is None or first > last or "request-rate" in bench.options:
        needed = "needs --ramp-up-start-rps, a --ramp-up-end-rps that is not below it, and no --request-rate"
        raise UsageError(f"--ramp-up-strategy: {needed}")
    duration_s = ramp_s(strategy, first, last, bench.prompts)
    bench.note(
        "arrivals", f"vLLM's {strategy} ramp is a function of the request number; this is the equivalent over time."
    )
    shares = [index / _RAMP_SEGMENTS for index in range(_RAMP_SEGMENTS + 1)]
    points = [
        {"time_s": round(duration_s * share, 3), "sessions_per_s": round(ramp_rate(strategy, first, last, share), 3)}
        for share in shares
    ]
    return {"kind": "points", "points": points}


def ramp_s(strategy: str, first: float, last: float, prompts: int) -> float:
    """Return the duration of vLLM's ramp: the sum of 1 / rate over its requests, as an integral."""
    if first == last:
        return prompts / first
    log = math.log(last / first)
    return prompts * log / (last - first) if strategy == "linear" else prompts * (1 / first - 1 / last) / log


def ramp_rate(strategy: str, first: float, last: float, share: float) -> float:
    """Return the rate after a share of the ramp's duration.

    A rate that is linear in the number of the request is exponential in time; one that is exponential has a linear 1 / rate.
    """
    if strategy == "linear":
        return float(first * (last / first) ** share)
    return 1 / ((1 - share) / first + share / last)


def _add_warmup(bench: Translation) -> None:
    turns, arrivals = bench.options.get("num-warmups", 0), bench.document["arrivals"]
    if not turns:
        return
    burst = arrivals["kind"] == "closed" and "max-concurrency" not in bench.options
    if burst or arrivals["kind"] == "trace" or "profile" in arrivals:
        none = "a burst, a ramp or a trace has no warmup; run inferload run smoke before it"
        bench.unsupported.append(f"--num-warmups: {none}")
        return
    bench.note(
        "phases", "Warmup turns are like the others; vLLM's benchmark repeats its first prompt, which is cached."
    )
    bench.document["phases"].update(warmup_s=600, warmup_turns=turns)


# -- requests and target

_BACKENDS = {backend: row.name for row in ENDPOINTS.values() for backend in row.vllm_backends}


def _endpoint(bench: Translation, data: str) -> EndpointName:
    backend = bench.options.get("backend") or bench.options.get("endpoint-type") or "openai"
    endpoint = _BACKENDS[backend]
    if data == "random-mm" and backend != "openai-chat":
        raise UsageError(f"--backend {backend}: images need --backend openai-chat")
    if data in ("custom", "hf") and "skip-chat-template" not in bench.options and not ENDPOINTS[endpoint].chat_template:
        bench.note("request", "vLLM's benchmark applies the chat template to these prompts; here the server does.")
        return "chat"
    return endpoint


def _add_request(bench: Translation) -> None:
    options, request = bench.options, bench.document["request"]
    body = request.pop("extra_body", {}) | _logprobs(bench) | options.get("extra-body", {})
    for key in sorted(body.keys() & RESERVED.keys()):
        bench.unsupported.append(f"--extra-body {key}: {RESERVED[key]}")
        del body[key]
    if "temperature" not in body and bench.script:
        bench.note("request", "benchmark_serving.py sends a temperature of 0 by default.")
        body["temperature"] = 0.0
    elif "temperature" not in body:
        bench.note("request", "No temperature: the server's default, as with `vllm bench serve`.")
    headers = dict(options.get("header", ()))
    for name in [name for name in headers if secret_header(name)]:
        bench.unsupported.append(f"--header {name}: a scenario holds no keys; use --api-key-file or OPENAI_API_KEY")
        del headers[name]
    request.update({key: value for key, value in (("extra_body", body), ("headers", headers)) if value})


def _logprobs(bench: Translation) -> dict[str, Any]:
    count, endpoint = bench.options.get("logprobs"), bench.document["request"]["endpoint"]
    return {} if count is None else DIALECTS[endpoint].logprobs(count)


def _add_target(bench: Translation) -> None:
    options = bench.options
    for name in ("base-url", "host", "endpoint"):
        if "@" in options.get(name, ""):
            raise UsageError(f"--{name}: contains a user or a password; remove it, and give a key by --api-key-file")
    path = options.get("endpoint", "/v1/completions")
    host = options.get("base-url") or f"http://{options.get('host', '127.0.0.1')}:{options.get('port', 8000)}"
    if "://" in path:
        host, path = _of_url(path)
    if "/v1/" not in path:
        raise UsageError(f"--endpoint {path}: must be a path with /v1/, or a URL")
    if host.partition("://")[0].lower() not in ("http", "https"):
        schemes = "must start with http:// or https://, as http://server:8000"
        raise UsageError(f"--base-url {without_userinfo(host)}: {schemes}")
    bench.run += ["--host", host.rstrip("/") + path.partition("/v1/")[0]]
    model = options.get("served-model-name") or options.get("model")
    if model is not None and "models" not in bench.document["request"]:
        bench.run += ["--model", model]
    if "insecure" in options:
        bench.run.append("--insecure")


def _of_url(url: str) -> tuple[str, str]:
    """Split a URL that stands in for a path into the base URL and a path with /v1/."""
    scheme, _, rest = url.partition("://")
    server, _, path = rest.partition("/")
    before, _, after = f"/{path}".partition("/v1")
    return f"{scheme}://{server}{before.rstrip('/')}", f"/v1/{after.lstrip('/')}"


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
    "backend endpoint-type": Option(_one_of(_BACKENDS)),
    "base-url host endpoint model served-model-name": Option(),
    "port": Option(_POSITIVE_COUNT),
    "insecure": Option(_SWITCH),
    "lora-modules": Option(key="request.models", to=_equal_shares, many=True),
    "lora-assignment": Option(not_needed="each session draws its adapter, with equal shares"),
    # data set
    "dataset-name": Option(_one_of(_DATASETS)),
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


def _parsed(text: str) -> Translation:
    """Split the command line as a shell and vLLM do; UsageError has one line for each fault."""
    script, words = _after_command(_shell_words(text))
    bench, faults = Translation(words, script), []
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


def _shell_words(text: str) -> list[str]:
    """Return the words of one command, which may span several lines with a comment after each backslash."""
    lines = [re.sub(r"\\\s*(#.*)?$", "", line) for line in text.strip().splitlines()]
    try:
        words = shlex.split(" ".join(lines), comments=True)
    except ValueError as error:
        raise UsageError(f"the command line cannot be read: {error}; paste it whole, quotes included") from None
    ends = (index for index, word in enumerate(words) if re.fullmatch(r"\||\|\||&|&&|;|[0-9&]*>.*", word))
    return words[: next(ends, len(words))]


def _after_command(words: Sequence[str]) -> tuple[bool, list[str]]:
    """Return (benchmark_serving.py is called, its options as `--name value` with dashes)."""
    for index, word in enumerate(words):
        script = bool(re.search(r"benchmark_serving(\.py)?$|^vllm\.benchmarks?\.serve$", word))
        if script or words[index : index + 2] == ["bench", "serve"]:
            return script, [part for word in words[index + 2 - script :] for part in _dashed(word)]
        other = re.search(r"benchmark_(?!serving)\w+(\.py)?$", word)
        if other or (word == "bench" and words[index + 1 : index + 2]):
            name = other[0] if other else f"vllm bench {words[index + 1]}"
            raise UsageError(f"{name}: only serve is translated; see inferload throughput, inferload sweep")
    raise UsageError(
        "no `vllm bench serve` and no benchmark_serving.py in it; paste the whole command, in quotes: "
        "inferload import 'vllm bench serve --model ...'"
    )


def _dashed(word: str) -> tuple[str, ...]:
    if not word.startswith("--"):
        return (word,)
    name, equals, value = word.partition("=")
    return (name.replace("_", "-"), value) if equals else (name.replace("_", "-"),)
