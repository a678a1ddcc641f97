"""Translation of a `vllm bench serve` command line into a scenario file. No I/O."""

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferload.base.errors import UsageError, instead
from inferload.base.redaction import without_userinfo
from inferload.client.endpoints.dialect import DIALECTS
from inferload.scenario.files.yaml_text import as_yaml, parse
from inferload.scenario.schema.endpoints import ENDPOINTS, EndpointName
from inferload.scenario.schema.fields import RESERVED, secret_header

from . import bench_options as table
from .kinds import Version, VllmCommand, options_of

_DEFAULT_PROMPTS = 1000  # vLLM's default of --num-prompts


@dataclass(slots=True)
class Translation:
    """A command line and the equivalent scenario, as they are read and filled in."""

    script: bool  # benchmark_serving.py instead of `vllm bench serve`
    version: Version | None = None
    words: list[str] = field(default_factory=list)  # of the command line, without values that may be keys
    options: dict[str, Any] = field(default_factory=dict)  # values by option name, without absent options
    document: dict[str, Any] = field(default_factory=dict)
    run: list[str] = field(default_factory=list)  # options of `inferload run`
    notes: dict[str, list[str]] = field(default_factory=dict)  # by top-level key of the document
    not_needed: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)

    @property
    def prompts(self) -> int:
        """Number of prompts."""
        return int(self.options.get("num-prompts", _DEFAULT_PROMPTS))

    def note(self, key: str, line: str) -> None:
        """Add a comment above a top-level key."""
        self.notes.setdefault(key, []).append(line)

    def first(self, *names: str, default: Any = None) -> Any:
        """Return the value of the first given option, or the default."""
        return next((self.options[name] for name in names if name in self.options), default)

    def text(self, file: str) -> str:
        """Return the text of the scenario file at `file`: origin, how to run it, options without an equivalent, the document."""
        head = [
            "Translated from",
            f"  {shlex.join([*table.WORDS[self.script], *self.words])}",
            "Run it with",
            f"  inferload run {file} {shlex.join(self.run)}",
        ]
        if self.unsupported:
            head += ["No equivalent:", *(f"  {line}" for line in self.unsupported)]
        if self.not_needed:
            head += ["Not needed:", *(f"  {line}" for line in self.not_needed)]
        keys = (_comments(self.notes.get(key, ())) + as_yaml({key: value}) for key, value in self.document.items())
        return _comments(head) + "\n" + "".join(keys)


def _comments(lines: Iterable[str]) -> str:
    return "".join(f"# {line}\n" for line in lines)


def translate(command: VllmCommand, version: Version | None = None) -> Translation:
    """Return the scenario with the load of a command line; UsageError: a line for each fault. `version`: None if not known."""
    bench = Translation(command.script, version)
    _read_options(bench, command.words)
    options = bench.options
    of_path = "sharegpt" if "dataset" in options else table.OF_PATH[bench.script and "dataset-path" in options]
    data = options.get("dataset-name", of_path)
    endpoint = _endpoint(bench, data)
    forced = data in table.FORCED_LENGTHS[bench.script] and ENDPOINTS[endpoint].ignore_eos
    bench.document = {
        "schema": 1,
        "name": f"bench-{data}",
        "workload": {"kind": "chat"} | _workload(bench, data),
        "arrivals": _arrivals(bench, data == "timed_trace" and "no-self-timed" not in options),
        "phases": {"warmup_s": 0, "sessions": _DEFAULT_PROMPTS, "drain_s": 600},
        "request": {"endpoint": endpoint, "ignore_eos": forced},
        "cache": {"isolate": "run"},
        "seed": 0,
    }
    for name, value in options.items():
        option = table.OPTIONS[name]
        if option.key:
            _set(bench.document, option.key, option.to(value))
        if option.not_needed:
            bench.not_needed.append(f"--{name}: {option.not_needed}")
        if option.unsupported:
            bench.unsupported.append(f"--{name}: {option.unsupported}")
    if bench.script:
        tested = "benchmark_serving.py sends its first prompt as a test before, so that the prefix cache has it"
        bench.note("phases", f"{tested}; here it is not sent.")
    _add_warmup(bench)
    _add_request(bench)
    _add_target(bench)
    cached = "In vLLM's benchmark the prompts of a second run are cached by the first"
    bench.note("cache", f"{cached}; isolate: none has the same effect.")
    return bench


