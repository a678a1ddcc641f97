"""Checks of the arguments of a locustfile task's call: names, numbers, headers and the context of each endpoint."""

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from inferload.base.errors import UsageError
from inferload.client.turn_record import MOST_MAX_TOKENS
from inferload.scenario.schema.endpoints import Endpoint
from inferload.scenario.schema.fields import checked_headers

MOST_NAME_CHARACTERS = 100
_NAME = re.compile(r"[^\s{}]+")  # a blank marks other requests in gates, such as GET /health

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
OWN = (
    *("name", "max_tokens", "model", "temperature", "tools", "tool_choice", "headers", "timeout_s", "cancel_after_s"),
    *("catch_response", "extra_body"),
)
# Fields that the arguments set, and the way to set them.
_WRITTEN = {
    "messages": "is the first argument",
    "prompt": "is the first argument",
    "input": "is the first argument",
    "stream": "is always on",
    "stream_options": "is always {'include_usage': True}",
    "n": "is always 1: one answer per turn",
    "max_completion_tokens": "is max_tokens here",
    "max_output_tokens": "is max_tokens here",
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAMPLING = _words("""
    top_p seed stop user frequency_penalty presence_penalty logit_bias logprobs
    top_k min_p repetition_penalty length_penalty use_beam_search stop_token_ids include_stop_str_in_output ignore_eos
    min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens prompt_logprobs allowed_token_ids
    bad_words add_special_tokens structured_outputs guided_json guided_regex guided_choice guided_grammar response_format
    priority request_id return_token_ids return_tokens_as_token_ids cache_salt kv_transfer_params vllm_xargs
    logits_processors
    """)
# Documented fields of each API (OpenAI, Anthropic, vLLM), without those that the arguments set.
FIELDS: Mapping[Endpoint, frozenset[str]] = {
    "chat": _SAMPLING
    | _words("""
        top_logprobs parallel_tool_calls reasoning_effort metadata service_tier store modalities audio prediction verbosity
        safety_identifier prompt_cache_key web_search_options include_reasoning chat_template chat_template_kwargs
        add_generation_prompt continue_final_message documents echo mm_processor_kwargs media_io_kwargs
        functions function_call
        """),
    "completions": _SAMPLING | frozenset(("best_of", "echo", "suffix")),
    "responses": _words("""
        instructions reasoning text top_p top_k top_logprobs truncation previous_response_id conversation include metadata
        parallel_tool_calls max_tool_calls user service_tier store prompt_cache_key safety_identifier request_id priority
        cache_salt mm_processor_kwargs ignore_eos seed stop
        """),
    "messages": _words("system stop_sequences top_p top_k thinking metadata service_tier container context_management"),
}


class CallError(UsageError, TypeError):
    """Invalid call: one line with the argument and the remedy. No request is counted."""


def check_not_written(method: str, name: str) -> None:
    """CallError for a field that the arguments set."""
    if name in _WRITTEN:
        raise CallError(f"{method}: {name} {_WRITTEN[name]}; leave it out")


def check_field(method: str, endpoint: Endpoint, name: str, also: Sequence[str] = ()) -> None:
    """CallError for a field that the API does not document: most are misspelled. `also`: other arguments of the method."""
    known = FIELDS[endpoint]
    if name in known:
        return
    check_not_written(method, name)
    near = get_close_matches(name, [*also, *OWN, *sorted(known)], n=1, cutoff=0.7)
    remedy = f"did you mean {near[0]}?" if near else f"put a server-specific field into extra_body={{{name!r}: ...}}"
    raise CallError(f"{method}: unknown argument {name!r}; {remedy}")


def check_own(method: str, own: Mapping[str, Any]) -> None:
    """CallError for an invalid value of an argument that all methods have."""
    for key in ("timeout_s", "cancel_after_s"):
        value = own.get(key)
        if value is not None and not (isinstance(value, int | float) and value > 0):
            raise CallError(f"{method}: {key} is {value!r}; give seconds above 0")
    limit = own.get("max_tokens")
    whole = isinstance(limit, int) and not isinstance(limit, bool)
    if limit is not None and not (whole and 0 < limit <= MOST_MAX_TOKENS):
        raise CallError(f"{method}: max_tokens is {limit!r}; give a whole number from 1 to {MOST_MAX_TOKENS:,}")
    model = own.get("model")
    if model is not None and not (isinstance(model, str) and model.isprintable()):
        raise CallError(f"{method}: model is {model!r}; give the name of a model")
    name = own.get("name")
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name) and name.isprintable()):
        raise CallError(f"{method}: name is {name!r}; give a word without blanks and braces, for tables and gates")
    if name is not None and len(name) > MOST_NAME_CHARACTERS:
        raise CallError(f"{method}: name has {len(name)} characters; give at most {MOST_NAME_CHARACTERS}")
    tools = own.get("tools")
    if tools is not None and not (isinstance(tools, list | tuple) and all(isinstance(tool, Mapping) for tool in tools)):
        raise CallError(f"{method}: tools is {type(tools).__name__}; give a list of tool definitions")


def headers_of(method: str, headers: Any) -> tuple[tuple[str, str], ...]:
    """Return the headers of a call. CallError for invalid ones."""
    if headers is None:
        return ()
    if not isinstance(headers, Mapping) or not all(isinstance(text, str) for pair in headers.items() for text in pair):
        raise CallError(f"{method}: headers is {type(headers).__name__}; give a dict of texts")
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise CallError(f"{method}: header {name}: must be printable ASCII")
    try:
        return tuple(checked_headers(dict(headers)).items())
    except ValueError as error:
        raise CallError(f"{method}: header {str(error).replace('a scenario', 'a locustfile')}") from error


def _messages(method: str, messages: Any) -> list[Mapping[str, Any]]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if not isinstance(messages, list | tuple) or not messages:
        problem = "empty" if isinstance(messages, list | tuple) else type(messages).__name__
        raise CallError(
            f"{method}: messages is {problem}; give text, or a list of {{'role': 'user', 'content': '...'}}"
        )
    for number, message in enumerate(messages):
        where = f"{method}: messages[{number}]"
        if not isinstance(message, Mapping):
            raise CallError(f"{where} is {type(message).__name__}; give {{'role': 'user', 'content': '...'}}")
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            what = f"role is {role!r}" if "role" in message else "role is missing"
            raise CallError(f"{where}: {what}; one of {', '.join(ROLES)}")
        if content is None and role == "assistant" and set(message) > {"role", "content"}:
            continue
        if not isinstance(content, str | list | tuple):
            what = f"content is {type(content).__name__}" if "content" in message else "content is missing"
            raise CallError(f"{where}: {what}; give text, or a list of parts")
    return list(messages)


def _prompt(method: str, prompt: Any) -> Any:
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list | tuple) and prompt and all(isinstance(token, int) for token in prompt):
        return prompt
    problem = "empty" if prompt in ("", [], ()) else type(prompt).__name__
    raise CallError(f"{method}: prompt is {problem}; give text, or a list of token ids")


def _input(method: str, value: Any) -> Any:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
        return value
    problem = "empty" if value in ("", [], ()) else type(value).__name__
    raise CallError(
        f"{method}: input is {problem}; give text, or a list of items such as {{'role': 'user', 'content': '...'}}"
    )


CONTEXT_CHECKS: Mapping[Endpoint, Callable[[str, Any], Any]] = {
    "chat": _messages,
    "completions": _prompt,
    "responses": _input,
    "messages": _messages,
}
