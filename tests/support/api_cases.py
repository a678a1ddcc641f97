"""Requests to which vLLM and the simulator must respond alike; the compared outlines of replies and of metrics pages."""

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
JSON = {"Content-Type": "application/json"}
MODEL_LENGTH = 4096
HELLO = [{"role": "user", "content": "hello to you"}]
SCHEMA = {"type": "object", "properties": {"n": {"enum": ["a", "b"]}}, "required": ["n"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "pick", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "pick"}}
STREAM = {"stream": True}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
RUNNING = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
LONG = "the dog " * MODEL_LENGTH


@dataclass(frozen=True, slots=True)
class ApiCase:
    """Request. A `body` of bytes is sent unchanged."""

    name: str
    path: str
    body: Any = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)


def chat(**more: Any) -> dict[str, Any]:
    plain = {"model": "tiny", "messages": HELLO, "max_tokens": 4, "ignore_eos": True}
    return {**plain, "chat_template_kwargs": {"enable_thinking": False}, **more}


def text(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "one two three", "max_tokens": 4, "ignore_eos": True, **more}


def answered() -> Iterator[ApiCase]:
    """Yield valid requests."""
    for name, more in {"whole": {}, "stream": STREAM, "usage": USAGE, "running": RUNNING}.items():
        yield ApiCase(f"chat {name}", CHAT, chat(**more))
        yield ApiCase(f"text {name}", TEXT, text(**more))
    yield ApiCase("chat ids", CHAT, chat(return_token_ids=True))
    yield ApiCase("chat ids stream", CHAT, chat(return_token_ids=True, **USAGE))
    yield ApiCase("text ids", TEXT, text(return_token_ids=True))
    yield ApiCase("text ids stream", TEXT, text(return_token_ids=True, **USAGE))
    yield ApiCase("reasoning", CHAT, chat(max_tokens=2, chat_template_kwargs={}))
    yield ApiCase("unknown fields", CHAT, chat(no_such_field=1))
    yield ApiCase("unknown role", CHAT, chat(messages=[{"role": "alien", "content": "x"}]))
    yield ApiCase("no content", CHAT, chat(messages=[{"role": "user"}]))
    yield ApiCase("model alias", CHAT, chat(model="alias"))
    yield ApiCase("no model", CHAT, chat(model=None))
    yield ApiCase("empty model", CHAT, chat(model=""))
    yield ApiCase("text empty model", TEXT, text(model=""))
    yield ApiCase("parts", CHAT, chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]}]))
    yield ApiCase("tools with tool_choice none", CHAT, chat(tools=[TOOL], tool_choice="none"))
    yield ApiCase("options without stream", TEXT, text(stream_options={}))
    yield ApiCase("tokenize", "/tokenize", {"prompt": "one two"})
    yield ApiCase("tokenize chat", "/tokenize", {"messages": HELLO})
    yield ApiCase("tokenize long text", "/tokenize", {"prompt": LONG})
    yield ApiCase("get /health", "/health", None, "GET", {})
    yield ApiCase("reset", "/reset_prefix_cache", None, "POST", {})


def refused() -> Iterator[ApiCase]:
    """Yield invalid requests."""
    yield from _bad_chats()
    for name, more in {
        "no prompt": {"prompt": None},
        "empty": {"prompt": ""},
        "number": {"prompt": 5},
        "too long": {"prompt": LONG},
        "max_tokens": {"max_tokens": MODEL_LENGTH + 1},
        "max_tokens 0": {"max_tokens": 0},
    }.items():
        yield ApiCase(f"text: {name}", TEXT, text(**more))
    for name, raw in {"cut": b"{", "comma": b'{"model": "tiny", }', "": b"", "list": b"[1]", "null": b"null"}.items():
        yield ApiCase(f"no JSON: {name}", CHAT, raw)
    yield ApiCase("no UTF-8", CHAT, b'\xff\xfe{"a"')
    yield ApiCase("content type text/plain", CHAT, json.dumps(chat()).encode(), headers={"Content-Type": "text/plain"})
    yield ApiCase("no content type", CHAT, json.dumps(chat()).encode(), headers={})
    yield ApiCase("tokenize: unknown model", "/tokenize", {"model": "no", "prompt": "x"})
    yield ApiCase("tokenize: empty body", "/tokenize", {})
    yield ApiCase("tokenize: number", "/tokenize", {"prompt": 5})
    yield ApiCase("tokenize: no JSON", "/tokenize", b"{")
    for method, path in (("GET", "/nowhere"), ("GET", CHAT), ("POST", "/health"), ("DELETE", "/v1/models")):
        yield ApiCase(f"{method} {path}", path, None, method, {})