def _read_options(bench: Translation, words: Sequence[str]) -> None:
    faults = []
    for flag, values in options_of(words):
        name = flag.removeprefix("--")
        option = table.OPTIONS.get(name)
        bench.words += [flag, *_shown(name, values)] if flag else values
        if flag and option is None:
            hint = table.REPLACED.get(name) or instead(flag, [f"--{known}" for known in table.OPTIONS], "")
            bench.unsupported.append(f"{flag}: no option of vllm bench serve" + (f"; {hint}" if hint else ""))
            continue
        takes = 0 if option is None or isinstance(option.read, bool) else len(values) if option.many else 1
        of_none = "belongs to no option; quote values that contain blanks"
        if option is None or not option.not_needed:
            bench.unsupported += [f"{word}: {of_none}" for word in values[takes:]]
        if option is not None:
            try:
                bench.options[name] = _value(option, values[:takes])
            except ValueError as error:
                faults.append(f"{flag}: {error}")
    if faults:
        raise UsageError("\n".join(faults))


def _shown(name: str, values: Sequence[str]) -> Sequence[str]:
    """Return the values of an option without those that may be keys."""
    if name not in ("header", "api-key"):
        return values
    return [f"{value.partition('=')[0]}=..." if "=" in value else "..." for value in values]


def _value(option: table.Option, words: Sequence[str]) -> Any:
    """Return the value of an option. ValueError states what is expected."""
    if isinstance(option.read, bool):
        return option.read
    if not words:
        raise ValueError(f"expected {'at least ' * option.many}one argument")
    values = [option.read(word) for word in words]
    return values if option.many else values[0]


