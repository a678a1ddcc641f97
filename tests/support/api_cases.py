"""Requests that vLLM and the simulator have to answer alike, and what is compared of an answer."""

import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

CHAT, TEXT, RESPONSE, MESSAGE = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
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
class Case:
    """One request. `body` bytes are sent as they are."""

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


def response(**more: Any) -> dict[str, Any]:
    plain = {"model": "tiny", "input": "hello", "max_output_tokens": 5, "ignore_eos": True}
    return {**plain, "chat_template_kwargs": {"enable_thinking": False}, **more}


def message(**more: Any) -> dict[str, Any]:
    plain = {"model": "tiny", "messages": HELLO, "max_tokens": 5}
    return {**plain, "chat_template_kwargs": {"enable_thinking": False}, **more}


def answered() -> Iterator[Case]:
    """Requests that are answered."""
    for name, more in {"whole": {}, "stream": STREAM, "usage": USAGE, "running": RUNNING}.items():
        yield Case(f"chat {name}", CHAT, chat(**more))
        yield Case(f"text {name}", TEXT, text(**more))
        yield Case(f"chat two {name}", CHAT, chat(n=2, **more))
        yield Case(f"text two {name}", TEXT, text(n=2, **more))
        yield Case(f"texts {name}", TEXT, text(prompt=["a b", "c d e"], **more))
    yield Case("chat logprobs", CHAT, chat(logprobs=True, top_logprobs=2, max_tokens=2))
    yield Case("chat ids", CHAT, chat(return_token_ids=True))
    yield Case("chat ids stream", CHAT, chat(return_token_ids=True, **USAGE))
    yield Case("text ids", TEXT, text(return_token_ids=True))
    yield Case("text ids stream", TEXT, text(return_token_ids=True, **USAGE))
    yield Case("text of ids", TEXT, text(prompt=[5, 6, 7]))
    yield Case("text echo", TEXT, text(echo=True))
    yield Case("thought", CHAT, chat(max_tokens=2, chat_template_kwargs={}))
    yield Case("no more than fits", TEXT, text(prompt=[5] * (MODEL_LENGTH - 2)))
    yield Case("numbers as text", CHAT, chat(max_tokens="4"))
    yield Case("unknown fields", CHAT, chat(no_such_field=1))
    yield Case("a role of its own", CHAT, chat(messages=[{"role": "alien", "content": "x"}]))
    yield Case("no content", CHAT, chat(messages=[{"role": "user"}]))
    yield Case("an alias", CHAT, chat(model="alias"))
    yield Case("no model", CHAT, chat(model=None))
    yield Case("parts", CHAT, chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]}]))
    yield Case("tools that are not called", CHAT, chat(tools=[TOOL], tool_choice="none"))
    yield Case("options without stream", TEXT, text(stream_options={}))
    yield Case("response", RESPONSE, response())
    yield Case("response stream", RESPONSE, response(stream=True))
    yield Case("message", MESSAGE, message())
    yield Case("message stream", MESSAGE, message(stream=True))
    yield Case("message with system", MESSAGE, message(system="be kind"))
    yield Case("count", "/v1/messages/count_tokens", {"model": "tiny", "messages": HELLO})
    yield Case("tokens", "/tokenize", {"prompt": "one two"})
    yield Case("tokens of a chat", "/tokenize", {"messages": HELLO})
    yield Case("tokens in words", "/tokenize", {"model": "tiny", "prompt": "one two", "return_token_strs": True})
    yield Case("more tokens than the model takes", "/tokenize", {"prompt": LONG})
    yield Case("text of tokens", "/detokenize", {"tokens": [5, 6]})
    for path in ("/health", "/ping", "/is_sleeping", "/is_paused", "/load", "/kv_event_sources"):
        yield Case(f"get {path}", path, None, "GET", {})
    yield Case("reset", "/reset_prefix_cache", None, "POST", {})


def refused() -> Iterator[Case]:
    """Requests that are refused."""
    yield from _bad_chats()
    for name, more in {
        "no prompt": {"prompt": None},
        "empty": {"prompt": ""},
        "no prompts": {"prompt": []},
        "a number": {"prompt": 5},
        "mixed": {"prompt": ["a", 5]},
        "an empty one": {"prompt": ["a b", ""]},
        "a negative id": {"prompt": [-5]},
        "an id too high": {"prompt": [5, 10**12]},
        "too long": {"prompt": LONG},
        "ids too long": {"prompt": [5] * (MODEL_LENGTH + 1)},
        "just too long": {"prompt": [5] * MODEL_LENGTH},
        "max_tokens": {"max_tokens": MODEL_LENGTH + 1},
        "none": {"max_tokens": 0},
        "logprobs": {"logprobs": 50},
        "negative logprobs": {"logprobs": -5},
        "suffix": {"suffix": "x"},
    }.items():
        yield Case(f"text: {name}", TEXT, text(**more))
    for name, raw in {"cut": b"{", "comma": b'{"model": "tiny", }', "": b"", "list": b"[1]", "null": b"null"}.items():
        yield Case(f"no JSON: {name}", CHAT, raw)
    yield Case("no UTF-8", CHAT, b'\xff\xfe{"a"')
    yield Case("another type", CHAT, json.dumps(chat()).encode(), headers={"Content-Type": "text/plain"})
    yield Case("no type", CHAT, json.dumps(chat()).encode(), headers={})
    yield Case("response: no input", RESPONSE, {"model": "tiny"})
    yield Case("response: a number", RESPONSE, {"model": "tiny", "input": 5})
    yield Case("response: another model", RESPONSE, response(model="no"))
    yield Case("response: too long", RESPONSE, response(input=LONG))
    yield Case("response: in the background", RESPONSE, response(background=True))
    yield Case("response: one before", RESPONSE, response(previous_response_id="resp_no"))
    yield Case("response: which", "/v1/responses/resp_no", None, "GET", {})
    yield Case("message: no max_tokens", MESSAGE, {"model": "tiny", "messages": HELLO})
    yield Case("message: another model", MESSAGE, message(model="no"))
    yield Case("message: too long", MESSAGE, message(messages=[{"role": "user", "content": LONG}]))
    yield Case("tokens: another model", "/tokenize", {"model": "no", "prompt": "x"})
    yield Case("tokens: of nothing", "/tokenize", {})
    yield Case("tokens: of a number", "/tokenize", {"prompt": 5})
    yield Case("tokens: no JSON", "/tokenize", b"{")
    yield Case("detokenize: words", "/detokenize", {"tokens": ["x"]})
    yield Case("detokenize: nothing", "/detokenize", {})
    for method, path in (("GET", "/nowhere"), ("GET", CHAT), ("POST", "/health"), ("DELETE", "/v1/models")):
        yield Case(f"{method} {path}", path, None, method, {})


