"""Server-sent events of chat completions."""

import json

CHUNKED = b"Transfer-Encoding: chunked\r\n"


def event(
    content: str | None = None, usage: tuple[int, int] | None = None, finish: str | None = None, **delta: object
) -> bytes:
    document: dict[str, object] = {
        "id": "chatcmpl-1",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    if content is not None:
        delta["content"] = content
    if usage is not None:
        document["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def usage(prompt: int, output: int, cached: int | None = None, metrics: dict[str, float] | None = None) -> bytes:
    document: dict[str, object] = {
        "id": "chatcmpl-1",
        "choices": [],
        "usage": {"prompt_tokens": prompt, "completion_tokens": output},
    }
    if cached is not None:
        document["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}  # type: ignore[index]
    if metrics is not None:
        document["metrics"] = metrics
    return b"data: " + json.dumps(document).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
ANSWER = [
    event("", role="assistant"),
    event("Grüße"),
    event(" \u2028x"),
    event("", finish="length"),
    usage(7, 2, 4),
    DONE,
]
