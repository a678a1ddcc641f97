"""Chat completions of OpenAI: /chat/completions."""

from collections.abc import Mapping
from typing import Any

import msgspec

from inferload.base.errors import instead
from inferload.client.answers.chat import ChatAnswer
from inferload.client.endpoints.dialect import Dialect, Encoded, joined, to_json, words
from inferload.client.requests.call_checks import CallError
from inferload.scenario.schema.request import RequestOptions
from inferload.workload.content.messages import NO_TEXT, Message
from inferload.workload.content.script import Ask

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
SAMPLING = words("""
    top_p seed stop user frequency_penalty presence_penalty logit_bias logprobs
    top_k min_p repetition_penalty length_penalty use_beam_search stop_token_ids include_stop_str_in_output ignore_eos
    min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens prompt_logprobs allowed_token_ids
    bad_words add_special_tokens structured_outputs guided_json guided_regex guided_choice guided_grammar response_format
    priority request_id return_token_ids return_tokens_as_token_ids cache_salt kv_transfer_params vllm_xargs
    logits_processors
    """)
_FIELDS = SAMPLING | words("""
        top_logprobs parallel_tool_calls reasoning_effort metadata service_tier store modalities audio prediction verbosity
        safety_identifier prompt_cache_key web_search_options include_reasoning chat_template chat_template_kwargs
        add_generation_prompt continue_final_message documents echo mm_processor_kwargs media_io_kwargs
        functions function_call
        """)


def _chat_message(message: Message, text: bytes) -> bytes:
    if text == b'""' and message.role == "assistant" and not (message.tool_calls or b'"audio":' in message.native):
        text = NO_TEXT
    parts = [b'{"role":"', message.role.encode(), b'","content":', text]
    # Most messages have only text.
    if not (message.native or message.reasoning or message.tool_calls) and message.tool_call_id is None:
        if message.images:
            images = [to_json({"type": "image_url", "image_url": {"url": url}}) for url in message.images]
            parts[-1] = b"[" + b",".join((*images, b'{"type":"text","text":' + text + b"}")) + b"]"
        parts.append(b"}")
        return b"".join(parts)
    from inferload.workload.content.history import chat_document  # of agents, and of servers with more than texts

    return to_json(chat_document(message, msgspec.Raw(text)))


def _chat_context(encoded: Encoded) -> bytes:
    return b'"messages":[' + joined(encoded) + b"]"


def stream_options(request: RequestOptions) -> dict[str, Any]:
    if not request.usage:
        return {"stream": True}
    continuous = {"continuous_usage_stats": True} if request.continuous_usage else {}
    return {"stream": True, "stream_options": {"include_usage": True} | continuous}


def limited(request: RequestOptions, ask: Ask, key: str) -> dict[str, Any]:
    """Return the keys of the stream and of the length of an answer. `key`: of its limit."""
    options = stream_options(request)
    if ask.output_tokens is not None:
        options[key] = ask.output_tokens
    if request.ignore_eos:
        options["ignore_eos"] = True
    return options


def _limit_key(request: RequestOptions) -> str:
    return "max_tokens" if request.max_tokens_field == "auto" else request.max_tokens_field


def _chat_options(request: RequestOptions, ask: Ask) -> dict[str, Any]:
    options = limited(request, ask, _limit_key(request))
    if ask.tools:
        options["tools"] = msgspec.Raw(ask.tools)
    if ask.tool_choice is not None:
        options["tool_choice"] = ask.tool_choice
    return options


def messages_of(method: str, messages: Any) -> list[Mapping[str, Any]]:
    """Return the messages of a call. CallError for others."""
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
            raise CallError(f"{where}: {what}; {instead(str(role), ROLES)}")
        if content is None and role == "assistant" and set(message) > {"role", "content"}:
            continue
        if not isinstance(content, str | list | tuple):
            what = f"content is {type(content).__name__}" if "content" in message else "content is missing"
            raise CallError(f"{where}: {what}; give text, or a list of parts")
    return list(messages)


DIALECT = Dialect(
    answer=ChatAnswer,
    message=_chat_message,
    context=_chat_context,
    options=_chat_options,
    limit_key=_limit_key,
    checked=messages_of,
    fields=_FIELDS,
    logprobs=lambda count: {"logprobs": True, "top_logprobs": count},
)