def _bad_chats() -> Iterator[Case]:
    message = {"role": "user", "content": "x"}
    bad: dict[str, dict[str, Any]] = {
        "another model": {"model": "no"},
        "a model by number": {"model": 5},
        "no messages": {"messages": None},
        "empty": {"messages": []},
        "a text": {"messages": "x"},
        "no role": {"messages": [{"content": "x"}]},
        "content by number": {"messages": [{"role": "user", "content": 5}]},
        "too long": {"messages": [{"role": "user", "content": LONG}]},
        "none": {"max_tokens": 0},
        "less than none": {"max_tokens": -1},
        "words": {"max_tokens": "x"},
        "a half": {"max_tokens": 1.5},
        "too many": {"max_tokens": MODEL_LENGTH + 1},
        "too many to complete": {"max_completion_tokens": MODEL_LENGTH + 1},
        "cold": {"temperature": -1},
        "hot": {"temperature": "hot"},
        "top_p": {"top_p": 2},
        "top_k": {"top_k": -5},
        "penalty": {"presence_penalty": 5},
        "no choice": {"n": 0},
        "choices in words": {"n": "x"},
        "perhaps a stream": {"stream": "maybe"},
        "options": {"stream_options": {"include_usage": True}},
        "options in words": {"stream": True, "stream_options": "x"},
        "no salt": {"cache_salt": ""},
        "salt by number": {"cache_salt": 5},
        "salt with signs": {"cache_salt": "a@b/c"},
        "much salt": {"cache_salt": "a" * 300},
        "top_logprobs alone": {"top_logprobs": 3},
        "many logprobs": {"logprobs": True, "top_logprobs": 50},
        "no tools": {"tool_choice": "auto"},
        "tools required": {"tool_choice": "required"},
        "another tool": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "no"}}},
        "another choice": {"tools": [TOOL], "tool_choice": "bogus"},
        "half a tool": {"tools": [{"type": "function"}]},
        "an empty list of tools": {"tools": [], "tool_choice": "auto"},
        "tools in words": {"tools": "x"},
        "stop by number": {"stop": 5},
        "stop at nothing": {"stop": ""},
        "more at least": {"min_tokens": 10},
        "less than nothing": {"min_tokens": -1},
        "seed": {"seed": "x"},
        "a great seed": {"seed": 2**70},
        "a schema without one": {"response_format": {"type": "json_schema"}},
        "a token that is not": {"logit_bias": {str(10**12): 1}},
        "to ignore perhaps": {"ignore_eos": "perhaps"},
        "template": {"chat_template_kwargs": "x"},
        "a part that is not": {"messages": [{"role": "user", "content": [{"type": "weird", "text": "a"}]}]},
        "a picture": {
            "messages": [message, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
        },
    }
    for name, more in bad.items():
        yield Case(f"chat: {name}", CHAT, chat(**more))


def outline(port: int, case: Case) -> dict[str, Any]:
    """What is compared of an answer: status, headers, the names in its body, and an error's type, param and code."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = case.body if case.body is None or isinstance(case.body, bytes) else json.dumps(case.body)
    connection.request(case.method, case.path, body, dict(case.headers))
    reply = connection.getresponse()
    text = reply.read().decode()
    headers = {name.lower() for name, _value in reply.getheaders()} - {"date", "server", "vary"}
    connection.close()
    found: dict[str, Any] = {
        "status": reply.status,
        "type": reply.getheader("content-type"),
        "headers": sorted(headers),
    }
    if "event-stream" in str(found["type"]):
        return found | {"events": _events(text)}
    document = json.loads(text) if text else None
    if reply.status >= 400 and isinstance(document, dict) and isinstance(document.get("error"), dict):
        found["error"] = {key: value for key, value in document["error"].items() if key != "message"}
    return found | {"names": _names(document)}


def _events(text: str) -> list[Any]:
    """The kinds of events in order, repetitions left out."""
    kinds: list[Any] = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        data = lines.get("data", "")
        kind = [lines.get("event"), _names(json.loads(data)) if data.startswith("{") else data]
        if kind not in kinds:
            kinds.append(kind)
    return kinds


def _names(value: Any, place: str = "") -> list[str]:
    """Every key by its path; ours, which says that it is the simulator, is left out."""
    if isinstance(value, list):
        return sorted({name for each in value for name in _names(each, f"{place}[]")})
    if not isinstance(value, dict):
        return []
    names = []
    for key, inner in value.items():
        if key != "engine":
            names += [f"{place}.{key}", *_names(inner, f"{place}.{key}")]
    return sorted(names)
