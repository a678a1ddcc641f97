"""Scripts that change what the simulator behind them takes and answers: path, key of the limit, list of models, numbers."""

import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

from scripted_server import NOT_FOUND, body_of, chunked, page

AZURE = "/openai/deployments/gpt/chat/completions?api-version=2024-10-21"
MISSING = {"error": {"message": "Resource not found", "code": "404"}}
UNSUPPORTED = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)
# Message of the refusal of a turn; None to pass it on.
Refuse = Callable[[dict[str, Any]], str | None]


def changed(path: str, refuse: Refuse = lambda _body: None, models: dict[str, Any] | None = None) -> Any:
    """Return a script that passes turns at one path on, and has no other page than a list of models."""

    def script(sock: Any, request: bytes) -> None:
        method, asked = request.partition(b"\r\n")[0].decode().split()[:2]
        if method == "GET" and models is not None and asked.endswith("/models"):
            sock.sendall(page(models))
        elif asked != path:
            sock.sendall(page(MISSING, 404))
        elif message := refuse(body_of(request)):
            sock.sendall(page({"error": {"message": message, "type": "invalid_request_error"}}, 400))
        else:
            sock.pass_on(b"POST /v1/chat/completions HTTP/1.1\r\n" + request.partition(b"\r\n")[2])

    return script


def refuse_max_tokens(body: dict[str, Any]) -> str | None:
    """Refuse the older key of the limit."""
    return UNSUPPORTED if "max_tokens" in body else None


deployment = changed(AZURE)
without_version = changed("/proxy/prefix/chat/completions")
new_key = changed("/v1/chat/completions", refuse_max_tokens)
unlisted = changed(
    "/v1/chat/completions",
    lambda body: "integer below minimum value. Expected a value >= 6" if body["max_tokens"] < 6 else None,
    {"object": "list", "data": [{"id": "unknown"}]},
)
strict = changed(
    "/v1/chat/completions",
    lambda body: "Unrecognized request argument supplied: ignore_eos" if "ignore_eos" in body else None,
)


def without_metrics(sock: Any, request: bytes) -> None:
    """Pass everything but the page of metrics on."""
    if request.startswith(b"GET /metrics"):
        sock.sendall(NOT_FOUND)
    else:
        sock.pass_on(request)


ODD_METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} +Inf
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} -Inf
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} NaN
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0"} +Inf
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0"} 1e308
vllm:prompt_tokens_total{engine="1"} 1e308
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0"} 7
"""
TEXT = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
FINISH = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
ODD_EVENTS = [
    b'{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 18446744073709551615}}',
    b'{"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 5}}',
    b'{"choices": [], "usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1e20}}}',
    b'{"choices": [], "metrics": {"queue_time_ms": 1e308}}',
    b'{"choices": [], "error": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
]
_turns = itertools.count()


def odd_numbers_metrics() -> str:
    """Return a page of which all metrics but one have a number out of range."""
    return ODD_METRICS


def odd_numbers(sock: Any, request: bytes) -> None:
    """Answer every third turn with a number out of range."""
    number = next(_turns) if b'"stream":true' in request.replace(b" ", b"") else 0
    if number % 3 < 2:
        sock.pass_on(request)
        return
    odd = ODD_EVENTS[number // 3 % len(ODD_EVENTS)]
    sock.sendall(chunked(TEXT, b"data: " + odd + b"\n\n", FINISH, b"data: [DONE]\n\n"))


def interrupting(sock: Any, request: bytes) -> None:
    """Answer no turn, and send Ctrl-C instead."""
    if request.startswith(b"POST /v1/chat/completions "):
        os.kill(os.getpid(), signal.SIGINT)
    else:
        sock.pass_on(request)
