"""Sampling parameters and output options of a completion request, with vLLM's checks. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import json_fields
from .errors import ApiError
from .model import Model
from .tools import Tools, parse_tools

_SALT_LENGTH = 128


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters that change the answer. Others, such as `temperature` and `stop`, have no effect."""

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


def parse_sampling_params(document: Mapping[str, Any], chat: bool, model: Model) -> SamplingParams:
    """Parse a request except its prompt. Raise ApiError for the first invalid field."""
    stream, options = json_fields.flag(document, "stream"), json_fields.mapping(document, "stream_options") or {}
    if options and not stream:
        raise ApiError("stream_options: only with stream", param="stream_options")
    if json_fields.integer(document, "n") not in (None, 1):
        raise ApiError("n: the simulator gives one answer per request", param="n")
    usage = json_fields.flag(options, "include_usage")
    return SamplingParams(
        tools=parse_tools(document) if chat else Tools(),
        seed=json_fields.integer(document, "seed"),
        token_limit=_token_limit(document, chat, model),
        ignore_eos=json_fields.flag(document, "ignore_eos"),
        min_tokens=json_fields.integer(document, "min_tokens") or 0,
        reasons=chat and _reasons(document, model),
        stream=stream,
        include_usage=usage,
        continuous_usage=usage and json_fields.flag(options, "continuous_usage_stats"),
        token_ids=json_fields.flag(document, "return_token_ids"),
        cache_salt=_salt(document),
    )


def _token_limit(document: Mapping[str, Any], chat: bool, model: Model) -> tuple[str, int] | None:
    for name in ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",):
        value = json_fields.integer(document, name)
        if value is None:
            continue
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
