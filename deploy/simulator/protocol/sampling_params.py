"""Sampling parameters and output options of a completion request, with vLLM's checks. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import json_fields
from .errors import ApiError, invalid
from .model import Model
from .tools import Tools, parse_tools

_SALT_LENGTH = 128
_INT64, _LOGPROBS = 2**63 - 1, 20
# Reader, least and greatest value that vLLM accepts; of those in _ABOVE the least itself is refused.
_RANGES: Mapping[str, tuple[Any, float, float]] = {
    "temperature": (json_fields.number, 0, 2),
    "top_p": (json_fields.number, 0, 1),
    "min_p": (json_fields.number, 0, 1),
    "presence_penalty": (json_fields.number, -2, 2),
    "frequency_penalty": (json_fields.number, -2, 2),
    "repetition_penalty": (json_fields.number, 0, math.inf),
    "n": (json_fields.integer, 1, math.inf),
    "top_k": (json_fields.integer, -1, math.inf),
    "min_tokens": (json_fields.integer, 0, math.inf),
    "prompt_logprobs": (json_fields.integer, 0, _LOGPROBS),
    "truncate_prompt_tokens": (json_fields.integer, -1, math.inf),
    "priority": (json_fields.integer, -_INT64 - 1, _INT64),
    "seed": (json_fields.integer, -_INT64 - 1, _INT64),
    "length_penalty": (json_fields.number, -math.inf, math.inf),
    "thinking_token_budget": (json_fields.integer, -1, math.inf),
    "stream_interval": (json_fields.integer, 1, math.inf),
}
_ABOVE = ("top_p", "repetition_penalty")
# Fields without an effect by the type that vLLM requires: of all completions, and of chats.
_TYPES: Mapping[Any, str] = {
    json_fields.flag: "add_special_tokens echo skip_special_tokens spaces_between_special_tokens use_beam_search",
    json_fields.text: "request_id session_id user",
    json_fields.texts: "bad_words",
    json_fields.integers: "allowed_token_ids stop_token_ids",
    json_fields.mapping: "kv_transfer_params logit_bias mm_processor_kwargs vllm_xargs",
}
_CHAT_TYPES: Mapping[Any, str] = {
    json_fields.flag: "include_reasoning parallel_tool_calls",
    json_fields.items: "documents",
}
_NEVER_NULL = """add_special_tokens bad_words ignore_eos include_stop_str_in_output length_penalty min_tokens priority
request_id skip_special_tokens spaces_between_special_tokens use_beam_search"""
_CHAT_NEVER_NULL = "add_generation_prompt continue_final_message echo include_reasoning"
_SIDES, _EFFORTS = ("left", "right"), ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_FORMATS = ("text", "json_object", "json_schema", "structural_tag")
_CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")  # of structured_outputs
_MOST_STOPS = 4


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters that change the answer. Others, such as `temperature`, are checked and have no effect."""

    tools: Tools
    seed: int | None
    token_limit: tuple[str, int] | None  # name and value of max_tokens or max_completion_tokens
    ignore_eos: bool
    min_tokens: int
    reasons: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    token_ids: bool
    cache_salt: str
    reads_cache: bool  # false if the logprobs of the prompt are requested
    held: int  # characters of a stream that are held back, as they may begin a stop string
    truncate: int | None  # greatest number of prompt tokens; -1: those that leave room for one output token
    truncate_end: bool
    interval: int  # least tokens of an event after the first


def parse_sampling_params(document: Mapping[str, Any], chat: bool, model: Model) -> SamplingParams:
    """Parse a request except its prompt. Raise ApiError for the first invalid field."""
    stream, options = json_fields.flag(document, "stream"), json_fields.mapping(document, "stream_options") or {}
    if options and not stream:
        raise ApiError("stream_options: only with stream", param="stream_options")
    numbers = _check_numbers(document, chat)
    _check_types(document, chat)
    if (numbers["n"] or 1) > 1:
        raise ApiError("n: the simulator gives one answer per request", param="n")
    usage, echo = json_fields.flag(options, "include_usage"), json_fields.flag(document, "echo")
    return SamplingParams(
        tools=parse_tools(document) if chat else Tools(),
        seed=numbers["seed"],
        token_limit=_token_limit(document, chat, model),
        ignore_eos=json_fields.flag(document, "ignore_eos"),
        min_tokens=numbers["min_tokens"] or 0,
        reasons=chat and _reasons(document, model),
        stream=stream,
        include_usage=usage,
        continuous_usage=usage and json_fields.flag(options, "continuous_usage_stats"),
        token_ids=json_fields.flag(document, "return_token_ids"),
        cache_salt=_salt(document),
        reads_cache=numbers["prompt_logprobs"] is None
        and not (echo and (chat or document.get("logprobs") is not None)),
        held=_held(document),
        truncate=numbers["truncate_prompt_tokens"],
        truncate_end=document.get("truncation_side") == "right",
        interval=numbers["stream_interval"] or 1,
    )


