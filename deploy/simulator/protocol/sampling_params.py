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
_MOST_LOGPROBS = 20
_MOST_CHOICES = 64
_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Requested fields beside the text. `logprobs` is the number of alternatives, or None."""

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
    stop_shown: bool  # a stop string stays at the end of the text
    seed: int | None
    wanted: tuple[str, int] | None  # most tokens, and the name that they were given under
    n: int | None
    form: Any  # the JSON schema that the answer has to fit; None: words
    ignore_eos: bool
    min_tokens: int
    thinks: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    cache_salt: str


def parse_sampling_params(document: Mapping[str, Any], chat: bool, model: Model) -> SamplingParams:
    """Parse a request without its prompts. ApiError names the first field with a wrong type."""
    salt, options = _salt(document), _options(document)
    show, tools = _show(document, chat), parse_tools(document) if chat else Tools()
    names = ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",)
    return SamplingParams(
        show=show,
        tools=tools,
        stops=_stops(document),
        seed=json_fields.integer(document, "seed", -_INT64, _INT64 - 1),
        wanted=next(
            ((name, value) for name in names if (value := json_fields.integer(document, name)) is not None), None
        ),
        n=json_fields.integer(document, "n"),
        form=_form(document),
        ignore_eos=json_fields.flag(document, "ignore_eos"),
        min_tokens=json_fields.integer(document, "min_tokens") or 0,
        stop_shown=json_fields.flag(document, "include_stop_str_in_output"),
        stream=json_fields.flag(document, "stream"),
        thinks=chat and _thinks(document, model),
        include_usage=(usage := json_fields.flag(options, "include_usage")),
        continuous_usage=usage and json_fields.flag(options, "continuous_usage_stats"),
        cache_salt=salt,
    )


def check_sampling(document: Mapping[str, Any], params: SamplingParams) -> None:
    """Raise ApiError for values out of range."""
    n, least, wanted = params.n, params.min_tokens, params.wanted
    if n is not None and not 1 <= n <= _MOST_CHOICES:
        raise ApiError(f"n: 1 to {_MOST_CHOICES}, not {n}")
    if wanted is not None and wanted[1] < 1:
        raise ApiError(f"{wanted[0]}: at least 1, not {wanted[1]}", param="max_tokens")
    if least < 0:
        raise ApiError(f"min_tokens: 0 or more, not {least}")
    json_fields.check_sense(document)
    bias = json_fields.mapping(document, "logit_bias") or {}
    if any(not key.isdigit() or int(key) >= ID_LIMIT for key in bias):
        raise ApiError("logit_bias: names a token that the model does not have", param="logit_bias")


def _thinks(document: Mapping[str, Any], model: Model) -> bool:
    given = json_fields.mapping(document, "chat_template_kwargs") or {}
    if isinstance(given.get("enable_thinking"), bool):
        return model.reasoning and bool(given["enable_thinking"])
    effort = document.get("reasoning_effort")
    return model.reasoning and (model.thinking if effort is None else effort != "none")


def _options(document: Mapping[str, Any]) -> Mapping[str, Any]:
    options = document.get("stream_options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise invalid("stream_options", "needs an object")
    if options and not json_fields.flag(document, "stream"):
        raise ApiError("stream_options: only together with stream", param="stream_options")
    return options


def _show(document: Mapping[str, Any], chat: bool) -> OutputOptions:
    ids = json_fields.flag(document, "return_token_ids")
    if not chat:
        wanted = json_fields.integer(document, "logprobs")
        if wanted is not None and wanted < -1:
            raise ApiError(f"logprobs: 0 or more, or -1, not {wanted}", param="logprobs")
        return OutputOptions(_alternatives(wanted), ids, echo=json_fields.flag(document, "echo"))
    top, on = json_fields.integer(document, "top_logprobs") or 0, json_fields.flag(document, "logprobs")
    if top and not on:
        raise ApiError("top_logprobs: only together with logprobs", param="top_logprobs")
    return OutputOptions(_alternatives(top) if on else None, ids, json_fields.flag(document, "include_reasoning", True))


def _alternatives(wanted: int | None) -> int | None:
    if wanted is not None and wanted > _MOST_LOGPROBS:
        raise ApiError(f"logprobs: up to {_MOST_LOGPROBS}, not {wanted}", param="logprobs")
    return wanted


def _form(document: Mapping[str, Any]) -> Any:
    """JSON schema of the answer; None if it is free text."""
    wanted = json_fields.mapping(document, "response_format") or {}
    if wanted.get("type") == "json_schema":
        inner = wanted.get("json_schema")
        if not isinstance(inner, dict):
            raise ApiError("response_format: json_schema needs a schema", param="response_format")
        return inner.get("schema") or {"type": "object"}
    if wanted.get("type") == "json_object":
        return {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    return (json_fields.mapping(document, "structured_outputs") or {}).get("json")


def _stops(document: Mapping[str, Any]) -> tuple[str, ...]:
    stop = document.get("stop")
    if stop is None:
        return ()
    listed = [stop] if isinstance(stop, str) else stop
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise invalid("stop", "needs a string or a list of strings")
    if "" in listed:
        raise ApiError("stop: an empty string ends nothing")
    return tuple(listed)


def _salt(document: Mapping[str, Any]) -> str:
    salt = document.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str) or not salt or len(salt) > _SALT_LENGTH or any(each in "@/\\\0" for each in salt):
        raise ApiError("cache_salt: 1 to 128 characters without @, /, backslash and NUL", param="cache_salt")
    return salt
