"""Requests to which vLLM and the simulator must respond alike; the compared outlines of replies and of metrics pages."""

import http.client
import json
import re
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
JSON = {"Content-Type": "application/json"}
MODEL_LENGTH = 4096
FLAGS = (
    *("--max-model-len", str(MODEL_LENGTH), "--served-model-name", "tiny", "alias"),
    *("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--enable-auto-tool-choice"),
)
# Drafts do not change the bodies.
SPECULATION = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}')
HELLO = [{"role": "user", "content": "hello to you"}]
SCHEMA = {"type": "object", "properties": {"n": {"enum": ["a", "b"]}}, "required": ["n"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "pick", "parameters": SCHEMA}}
CALL = {"id": "c", "type": "function", "function": {"name": "pick", "arguments": "{}"}}
NAMED = {"type": "function", "function": {"name": "pick"}}
STREAM = {"stream": True}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
RUNNING = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
BLOCK = 128  # tokens of a block of vLLM's prefix cache on the CPU
LONG = "the dog " * MODEL_LENGTH
BLOCKS = "the dog and the cat had to wait for the train " * 40  # three blocks and a part of one
# Values that both endpoints accept and refuse, by their fields; further fields that belong together.
_ACCEPTED: dict[str, tuple[Any, ...]] = {
    **{"temperature": ("0.5", 2, None), "top_p": (1,), "top_k": (-1, 0), "min_p": (0,), "repetition_penalty": (0.1,)},
    **{"presence_penalty": (-2,), "frequency_penalty": (2,), "seed": (1.0,), "max_tokens": ("4", 4.0), "n": (1,)},
    **{"ignore_eos": (1,), "stream": ("off",), "priority": (3, -3), "logprobs": (True,), "echo": (True,)},
    **{"stop": (None, [], ["zzz1", "zzz2", "zzz3", "zzz4"]), "prompt_logprobs": (1,), "bad_words": ([], ["zz"])},
    **{"truncate_prompt_tokens": (2, -1, MODEL_LENGTH), "truncation_side": (None, "right"), "stream_interval": (3,)},
    **{"response_format": (None, {"type": "text"}), "user": ("a",), "request_id": ("one",), "logit_bias": (None,)},
    **{
        "use_beam_search": (False, "no"),
        "length_penalty": (2,),
        "thinking_token_budget": (-1,),
        "vllm_xargs": ({"a": 1},),
    },
}
_REFUSED: dict[str, tuple[Any, ...]] = {
    **{
        "temperature": (-1, -0.1, 2.1, "x", [1]),
        "top_p": (0, -1, 1.1, "x"),
        "top_k": (-2, 1.5, "x"),
        "min_p": (-0.1, 1.1),
    },
    **{"presence_penalty": (-2.1, 2.1), "frequency_penalty": (-2.1, 2.1), "repetition_penalty": (0, -1, float("inf"))},
    **{"max_tokens": (0, -1, "x", 1.5, MODEL_LENGTH + 1), "min_tokens": (-1, 9, None), "n": (0, -1, "x")},
    **{"seed": (2**63, 1.5, "x"), "priority": ("x", None, 1.5, 2**63), "prompt_logprobs": (-1, -2, 21, "x")},
    **{"stop": ("", [""], ["x", ""], 5, [5], ["a"] * 5), "echo": ("x",), "stream": (2, "maybe")},
    **{"ignore_eos": (None, 2, "perhaps"), "cache_salt": ("", 5, "a@b/c", "a" * 300), "stream_interval": (0, "x")},
    **{"truncate_prompt_tokens": (0, -2, MODEL_LENGTH + 1, "x"), "truncation_side": ("middle",)},
    **{
        "response_format": ("text", {}, {"type": "x"}, {"type": "json_schema"}),
        "structured_outputs": ({}, {"choice": []}),
    },
    **{"bad_words": (None, "a", [""], [5]), "stop_token_ids": ("x", ["x"]), "allowed_token_ids": ("x",)},
    **{"user": (5,), "request_id": (5, None), "skip_special_tokens": ("x", None), "add_special_tokens": ("x", None)},
    **{"use_beam_search": ("x", None), "length_penalty": ("x", None), "thinking_token_budget": ("x",)},
    **{"logit_bias": ([1],), "kv_transfer_params": ("x",), "vllm_xargs": ("x",)},
}
HELD = {"stop": "z" * 41, "max_tokens": 12}
ACCEPTED: tuple[dict[str, Any], ...] = (
    *({name: value} for name, values in _ACCEPTED.items() for value in values),
    *({"stop": ["zzzz"], "min_tokens": 4}, {"prompt_logprobs": 0, **USAGE}, {"echo": True, "logprobs": 1}, HELD),
    *(HELD | more for more in (USAGE, {"include_stop_str_in_output": True, **USAGE})),
)
REFUSED: tuple[dict[str, Any], ...] = (
    *({name: value} for name, values in _REFUSED.items() for value in values),
    *({"prompt_logprobs": 1, "stream": True}, {"stream_options": {"include_usage": True}}),
)