def _check_numbers(document: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    """Return the numbers; None for those that are absent. Raise ApiError for one out of its range."""
    for name in f"{_NEVER_NULL} {_CHAT_NEVER_NULL if chat else 'n'}".split():
        if name in document and document[name] is None:
            raise invalid(name, "needs a value")
    logprobs, numbers = "top_logprobs" if chat else "logprobs", {}
    for name, (read, lower, upper) in {**_RANGES, logprobs: (json_fields.integer, 0, _LOGPROBS)}.items():
        numbers[name] = value = read(document, name)
        if value is not None and not (lower <= value <= upper and (value > lower or name not in _ABOVE)):
            raise ApiError(f"{name}: {value} is not in the range of {lower} to {upper}", param=name)
    if chat and numbers[logprobs] and not json_fields.flag(document, "logprobs"):
        raise ApiError("top_logprobs: only with logprobs", param="top_logprobs")
    if numbers["prompt_logprobs"] and json_fields.flag(document, "stream"):
        raise ApiError("prompt_logprobs: not in a stream", param="prompt_logprobs")
    return numbers


def _check_types(document: Mapping[str, Any], chat: bool) -> None:
    for types in (_TYPES, _CHAT_TYPES) if chat else (_TYPES,):
        for read, names in types.items():
            for name in names.split():
                read(document, name)
    for name, words in (("truncation_side", _SIDES), *((("reasoning_effort", _EFFORTS),) if chat else ())):
        if document.get(name) not in (None, *words):
            raise invalid(name, f"needs one of {', '.join(words)}")
    for name in ("chat_template" if chat else "suffix", "use_beam_search"):
        if document.get(name) is not None and (name != "use_beam_search" or json_fields.flag(document, name)):
            raise ApiError(f"{name}: not supported", param=name)
    form = json_fields.mapping(document, "response_format")
    schema = form and form.get("type") == "json_schema" and not json_fields.mapping(form, "json_schema")
    if form is not None and (schema or form.get("type") not in _FORMATS):
        raise invalid("response_format", f"needs a type, one of {', '.join(_FORMATS)}, and json_schema its schema")
    outputs = json_fields.mapping(document, "structured_outputs")
    if outputs is not None and sum(bool(outputs.get(name)) for name in _CONSTRAINTS) != 1:
        raise ApiError(f"structured_outputs: needs one of {', '.join(_CONSTRAINTS)}", param="structured_outputs")
    continued = json_fields.flag(document, "continue_final_message")
    if chat and continued and json_fields.flag(document, "add_generation_prompt", True):
        raise ApiError("continue_final_message: only with add_generation_prompt false", param="continue_final_message")


def _held(document: Mapping[str, Any]) -> int:
    stop = document.get("stop")
    stops = json_fields.texts({"stop": [stop] if isinstance(stop, str) else stop}, "stop") or []
    if len(stops) > _MOST_STOPS:
        raise invalid("stop", f"at most {_MOST_STOPS} strings")
    included = json_fields.flag(document, "include_stop_str_in_output")
    return 0 if included else max((len(each) - 1 for each in stops), default=0)


def _token_limit(document: Mapping[str, Any], chat: bool, model: Model) -> tuple[str, int] | None:
    for name in ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",):
        value = json_fields.integer(document, name)
        if value is None:
            continue
        if value == 0 and not chat and json_fields.flag(document, "echo"):
            value = 1  # an answer has at least one token, which only its text leaves out
        if value < 1:
            raise ApiError(f"{name}: at least 1, not {value}", param="max_tokens")
        if value > model.max_model_len:
            raise ApiError(f"{name}: the model length is {model.max_model_len}, not {value}", param=name)
        return name, value
    return None


def _reasons(document: Mapping[str, Any], model: Model) -> bool:
    thinking = (json_fields.mapping(document, "chat_template_kwargs") or {}).get("enable_thinking")
    if isinstance(thinking, bool):
        return model.reasoning and thinking
    effort = document.get("reasoning_effort")
    return model.reasoning and (model.thinking if effort is None else effort != "none")


def _salt(document: Mapping[str, Any]) -> str:
    salt = document.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str) or not 0 < len(salt) <= _SALT_LENGTH or set(salt) & set("@/\\\0"):
        raise ApiError("cache_salt: 1 to 128 characters without @, /, backslash and NUL", param="cache_salt")
    return salt
