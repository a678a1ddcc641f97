"""From a `vllm bench serve` line to a scenario that asks the same: its data, and all that had to be said on the way. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from inferload.cli.bencharrivals import arrivals, phases
from inferload.cli.benchdata import workload
from inferload.cli.benchline import BenchLine
from inferload.cli.benchmade import Translated
from inferload.cli.benchnumbers import mapping, number, pairs, whole
from inferload.cli.benchoptions import OPTIONS
from inferload.cli.benchtraces import self_timed
from inferload.errors import UsageError
from inferload.workload.endpoints import ENDPOINTS, Endpoint
from inferload.workload.scenariofields import RESERVED, secret_header

_BACKENDS: Mapping[str, Endpoint] = {
    "vllm": "completions",
    "openai": "completions",
    "openai-chat": "chat",
    "openai-responses": "responses",
    "sglang": "completions",
    "lmdeploy": "completions",
    "scalellm": "completions",
}
_SAMPLING = ("top-p", "top-k", "min-p", "temperature", "frequency-penalty", "presence-penalty", "repetition-penalty")
_FORCED = ("random", "random-mm", "timed_trace")  # answers of just the length that is asked for, as there
_GOODPUT = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2el": "e2e_ms"}


def translate(line: BenchLine) -> Translated:
    """The scenario that asks what the line asks; UsageError where there can be none."""
    made = Translated()
    endpoint = _endpoint(line, made)
    data = line.word("dataset-name") or ("sharegpt" if line.given.get("dataset") else "random")
    coming = arrivals(line, made, own_times=self_timed(line, data))
    made.document = {
        "schema": 1,
        "name": _name(line, data),
        "workload": workload(line, made, data),
        "arrivals": coming,
        "phases": phases(line, made, coming),
        "request": _request(line, made, endpoint, data),
        "cache": {"isolate": "run"},
        "seed": whole(line, "seed", 0),
    }
    made.say(
        "cache", "vLLM's benchmark does not do this: its second run on a server finds the first one's prompts cached."
    )
    made.say("cache", "isolate: none measures so too.")
    if (slo := _slo(line)) is not None:
        made.document["slo"] = slo
    _target(line, made)
    for name in line.given:
        option = OPTIONS[name]
        if option.fate == "lost":
            made.lose(f"--{name}: {option.why}")
        elif option.fate == "ours":
            made.say("schema", f"--{name}: {option.why}")
    return made


def _name(line: BenchLine, data: str) -> str:
    text = line.word("label") or f"bench-{data}"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:64] or "bench"


# -- whom


def _endpoint(line: BenchLine, made: Translated) -> Endpoint:
    data = line.word("dataset-name")
    backend = line.word("backend") or line.word("endpoint-type") or "openai"
    if backend not in _BACKENDS:
        raise UsageError(f"--backend {backend}: has no counterpart; what can be asked is {', '.join(_BACKENDS)}")
    endpoint = _BACKENDS[backend]
    if data == "timed_trace" and endpoint != "completions":
        raise UsageError(f"--backend {backend}: vLLM's benchmark takes timed_trace with vllm or openai only")
    if data == "random-mm" and endpoint != "chat":
        raise UsageError(f"--backend {backend}: pictures go with --backend openai-chat")
    path = line.word("endpoint")
    if path is not None and "://" not in path and not path.endswith("/v1" + ENDPOINTS[endpoint].path):
        made.say("request", f"--endpoint {path} does not fit --backend {backend}: the backend counts here.")
    templated = line.word("dataset-name") in ("custom", "hf") and "skip-chat-template" not in line.given
    if templated and endpoint == "completions":
        made.say("request", "vLLM's benchmark puts a chat template around these prompts itself; here the server does.")
        return "chat"
    return endpoint


def _target(line: BenchLine, made: Translated) -> None:
    path = line.word("endpoint") or "/v1/completions"
    for name in ("base-url", "host", "endpoint"):
        if "@" in (line.word(name) or ""):
            raise UsageError(f"--{name}: holds a user or a password; take them out, and give a key by --api-key-file")
    host = line.word("base-url") or f"http://{line.word('host') or '127.0.0.1'}:{whole(line, 'port', 8000, 1)}"
    if "://" in path:
        made.say("schema", f"--endpoint {path}: is a path in vLLM; taken for --base-url")
        host, path = path, ""
    before = path.partition("/v1/")[0] if "/v1/" in path else ""
    if path and "/v1/" not in path:
        made.lose(f"--endpoint {path}: requests go below /v1 of the host")
    if host.partition("://")[0].lower() not in ("http", "https"):
        raise UsageError(f"--base-url {host}: no http:// or https:// in front; say it as http://server:8000")
    made.run += ["--host", host.rstrip("/") + before]
    model = line.word("served-model-name") or line.word("model")
    if model is not None and "models" not in made.document["request"]:
        made.run += ["--model", model]
    if "insecure" in line.given:
        made.run.append("--insecure")


# -- how


def _request(line: BenchLine, made: Translated, endpoint: Endpoint, data: str) -> dict[str, Any]:
    request: dict[str, Any] = {"endpoint": endpoint, "ignore_eos": "ignore-eos" in line.given or data in _FORCED}
    adapters = line.given.get("lora-modules", ())
    if adapters:
        request["models"] = _shares(adapters)
        if line.word("lora-assignment") == "round-robin":
            made.lose("--lora-assignment round-robin: each session draws its adapter, in equal shares")
    body = {name.replace("-", "_"): number(line, name) for name in _SAMPLING if name in line.given}
    if "top_k" in body:
        body["top_k"] = whole(line, "top-k", None, -1)
    body |= _logprobs(line, endpoint) | mapping(line, "extra-body")
    for key in [key for key in body if key in RESERVED]:
        made.lose(f"--extra-body {key}: {RESERVED[key]}")
        del body[key]
    if line.script and "temperature" not in body:
        made.say("request", "benchmark_serving.py sent a temperature of 0 by itself.")
        body["temperature"] = 0.0
    elif "temperature" not in body:
        made.say("request", "No temperature: the server's own sampling, as `vllm bench serve` leaves it.")
    headers = {}
    for name, value in pairs(line, "header", "="):
        if secret_header(name):
            made.lose(f"--header {name}: a key does not belong into a scenario; use --api-key-file or OPENAI_API_KEY")
        else:
            headers[name] = value
    return request | ({"extra_body": body} if body else {}) | ({"headers": headers} if headers else {})


def _shares(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Equal shares that add up to 1: the last one takes what rounding leaves."""
    names = tuple(dict.fromkeys(names))
    share = round(1 / len(names), 6)
    rest = round(1 - share * (len(names) - 1), 6)
    return [{"name": name, "share": share if place < len(names) - 1 else rest} for place, name in enumerate(names)]


def _logprobs(line: BenchLine, endpoint: Endpoint) -> dict[str, Any]:
    count = whole(line, "logprobs")
    if count is None:
        return {}
    if endpoint == "responses":
        return {"top_logprobs": count, "include": ["message.output_text.logprobs"]}
    return {"logprobs": True, "top_logprobs": count} if endpoint == "chat" else {"logprobs": count}


def _slo(line: BenchLine) -> dict[str, float] | None:
    limits = {}
    for name, value in pairs(line, "goodput", ":"):
        if name not in _GOODPUT:
            raise UsageError(f"--goodput {name}:{value}: must be one of {', '.join(_GOODPUT)}")
        try:
            limits[_GOODPUT[name]] = float(value)
        except ValueError:
            raise UsageError(f"--goodput {name}:{value}: must be a number of milliseconds") from None
    return limits or None
