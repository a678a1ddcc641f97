"""Translation of a `vllm bench serve` command line into a scenario document."""

import math
from typing import Any

from inferload.base.errors import UsageError
from inferload.base.redaction import without_userinfo
from inferload.client.endpoints.table import DIALECTS
from inferload.scenario.schema.endpoints import ENDPOINTS, EndpointName
from inferload.scenario.schema.fields import RESERVED, secret_header

from .bench_data import DATASETS, FORCED_LENGTHS
from .bench_options import BACKENDS, OPTIONS, parsed
from .bench_translation import DEFAULT_PROMPTS, Translation
from .kinds import VllmCommand


def translate(command: VllmCommand) -> Translation:
    """Return the scenario that sends the load of a command line; UsageError if there is none."""
    bench = parsed(command)
    options = bench.options
    data = options.get("dataset-name") or ("sharegpt" if options.get("dataset") else "random")
    endpoint = _endpoint(bench, data)
    forced = data in FORCED_LENGTHS and not bench.script and ENDPOINTS[endpoint].ignore_eos
    bench.document = {
        "schema": 1,
        "name": f"bench-{data}",
        "workload": {"kind": "chat", **DATASETS[data](bench)},
        "arrivals": _arrivals(bench, data == "timed_trace" and "no-self-timed" not in options),
        "phases": {"warmup_s": 0, "sessions": DEFAULT_PROMPTS, "drain_s": 600},
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
    if bench.script:
        bench.note(
            "phases",
            "benchmark_serving.py sends its first prompt as a test before, so that the prefix cache has it; here it is not sent.",
        )
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


def _endpoint(bench: Translation, data: str) -> EndpointName:
    backend = bench.options.get("backend") or bench.options.get("endpoint-type") or "openai"
    endpoint = BACKENDS[backend]
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
