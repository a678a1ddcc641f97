"""Translation of a command line into a scenario document.

`OPTIONS` maps each option of vLLM 0.32 and of its predecessor benchmark_serving.py to the scenario key that it sets. Options
that only make sense together (target, data set, arrivals) are read by one function each.
"""

from typing import Any

from inferload.client.connection.redaction import without_userinfo
from inferload.errors import UsageError
from inferload.scenario.schema.endpoints import Endpoint
from inferload.scenario.schema.fields import RESERVED, secret_header
from inferload.vllm_bench.arrivals import add_warmup, arrivals_of
from inferload.vllm_bench.command_line import parse
from inferload.vllm_bench.datasets import DATASETS, FORCED_LENGTHS
from inferload.vllm_bench.options import BACKENDS, OPTIONS
from inferload.vllm_bench.translation import DEFAULT_PROMPTS, Translation


def translate(text: str) -> Translation:
    """Return the scenario that sends the load of a command line; UsageError if there is none."""
    bench = parse(text)
    options = bench.options
    data = options.get("dataset-name") or ("sharegpt" if options.get("dataset") else "random")
    bench.document = {
        "schema": 1,
        "name": f"bench-{data}",
        "workload": {"kind": "chat", **DATASETS[data](bench)},
        "arrivals": arrivals_of(bench, data == "timed_trace" and "no-self-timed" not in options),
        "phases": {"warmup_s": 0, "sessions": DEFAULT_PROMPTS, "drain_s": 600},
        "request": {"endpoint": _endpoint(bench, data), "ignore_eos": data in FORCED_LENGTHS and not bench.script},
        "cache": {"isolate": "run"},
        "seed": 0,
    }
    for name, value in options.items():
        option = OPTIONS[name]
        if option.key:
            _set(bench.document, option.key, option.to(value))
        if option.note:
            bench.note("schema", f"--{name}: {option.note}")
        if option.unsupported:
            bench.unsupported.append(f"--{name}: {option.unsupported}")
    add_warmup(bench)
    _request(bench)
    _target(bench)
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


def _endpoint(bench: Translation, data: str) -> Endpoint:
    backend = bench.options.get("backend") or bench.options.get("endpoint-type") or "openai"
    endpoint = BACKENDS[backend]
    if data == "random-mm" and endpoint != "chat":
        raise UsageError(f"--backend {backend}: images need --backend openai-chat")
    if data in ("custom", "hf") and "skip-chat-template" not in bench.options and endpoint == "completions":
        bench.note("request", "vLLM's benchmark applies the chat template to these prompts; here the server does.")
        return "chat"
    return endpoint


def _target(bench: Translation) -> None:
    options = bench.options
    for name in ("base-url", "host", "endpoint"):
        if "@" in options.get(name, ""):
            raise UsageError(f"--{name}: contains a user or a password; remove it, and give a key by --api-key-file")
    path = options.get("endpoint", "/v1/completions")
    host = options.get("base-url") or f"http://{options.get('host', '127.0.0.1')}:{options.get('port', 8000)}"
    if "/v1/" not in path or "://" in path:
        raise UsageError(f"--endpoint {path}: must be a path with /v1/; --base-url takes a URL")
    if host.partition("://")[0].lower() not in ("http", "https"):
        raise UsageError(
            f"--base-url {without_userinfo(host)}: must start with http:// or https://, as http://server:8000"
        )
    bench.run += ["--host", host.rstrip("/") + path.partition("/v1/")[0]]
    model = options.get("served-model-name") or options.get("model")
    if model is not None and "models" not in bench.document["request"]:
        bench.run += ["--model", model]
    if "insecure" in options:
        bench.run.append("--insecure")


def _request(bench: Translation) -> None:
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
    count = bench.options.get("logprobs")
    endpoint = bench.document["request"]["endpoint"]
    if count is None:
        return {}
    if endpoint == "responses":
        return {"top_logprobs": count, "include": ["message.output_text.logprobs"]}
    return {"logprobs": True, "top_logprobs": count} if endpoint == "chat" else {"logprobs": count}