def _bad_chats() -> Iterator[ApiCase]:
    message = {"role": "user", "content": "x"}
    bad: dict[str, dict[str, Any]] = {
        "unknown model": {"model": "no"},
        "number as model": {"model": 5},
        "no messages": {"messages": None},
        "empty": {"messages": []},
        "text as messages": {"messages": "x"},
        "no role": {"messages": [{"content": "x"}]},
        "number as content": {"messages": [{"role": "user", "content": 5}]},
        "too long": {"messages": [{"role": "user", "content": LONG}]},
        "max_tokens 0": {"max_tokens": 0},
        "negative max_tokens": {"max_tokens": -1},
        "text as max_tokens": {"max_tokens": "x"},
        "fractional max_tokens": {"max_tokens": 1.5},
        "max_tokens too high": {"max_tokens": MODEL_LENGTH + 1},
        "max_completion_tokens too high": {"max_completion_tokens": MODEL_LENGTH + 1},
        "text as n": {"n": "x"},
        "text as stream": {"stream": "maybe"},
        "stream_options without stream": {"stream_options": {"include_usage": True}},
        "text as stream_options": {"stream": True, "stream_options": "x"},
        "empty salt": {"cache_salt": ""},
        "number as salt": {"cache_salt": 5},
        "salt with special characters": {"cache_salt": "a@b/c"},
        "long salt": {"cache_salt": "a" * 300},
        "tool_choice without tools": {"tool_choice": "auto"},
        "tool_choice required without tools": {"tool_choice": "required"},
        "unknown tool": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "no"}}},
        "unknown tool_choice": {"tools": [TOOL], "tool_choice": "bogus"},
        "an empty list of tools": {"tools": [], "tool_choice": "auto"},
        "text as tools": {"tools": "x"},
        "text as seed": {"seed": "x"},
        "text as ignore_eos": {"ignore_eos": "perhaps"},
        "text as chat_template_kwargs": {"chat_template_kwargs": "x"},
        "unknown content part": {"messages": [{"role": "user", "content": [{"type": "weird", "text": "a"}]}]},
        "image": {
            "messages": [message, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
        },
    }
    for name, more in bad.items():
        yield ApiCase(f"chat: {name}", CHAT, chat(**more))


def outline(port: int, case: ApiCase) -> dict[str, Any]:
    """Send a request; return status, content type, keys of the body or its events, and an error's type, param and code."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = case.body if case.body is None or isinstance(case.body, bytes) else json.dumps(case.body)
    connection.request(case.method, case.path, body, dict(case.headers))
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    outline: dict[str, Any] = {"status": reply.status, "type": reply.getheader("content-type")}
    if "event-stream" in str(outline["type"]):
        return outline | {"events": _events(text)}
    document = json.loads(text) if text else None
    if reply.status >= 400 and isinstance(document, dict) and isinstance(document.get("error"), dict):
        outline["error"] = {key: value for key, value in document["error"].items() if key != "message"}
    return outline | {"names": _names(document)}


def _events(text: str) -> list[Any]:
    """Return the kinds of events in order of first occurrence."""
    kinds: list[Any] = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        data = lines.get("data", "")
        kind = [lines.get("event"), _names(json.loads(data)) if data.startswith("{") else data]
        if kind not in kinds:
            kinds.append(kind)
    return kinds


def _names(value: Any, path: str = "") -> list[str]:
    """Return the paths of all keys except those that only one of the servers sends."""
    if isinstance(value, list):
        return sorted({name for each in value for name in _names(each, f"{path}[]")})
    if not isinstance(value, dict):
        return []
    names = []
    for key, inner in value.items():
        if key not in ("engine", "created_cache_tokens"):
            names += [f"{path}.{key}", *_names(inner, f"{path}.{key}")]
    return sorted(names)


# Labels whose values are part of the structure.
_CLOSED = (
    *("reason", "source", "finished_reason", "sleep_state", "position", "generation", "mode", "outcome"),
    "request_type",
)


def shape(page: str, families: str = "") -> str:
    """Return the structure of a metrics page: a line for each type, sample name with labels, and bucket bound.

    `families`: prefix of the names.
    """
    types = {
        name: kind
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE)
        if name.startswith(families)
    }
    lines = {f"{name} {kind}" for name, kind in types.items()}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if not sample.name.startswith(families):
                continue
            labels = sorted(set(sample.labels) - {"le"})
            text = ",".join(f"{key}={sample.labels[key]}" if key in _CLOSED else key for key in labels)
            lines.add(f"{sample.name}{{{text}}}")
            if "le" in sample.labels:
                lines.add(f"{sample.name} le={float(sample.labels['le'])}")
    return "\n".join(sorted(lines, key=_by_name_and_bound)) + "\n"


def _by_name_and_bound(line: str) -> tuple[str, float, str]:
    name, _, bound = line.partition(" le=")
    return name, float(bound or 0), line
