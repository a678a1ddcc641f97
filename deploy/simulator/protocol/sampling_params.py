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
}
_ABOVE = ("top_p", "repetition_penalty")
_NEVER_NULL = ("ignore_eos", "min_tokens", "priority", "include_stop_str_in_output", "skip_special_tokens")


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


def parse_sampling_params(document: Mapping[str, Any], chat: bool, model: Model) -> SamplingParams:
    """Parse a request except its prompt. Raise ApiError for the first invalid field."""
    stream, options = json_fields.flag(document, "stream"), json_fields.mapping(document, "stream_options") or {}
    if options and not stream:
        raise ApiError("stream_options: only with stream", param="stream_options")
    numbers = _check_numbers(document, chat)
    if (numbers["n"] or 1) > 1:
        raise ApiError("n: the simulator gives one answer per request", param="n")
    usage = json_fields.flag(options, "include_usage")
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
        reads_cache=numbers["prompt_logprobs"] is None and not _echoes_logprobs(document, chat),
        held=_held(document),
        truncate=numbers["truncate_prompt_tokens"],
    )


def _check_numbers(document: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    """Return the numbers; None for those that are absent. Raise ApiError for one out of its range."""
    for name in _NEVER_NULL:
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


def _echoes_logprobs(document: Mapping[str, Any], chat: bool) -> bool:
    return json_fields.flag(document, "echo") and (chat or document.get("logprobs") is not None)


def _held(document: Mapping[str, Any]) -> int:
    stop = document.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
        raise invalid("stop", "needs a string or a list of strings")
    if "" in stops:
        raise ApiError("stop: an empty string", param="stop")
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
    if (
        not isinstance(salt, str)
        or not 0 < len(salt) <= _SALT_LENGTH
        or any(character in "@/\\\0" for character in salt)
    ):
        raise ApiError("cache_salt: 1 to 128 characters without @, /, backslash and NUL", param="cache_salt")
    return salt
