"""Refusals of requests: the text of the server, the keys of the body that it names, and the option to change. No I/O."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from inferload.scenario.schema.endpoints import ENDPOINTS, LIMITS
from inferload.scenario.schema.request import RequestOptions

# Keys of the body that texts name for other reasons: they count only if the server names them as its parameter.
_COMMON = ("model", *(row.context_key for row in ENDPOINTS.values()), "system", "stream", "n", "tools", "stop", "user")
# Names within a value, by the key of the body.
_WITHIN = {"stream_options": ("include_usage", "continuous_usage_stats"), "tool_choice": ("tool choice",)}
# Words after which a text names keys that the server accepts.
_ACCEPTED = re.compile(
    r"expected one of|expected `|\buse\b|instead|did you mean|(?<!not )\ballowed\b|permitted (?:fields|parameters|values)"
    r"|(?<!un)(?<!not )supported (?:fields|parameters|values)|valid (?:fields|parameters|keys)|to drop these",
    re.IGNORECASE,
)
# Characters between two keys of a list, such as `a, b` or `['a', 'b']`.
_BETWEEN = r"['\"`\]]*(?:,\s*|\s+and\s+)(?:and\s+)?['\"`\[]*"
_TEXTS = ("message", "msg", "detail", "error", "error_description", "title", "reason")
_PLACES = ("param", "loc", "field")

_TOOLS = "start the server with tool calls, by the option that it or its documentation names, or choose a workload without tools"
REMEDIES: Mapping[str, str] = {
    "ignore_eos": "--set request.ignore_eos=false; lengths of answers then depend on the model",
    "cache_salt": "--set cache.isolate=none, or reset its cache between runs",
    "tools": _TOOLS,
    "tool_choice": _TOOLS,
    "model": "name another model with --model, or in request.models",
    "messages": "choose a workload or an endpoint whose messages the model takes",
    "store": "--set request.endpoint=chat, or another endpoint",
    **dict.fromkeys(LIMITS, "--set request.max_tokens_field=auto, or set other lengths of answers"),
}

HISTORY_REMEDY = (
    "choose a workload whose history the model takes (of a chat: --set workload.turns=1 or --set workload.history=none), or "
    "start the server with another chat template"
)
STORE_REMEDY = (
    "start the server so that it keeps responses (vLLM: VLLM_ENABLE_RESPONSES_API_STORE=1), or "
    "--set workload.history=live"
)
# Words by which servers name the messages of a history, by what they name.
_OF_HISTORY = re.compile(
    "|".join(
        (
            r"\broles?\b|\bassistant\b|\balternat\w+|\bprefill\b",  # roles and their order
            r"\b(?:conversation|history|multi-?turn)\b",
            r"\b(?:previous|earlier|prece+ding|successive|consecutive)[ _](?:turn|message|user|response)",
            r"\b(?:last|first|final|user|system|all|each) messages?\b|\bpars\w+ messages\b",
            r"(?<![\w-])tool[_ ]?(?:calls?|call_ids?|uses?|results?|messages?|responses?|outputs?)\b",
            r"\bfunction[_ ](?:calls?|responses?|call_output)\b|\bcall_id\b",
            r"\b(?:messages|input)(?:\[|\.|', )\d",  # a place: messages[1], input.2, ('body', 'messages', 1)
            r"'item'|\bitem\[|\binput items?\b|\b(?:input|output)_text\b|\bcontent (?:block|part)s?\b",
            r"chat[_ ]template|\bjinja|\btemplate (?:error|render)",
            r"NoneType|\bitem pairs\b",  # of a template that expects another type of content or arguments
            r"\breasoning(?:_content)?\b|\bthinking\b|signature\b",
        )
    ),
    re.IGNORECASE,
)
# Words of refusals for a reason that the text of any request may have.
_OF_ANY_REQUEST = re.compile(
    r"context (?:length|window|size)|\btokens? (?:limit|budget)|maximum [^.]*tokens|too (?:long|large|many)|rate.?limit"
    r"|\bquota\b|per minute|\bflagged\b|\bpolic(?:y|ies)\b|moderation|\bsafety\b|capacity|overloaded|out of memory"
    r"|timed? ?out|\bloading\b",
    re.IGNORECASE,
)


def text_of(detail: str) -> str:
    """Return the server's text of a refusal for a message: of a JSON body the messages in it, in one line."""
    before, brace, rest = detail.partition("{")
    document = _parsed(brace + rest) if brace else None
    found = list(dict.fromkeys(_messages(document))) if document is not None else []
    text = before + "; ".join(found) if found else detail
    return " ".join(text.split())