@dataclass(frozen=True, slots=True)
class ApiCase:
    """Request. A `body` of bytes is sent unchanged."""

    name: str
    path: str
    body: Any = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)


def chat(**more: Any) -> dict[str, Any]:
    plain = {"model": "tiny", "messages": HELLO, "max_tokens": 4, "ignore_eos": True, "temperature": 0}
    return {**plain, "chat_template_kwargs": {"enable_thinking": False}, **more}


def text(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "one two three", "max_tokens": 4, "ignore_eos": True, "temperature": 0, **more}


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
    for role, content in (("assistant", None), ("function", None), ("user", "x"), ("assistant", "x")):
        said = [{"role": role, "name": "f", "content": content, "tool_calls": [CALL]}]
        yield ApiCase(f"a call of {role} {content}", CHAT, chat(messages=said))
    yield ApiCase("parts", CHAT, chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]}]))
    yield ApiCase("tools with tool_choice none", CHAT, chat(tools=[TOOL], tool_choice="none"))
    yield ApiCase("options without stream", TEXT, text(stream_options={}))
    for path, make in ((CHAT, chat), (TEXT, text)):
        for fields in ACCEPTED:
            yield ApiCase(f"{path} {json.dumps(fields)}", path, make(**fields))
    for more in ({}, {"logprobs": 1}, USAGE):
        yield ApiCase(f"echo of no tokens {json.dumps(more)}", TEXT, text(echo=True, max_tokens=0, **more))
    for most in (1, 2):  # a repeated id is answered again
        yield ApiCase(f"id {most}", CHAT, chat(), headers=JSON | {"X-Request-Id": "same"})
    for most in (-1, 100):
        yield ApiCase(f"truncated to {most}", TEXT, text(prompt=LONG, truncate_prompt_tokens=most))
    yield ApiCase("top_logprobs", CHAT, chat(logprobs=True, top_logprobs=2))
    for times, more in enumerate(({}, {}, {"prompt_logprobs": 1}, {"echo": True, "logprobs": 1}, {}, USAGE)):
        said = [{"role": "user", "content": BLOCKS}]
        yield ApiCase(f"text with blocks {times}", TEXT, text(prompt=BLOCKS, cache_salt="blocks", **more))
        yield ApiCase(
            f"chat with blocks {times}", CHAT, chat(messages=said, cache_salt="blocks", **more | {"logprobs": None})
        )
    yield ApiCase("tokenize", "/tokenize", {"prompt": "one two"})
    yield ApiCase("tokenize chat", "/tokenize", {"messages": HELLO})
    yield ApiCase("tokenize long text", "/tokenize", {"prompt": LONG})
    yield ApiCase("get /health", "/health", None, "GET", {})
    yield ApiCase("reset", "/reset_prefix_cache", None, "POST", {})