def _set(document: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        document = document.setdefault(parent, {})
    document[last] = value


# -- data


def _workload(bench: Translation, data: str) -> dict[str, Any]:
    """Return the keys of a data set's rows, and what does not fit into a row."""
    workload: dict[str, Any] = {}
    for row in "; ".join(table.DATASETS["random" if data == "random-mm" else data]).split("; "):
        key, *words = row.split()
        names = [word.removeprefix("--") for word in words if word.startswith("--")]
        value = bench.first(*names, default=parse(" ".join(words[len(names) :])).data)
        if names and value == "required":
            raise UsageError(f"--dataset-path: missing; --dataset-name {data} needs it")
        if value is False or value not in (None, 0, -1):  # -1: the file has the lengths
            _set(workload, key.removesuffix(":"), value)
    if data in table.UNLIKE:
        bench.unsupported.append(f"--dataset-name {data}: {table.UNLIKE[data]}")
    if data in _ADAPTED:
        _ADAPTED[data](bench, workload)
    return workload


def _random(bench: Translation, workload: dict[str, Any]) -> None:
    old = bench.version is not None and bench.version < table.SYMMETRIC_RATIO
    of_prompt, of_answer = bench.options.get("random-range-ratio", (1.0, 1.0) if old else (0.0, 0.0))
    source = workload["source"]
    if not old and max(of_prompt, of_answer) == 1:
        raise UsageError("--random-range-ratio 1: must be below 1 since vLLM 0.8.4; name an earlier --vllm-version")
    if of_prompt != of_answer or (old and of_prompt < 1):
        del workload["source"]
        for key, ratio in (("prompt_tokens", of_prompt), ("output_tokens", of_answer)):
            mean = source[key.replace("prompt", "input")]
            low, high = (mean * ratio, mean) if old else (mean * (1 - ratio), mean * (1 + ratio))
            bounds = {"dist": "uniform", "min": max(1, math.floor(low)), "max": math.ceil(high)}
            workload[key] = bounds if low < high else mean
        workload |= {"system_prompt_tokens": source["prefix_tokens"]} if "prefix_tokens" in source else {}
        return
    if of_prompt and not old:
        source["range_ratio"] = of_prompt
    if bench.script and not old and "prefix_tokens" not in source:
        source["draws"] = {"prompts": bench.prompts, "seed": bench.options.get("seed", 0)}
        drawn = "Lengths and common beginnings of the prompts are those that benchmark_serving.py of vLLM 0.8.4"
        bench.note("workload", f"{drawn} and later draws with this seed.")


def _random_images(bench: Translation, workload: dict[str, Any]) -> None:
    _random(bench, workload)
    sizes = bench.options.get("random-mm-bucket-config", {(256, 256, 1): 0.5, (720, 1280, 1): 0.5})
    height, width, _ = max(sizes, key=sizes.__getitem__)
    count = bench.options.get("random-mm-base-items-per-request", 1)
    if count and len(sizes) > 1:
        same = f"{len(sizes)} sizes: all images have one size, {width} x {height}"
        bench.unsupported.append(f"--random-mm-bucket-config: {same}")
    if count:
        workload["images"] = {"per_message": count, "width_px": width, "height_px": height}


def _prefix_repetition(bench: Translation, workload: dict[str, Any]) -> None:
    prefixes, prompts = workload["source"]["prefixes"], bench.prompts
    if prompts < prefixes:
        least = f"must be at least --prefix-repetition-num-prefixes {prefixes}, as in vLLM's benchmark"
        raise UsageError(f"--num-prompts {prompts}: {least}")
    if prompts % prefixes:
        bench.options["num-prompts"] = sent = prompts - prompts % prefixes
        bench.note("phases", f"vLLM's benchmark sends each prefix equally often: {sent} of {prompts} prompts.")


def _sharegpt(_bench: Translation, workload: dict[str, Any]) -> None:
    if (length := workload.get("output_tokens")) is None:
        return
    longest = min(1024, 2048 - length)  # vLLM's limits of a prompt, and of prompt and answer
    if longest < 4:
        raise UsageError(f"--output-len {length}: must be 2044 or less; above it vLLM's benchmark rejects all prompts")
    workload["source"]["filters"] = {"min_prompt_tokens": 4, "max_prompt_tokens": longest}


def _timed_trace(bench: Translation, workload: dict[str, Any]) -> None:
    options, formats = bench.options, {(512, 0.001): "mooncake", (16, 1.0): "bailian"}
    form = options.get("timed-trace-chunk-hash-size", 16), options.get("timed-trace-sec-multiplier", 1.0)
    if form not in formats:
        raise UsageError(
            "--dataset-name timed_trace: blocks and times must be 512 tokens and 0.001 s (mooncake) or 16 tokens and 1 s "
            "(bailian); write other traces as jsonl, see the docs of replays"
        )
    workload["format"] = formats[form]


def _sonnet(_bench: Translation, workload: dict[str, Any]) -> None:
    source = workload["source"]
    source["suffix_tokens"] = max(1, source["suffix_tokens"] - source["prefix_tokens"])


_ADAPTED: Mapping[str, Callable[[Translation, dict[str, Any]], None]] = {
    "random": _random,
    "random-mm": _random_images,
    "prefix_repetition": _prefix_repetition,
    "sharegpt": _sharegpt,
    "timed_trace": _timed_trace,
    "sonnet": _sonnet,
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
        burstiness = options.get("burstiness", 1.0)
        of_intervals = {1.0: {"kind": "poisson"}, math.inf: {"kind": "constant"}}
        arrivals = of_intervals.get(burstiness, {"kind": "gamma", "burstiness": burstiness}) | load
    if limit is None:
        return arrivals
    bench.note("arrivals", "Requests above max_in_flight are delayed; ttft_planned_ms includes that delay.")
    return arrivals | {"max_in_flight": limit, "when_full": "delay"}


def _ramp(bench: Translation, strategy: str) -> dict[str, Any]:
    """Return vLLM's ramp as a piecewise-linear function of time; vLLM defines it by the number of the request."""
    first, last = (bench.options.get(f"ramp-up-{end}-rps") for end in ("start", "end"))
    if first is None or last is None or first > last or "request-rate" in bench.options:
        needed = "needs --ramp-up-start-rps, a --ramp-up-end-rps that is not below it, and no --request-rate"
        raise UsageError(f"--ramp-up-strategy: {needed}")
    duration_s = ramp_s(strategy, first, last, bench.prompts)
    of_requests = f"vLLM's {strategy} ramp is a function of the request number"
    bench.note("arrivals", f"{of_requests}; this is the equivalent over time.")
    shares = [index / _RAMP_SEGMENTS for index in range(_RAMP_SEGMENTS + 1)]
    rates = [round(ramp_rate(strategy, first, last, share), 3) for share in shares]
    times_s = [round(duration_s * share, 3) for share in shares]
    points = [{"time_s": at, "sessions_per_s": rate} for at, rate in zip(times_s, rates, strict=True)]
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
    burst = arrivals["kind"] == "closed" and "max-concurrency" not in bench.options
    if turns and (burst or arrivals["kind"] == "trace" or "profile" in arrivals):
        none = "a burst, a ramp or a trace has no warmup; run inferload run smoke before it"
        bench.unsupported.append(f"--num-warmups: {none}")
    elif turns:
        like = "Warmup turns are like the others; vLLM's benchmark repeats its first prompt, which is cached."
        bench.note("phases", like)
        bench.document["phases"].update(warmup_s=600, warmup_turns=turns)


# -- requests and target


def _endpoint(bench: Translation, data: str) -> EndpointName:
    backend = bench.first("backend", "endpoint-type", default="openai")
    endpoint = table.BACKENDS[backend]
    if data == "random-mm" and backend != "openai-chat":
        raise UsageError(f"--backend {backend}: images need --backend openai-chat")
    if data in ("custom", "hf") and "skip-chat-template" not in bench.options and not ENDPOINTS[endpoint].chat_template:
        bench.note("request", "vLLM's benchmark applies the chat template to these prompts; here the server does.")
        return "chat"
    return endpoint


def _add_request(bench: Translation) -> None:
    options, request = bench.options, bench.document["request"]
    logprobs = DIALECTS[request["endpoint"]].logprobs(options["logprobs"]) if "logprobs" in options else {}
    body = request.pop("extra_body", {}) | logprobs | options.get("extra-body", {})
    for key in sorted(body.keys() & RESERVED.keys()):
        bench.unsupported.append(f"--extra-body {key}: {RESERVED[key]}")
        del body[key]
    if "temperature" not in body:
        bench.note("request", table.BODY_NOTES[bench.script])
        body |= table.BODY[bench.script]
    headers = dict(options.get("header", ()))
    for name in [name for name in headers if secret_header(name)]:
        bench.unsupported.append(f"--header {name}: a scenario holds no keys; use --api-key-file or OPENAI_API_KEY")
        del headers[name]
    request.update({key: value for key, value in (("extra_body", body), ("headers", headers)) if value})


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
    model = bench.first("served-model-name", "model")
    if model is not None and "models" not in bench.document["request"]:
        bench.run += ["--model", model]
    bench.run += ["--insecure"] * ("insecure" in options)


def _of_url(url: str) -> tuple[str, str]:
    """Split a URL that stands in for a path into the base URL and a path with /v1/."""
    scheme, _, rest = url.partition("://")
    before, _, after = rest.partition("/v1")
    return f"{scheme}://{before.rstrip('/')}", f"/v1/{after.lstrip('/')}"