def refused_keys(detail: str, sent: Collection[str]) -> tuple[str, ...]:
    """Return the keys of the sent body that a refusal names: those that it gives as its parameter, else those in its text."""
    places = [place for document in _documents(detail) for place in _named_places(document)]
    named = [key for place in places for key in sent if key in place]
    if not named:
        text = text_of(detail)
        named = _mentioned(_ACCEPTED.split(text, maxsplit=1)[0], sent) or _mentioned(text, sent)
    return tuple(dict.fromkeys(named))


def names_an_option(detail: str, sent: Collection[str]) -> bool:
    """Return True if a text names a key that is an option: others, such as messages, occur in any error."""
    return bool(refused_keys(detail, [key for key in sent if key not in _COMMON]))


def names_history(detail: str) -> bool:
    """Return True if a text names messages of the history, their roles, or the template that writes them."""
    text = text_of(detail)
    if _OF_ANY_REQUEST.search(text):
        return False
    places = [place for document in _documents(detail) for place in _named_places(document)]
    contexts = {row.context_key for row in ENDPOINTS.values()}
    deep = any(contexts.intersection(place[:-1]) for place in places)
    return deep or _OF_HISTORY.search(text) is not None


def suggests(detail: str, key: str) -> bool:
    """Return True if a refusal mentions a key, such as one that the server takes instead."""
    return _first(detail, key) < len(detail)


def _mentioned(text: str, sent: Collection[str]) -> list[str]:
    """Return the key of the body that a text mentions first, with those that follow it in one list."""
    found = sorted((at, key) for key in sent if (at := _first(text, key)) < len(text))
    keys = [key for _at, key in found if key not in _COMMON] or [key for _at, key in found]
    names = "|".join(map(_names, sorted(keys, key=len, reverse=True)))
    listed = re.search(rf"(?:{names})(?:{_BETWEEN}(?:{names}))*", text) if keys else None
    return [] if listed is None else [key for key in keys if suggests(listed[0], key)]


def remedy(detail: str, sent: Mapping[str, Any], request: RequestOptions) -> str:
    """Return what to change after a refusal, in one line; "" if the server names nothing that an option controls."""
    return "; ".join(dict.fromkeys(_remedy(key, sent[key], request) for key in refused_keys(detail, sent)))


def _remedy(key: str, value: Any, request: RequestOptions) -> str:
    if key in request.extra_body:
        return f"--set request.extra_body.{key}=VALUE with another value, or remove it from the scenario"
    if key == "store" and value:  # of history: server
        return STORE_REMEDY
    if key == "stream_options":
        return "--set request.continuous_usage=false" if request.continuous_usage else "--set request.usage=false"
    return REMEDIES.get(key, f"remove {key} from the workload")


def _first(text: str, key: str) -> int:
    """Return the position of the first mention of a key as a word, or of a name within it; the text's length without one."""
    found = re.search(_names(key), text)
    return len(text) if found is None else found.start()


def _names(key: str) -> str:
    return rf"(?<![\w-])(?:{'|'.join(map(re.escape, (key, *_WITHIN.get(key, ()))))})(?![\w-])"


def _named_places(document: Any) -> Iterator[list[str]]:
    """Yield the parameter names of an error document, each as its path: `stream_options.include_usage` has two parts."""
    if isinstance(document, list):
        for item in document:
            yield from _named_places(item)
    if not isinstance(document, dict):
        return
    for key, value in document.items():
        if key in _PLACES and isinstance(value, str):
            yield re.split(r"[.\[\]/]+", value)
        elif key in _PLACES and isinstance(value, list):
            yield [part for part in value if isinstance(part, str)]
        elif key != "input":  # the refused value
            yield from _named_places(value)


def _documents(detail: str) -> Iterator[Any]:
    """Yield the JSON document of a refusal, and those that its texts quote: a gateway passes on the text of its provider."""
    document = _parsed(detail[detail.find("{") :]) if "{" in detail else None
    if document is None:
        return
    yield document
    for text in _strings(document):
        if "{" in text:
            yield from _documents(text)


def _strings(document: Any) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict | list):
        for item in document.values() if isinstance(document, dict) else document:
            yield from _strings(item)


def _messages(document: Any) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, list):
        for item in document:
            yield from _messages(item)
    elif isinstance(document, dict):
        where = document.get("loc")
        prefix = ".".join(map(str, where)) + ": " if isinstance(where, list) and where else ""
        for key in _TEXTS:
            yield from (prefix + text for text in _messages(document.get(key)))


def _parsed(text: str) -> Any:
    """Return the JSON document at the beginning of a text; None if there is none."""
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None
