"""Sampling parameters and output options of a completion request, with vLLM's checks. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import json_fields
from .errors import ApiError, invalid
from .model import Model
from .text import ID_LIMIT
from .tools import Tools, parse_tools

_SALT_LENGTH = 128
_MAX_LOGPROBS = 20
_MAX_CHOICES = 64
_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Requested fields besides the text. `logprobs` is the number of alternatives, or None."""

    logprobs: int | None = None
    token_ids: bool = False
    reasoning: bool = True
    echo: bool = False


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of all answers to one request."""

    show: OutputOptions
    tools: Tools
    stops: tuple[str, ...]
    include_stop: bool  # include_stop_str_in_output
    seed: int | None
    token_limit: tuple[str, int] | None  # name and value of max_tokens or max_completion_tokens
    n: int | None
    schema: Any  # JSON schema of the answer; None: words
    ignore_eos: bool
    min_tokens: int
    reasons: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    cache_salt: str


def parse_sampling_params(document: Mapping[str, Any], chat: bool, model: Model) -> SamplingParams:
    """Parse a request except its prompts. Raise ApiError for the first field with a wrong type."""
    salt, options = _salt(document), _options(document)
    show, tools = _show(document, chat), parse_tools(document) if chat else Tools()
    names = ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",)
    return SamplingParams(
        show=show,
        tools=tools,
        stops=_stops(document),
        seed=json_fields.integer(document, "seed", -_INT64, _INT64 - 1),
        token_limit=next(
            ((name, value) for name in names if (value := json_fields.integer(document, name)) is not None), None
        ),
        n=json_fields.integer(document, "n"),
        schema=_schema(document),
        ignore_eos=json_fields.flag(document, "ignore_eos"),
        min_tokens=json_fields.integer(document, "min_tokens") or 0,
        include_stop=json_fields.flag(document, "include_stop_str_in_output"),
        stream=json_fields.flag(document, "stream"),
        reasons=chat and _reasons(document, model),
        include_usage=(usage := json_fields.flag(options, "include_usage")),
        continuous_usage=usage and json_fields.flag(options, "continuous_usage_stats"),
        cache_salt=salt,
    )


def check_sampling(document: Mapping[str, Any], params: SamplingParams) -> None:
    """Raise ApiError for values out of range."""
    n, min_tokens, token_limit = params.n, params.min_tokens, params.token_limit
    if n is not None and not 1 <= n <= _MAX_CHOICES:
        raise ApiError(f"n: 1 to {_MAX_CHOICES}, not {n}")
    if token_limit is not None and token_limit[1] < 1:
        raise ApiError(f"{token_limit[0]}: at least 1, not {token_limit[1]}", param="max_tokens")
    if min_tokens < 0:
        raise ApiError(f"min_tokens: 0 or more, not {min_tokens}")
    json_fields.check_ranges(document)
    bias = json_fields.mapping(document, "logit_bias") or {}
    if any(not key.isdigit() or int(key) >= ID_LIMIT for key in bias):
        raise ApiError("logit_bias: unknown token id", param="logit_bias")


def _reasons(document: Mapping[str, Any], model: Model) -> bool:
    template_options = json_fields.mapping(document, "chat_template_kwargs") or {}
    if isinstance(template_options.get("enable_thinking"), bool):
        return model.reasoning and bool(template_options["enable_thinking"])
    effort = document.get("reasoning_effort")
    return model.reasoning and (model.thinking if effort is None else effort != "none")


def _options(document: Mapping[str, Any]) -> Mapping[str, Any]:
    options = document.get("stream_options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise invalid("stream_options", "needs an object")
    if options and not json_fields.flag(document, "stream"):
        raise ApiError("stream_options: only with stream", param="stream_options")
    return options


def _show(document: Mapping[str, Any], chat: bool) -> OutputOptions:
    token_ids = json_fields.flag(document, "return_token_ids")
    if not chat:
        count = json_fields.integer(document, "logprobs")
        if count is not None and count < -1:
            raise ApiError(f"logprobs: 0 or more, or -1, not {count}", param="logprobs")
        return OutputOptions(_alternatives(count), token_ids, echo=json_fields.flag(document, "echo"))
    alternatives, enabled = json_fields.integer(document, "top_logprobs") or 0, json_fields.flag(document, "logprobs")
    if alternatives and not enabled:
        raise ApiError("top_logprobs: only with logprobs", param="top_logprobs")
    return OutputOptions(
        _alternatives(alternatives) if enabled else None,
        token_ids,
        json_fields.flag(document, "include_reasoning", True),
    )


def _alternatives(count: int | None) -> int | None:
    if count is not None and count > _MAX_LOGPROBS:
        raise ApiError(f"logprobs: up to {_MAX_LOGPROBS}, not {count}", param="logprobs")
    return count


def _schema(document: Mapping[str, Any]) -> Any:
    """JSON schema of the answer; None if it is free text."""
    response_format = json_fields.mapping(document, "response_format") or {}
    if response_format.get("type") == "json_schema":
        inner = response_format.get("json_schema")
        if not isinstance(inner, dict):
            raise ApiError("response_format: json_schema needs a schema", param="response_format")
        return inner.get("schema") or {"type": "object"}
    if response_format.get("type") == "json_object":
        return {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    return (json_fields.mapping(document, "structured_outputs") or {}).get("json")


def _stops(document: Mapping[str, Any]) -> tuple[str, ...]:
    stop = document.get("stop")
    if stop is None:
        return ()
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(item, str) for item in stops):
        raise invalid("stop", "needs a string or a list of strings")
    if "" in stops:
        raise ApiError("stop: empty string; remove it")
    return tuple(stops)


def _salt(document: Mapping[str, Any]) -> str:
    salt = document.get("cache_salt")
    if salt is None:
        return ""
    if (
        not isinstance(salt, str)
        or not salt
        or len(salt) > _SALT_LENGTH
        or any(character in "@/\\\0" for character in salt)
    ):
        raise ApiError("cache_salt: 1 to 128 characters without @, /, backslash and NUL", param="cache_salt")
    return salt