def refused() -> Iterator[ApiCase]:
    """Yield invalid requests."""
    yield from _bad_chats()
    for path, make in ((CHAT, chat), (TEXT, text)):
        for fields in REFUSED:
            yield ApiCase(f"{path} {json.dumps(fields)}", path, make(**fields))
    for more in ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}, {"echo": True, "max_tokens": 0}):
        yield ApiCase(f"chat: {json.dumps(more)}", CHAT, chat(**more))
    texts = ({"logprobs": 21}, {"logprobs": -1}, {"logprobs": "x"}, {"n": None}, {"suffix": ""}, {"suffix": "x"})
    for more in (*texts, {"prompt": None}, {"prompt": ""}, {"prompt": 5}, {"prompt": LONG}):
        yield ApiCase(f"text: {json.dumps(more)[:40]}", TEXT, text(**more))
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
    said: tuple[Any, ...] = (
        *(
            {"content": "x"},
            {"role": "user", "content": 5},
            {"role": "user", "content": None},
            {"role": "user", "content": LONG},
        ),
        *({"role": "user", "content": [part]} for part in ("a", {"text": "a"}, {"type": "weird", "text": "a"})),
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        *(
            {"role": "assistant", "tool_calls": calls}
            for calls in ("x", [5], [CALL | {"id": 5}], [CALL | {"type": "x"}], [{"id": "c"}])
        ),
    )
    bad: tuple[dict[str, Any], ...] = (
        *({"model": "no"}, {"model": 5}, {"max_completion_tokens": MODEL_LENGTH + 1}, {"chat_template_kwargs": "x"}),
        *(
            {"messages": messages}
            for messages in (None, [], "x", [5], *([{"role": "user", "content": "x"}, each] for each in said))
        ),
        {"stream": True, "stream_options": "x"},
        *({"tool_choice": "auto"}, {"tool_choice": "required"}, {"tools": [], "tool_choice": "auto"}, {"tools": "x"}),
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "no"}}},
        *({"tools": [TOOL], "tool_choice": "bogus"}, {"tools": [{**TOOL, "type": "x"}], "tool_choice": "none"}),
        *(
            {"echo": None},
            {"include_reasoning": "x"},
            {"documents": "x"},
            {"reasoning_effort": "x"},
            {"chat_template": "x"},
        ),
        *({"continue_final_message": True}, {"parallel_tool_calls": "x"}),
    )
    for more in bad:
        yield ApiCase(f"chat: {json.dumps(more)[:80]}", CHAT, chat(**more))


_COUNTERS = {
    **{"requests": "request_success_total", "first tokens": "time_to_first_token_seconds_count"},
    **{"prompt": "prompt_tokens_total", "output": "generation_tokens_total", "cached": "prompt_tokens_cached_total"},
    **{"queries": "prefix_cache_queries_total", "steps": "iteration_tokens_total_sum"},
}


def counters(port: int) -> dict[str, float]:
    """Return counters of the page, by the keys of _COUNTERS."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
        lines = [line for line in reply.read().decode().splitlines() if not line.startswith("#")]
    return {
        key: sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{name}{{"))
        for key, name in _COUNTERS.items()
    }


def counted(port: int, case: ApiCase) -> dict[str, Any]:
    """Return the outline of a reply and its usage, and what the counters of the page grew by beside that usage."""
    before = counters(port)
    found = outline(port, case)
    usage = found.pop("usage")
    answered = found["status"] == 200 and case.path in (CHAT, TEXT)
    while True:  # the server counts an answer when it has been sent
        grown = {key: count - before[key] for key, count in counters(port).items()}
        if not answered or grown["requests"]:
            break
    details: dict[str, Any] = (usage or {}).get("prompt_tokens_details") or {}
    if usage:
        prompt, output, cached = usage["prompt_tokens"], usage["completion_tokens"], details["cached_tokens"]
        grown["queries"] = grown["queries"] and grown["queries"] - prompt + 1
        grown["steps"] -= prompt - cached + output
        for key, own in {"prompt": prompt, "output": output, "cached": cached}.items():
            grown[key] -= own
    elif answered:
        grown = {key: grown[key] for key in ("requests", "first tokens", "output")}
    created = details.get("created_cache_tokens")
    stored = None if created is None else cached + created - prompt // BLOCK * BLOCK
    return found | {"grown": grown, "output": (usage or {}).get("completion_tokens"), "stored": stored}


def outline(port: int, case: ApiCase) -> dict[str, Any]:
    """Send a request; return status, content type, finish reasons, keys of the body or of its events, error, and usage."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = case.body if case.body is None or isinstance(case.body, bytes) else json.dumps(case.body)
    connection.request(case.method, case.path, body, dict(case.headers))
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    outline: dict[str, Any] = {"status": reply.status, "type": reply.getheader("content-type"), "usage": None}
    outline["finish"] = re.findall(r'"finish_reason": ?"(\w+)"', text)
    if "event-stream" in str(outline["type"]):
        usages = [json.loads(line[6:]).get("usage") for line in text.split("\n") if line.startswith("data: {")]
        return outline | {"events": _events(text), "usage": usages[-1]}
    document = json.loads(text) if text else None
    outline["usage"] = document.get("usage") if isinstance(document, dict) else None
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
        if key != "engine":
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
