"""Texts of refusals: which key of the body a server names, in the forms of many servers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.client import refusals
from inferload.scenario.schema.request import RequestOptions

SENT = (
    *("model", "messages", "stream", "stream_options", "max_tokens", "ignore_eos", "temperature", "seed", "min_tokens"),
    *("cache_salt", "chat_template_kwargs", "tools", "tool_choice", "top_p"),
)
# Keys that a server may refuse, apart from those that nearly every text mentions.
KEYS = st.sampled_from(
    ["stream_options", "max_tokens", "ignore_eos", "temperature", "seed", "min_tokens", "chat_template_kwargs"]
)
# Texts with a placeholder for the key, by the kind of server that sends them.
PLAIN = (
    "Unsupported parameter: '{}' is not supported with this model.",
    "Unrecognized request argument supplied: {}",
    "Unknown parameter: '{}'.",
    "property '{}' is unsupported",
    "{}: Extra inputs are not permitted",
    "Extra inputs are not permitted, field: '{}', value: True",
    "Failed to deserialize the JSON body into the target type: unknown field `{}`, expected one of `model`, `top_p`, `seed`",
    'json: unknown field "{}"',
    'Invalid JSON payload received. Unknown name "{}": Cannot find field.',
    "Additional properties are not allowed ('{}' was unexpected)",
    "litellm.UnsupportedParamsError: openai does not support parameters: ['{}'], for model=m. To drop these, set drop_params",
    "The model m does not take {} in messages",
    "#: extraneous key [{}] is not permitted",
    "[{{'type': 'extra_forbidden', 'loc': ('body', '{}'), 'msg': 'Extra inputs are not permitted', 'input': True}}]",
)
NAMED = (
    lambda key, text: {"error": {"message": text, "type": "invalid_request_error", "param": key, "code": "x"}},
    lambda key, text: {"detail": [{"type": "extra_forbidden", "loc": ["body", key], "msg": text, "input": "seed"}]},
    lambda key, text: {"object": "error", "message": {"detail": [{"loc": ["body", key], "msg": text}]}},
    lambda key, text: {
        "error": {
            "message": "Provider returned error",
            "metadata": {"raw": json.dumps({"error": {"message": text, "param": key}})},
        }
    },
    lambda key, text: {"message": f"body.{key}: {text}", "param": f"body.{key}"},
)
UNNAMED = (
    lambda text: {"error": {"message": text, "param": None}},
    lambda text: {"error": text},
    lambda text: {"message": text},
    lambda text: {"detail": text},
)


@given(KEYS, st.sampled_from(PLAIN), st.sampled_from(UNNAMED))
def test_a_text_names_the_key(key: str, text: str, form: object) -> None:
    sentence = text.format(key)
    assert refusals.refused_keys(f"HTTP 400: {sentence}", SENT) == (key,)
    detail = f"HTTP 422: {json.dumps(form(sentence))}"  # type: ignore[operator]
    assert refusals.refused_keys(detail, SENT) == (key,)
    assert sentence.split("{")[0][:20] in refusals.text_of(detail)


@given(KEYS, st.sampled_from(PLAIN), st.sampled_from(NAMED), KEYS)
def test_the_named_parameter_counts(key: str, text: str, form: object, other: str) -> None:
    detail = f"HTTP 400: {json.dumps(form(key, text.format(other)))}"  # type: ignore[operator]
    assert refusals.refused_keys(detail, SENT) == (key,)


@given(st.lists(KEYS, min_size=2, max_size=4, unique=True))
def test_a_list_names_all_keys(keys: list[str]) -> None:
    for text in (", ".join(keys), repr(keys), " and ".join(keys)):
        assert set(refusals.refused_keys(f"Unrecognized request arguments supplied: {text}", SENT)) == set(keys)
    detail = {"detail": [{"loc": ["body", key], "msg": "Extra inputs are not permitted"} for key in keys]}
    assert refusals.refused_keys(json.dumps(detail), SENT) == tuple(keys)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', ("tool_choice",)),
        ("Unknown parameter: 'stream_options.continuous_usage_stats'.", ("stream_options",)),
        ("min_tokens must be less than or equal to max_tokens=1, got 8.", ("min_tokens",)),
        ("System role not supported", ()),
        ("upstream connect error", ()),
        ("", ()),
        ("{" * 5000, ()),
    ],
)
def test_other_texts(text: str, keys: tuple[str, ...]) -> None:
    assert refusals.refused_keys(text, SENT) == keys


@given(st.text(max_size=80), st.sampled_from(UNNAMED))
def test_no_text_raises(text: str, form: object) -> None:
    for detail in (text, json.dumps(form(text))):  # type: ignore[operator]
        refusals.refused_keys(detail, SENT)
        assert "\n" not in refusals.text_of(detail)


def test_the_remedy_names_the_option_to_change() -> None:
    request = RequestOptions(extra_body={"temperature": 0})

    def remedy(key: str, request: RequestOptions = request, store: bool = False) -> str:
        return refusals.remedy(f"Unknown parameter: '{key}'.", dict.fromkeys(SENT, False) | {"store": store}, request)

    assert "--set request.ignore_eos=false" in remedy("ignore_eos")
    assert "request.extra_body.temperature" in remedy("temperature")
    assert "--set request.usage=false" in remedy("stream_options")
    assert "--set request.continuous_usage=false" in remedy("stream_options", RequestOptions(continuous_usage=True))
    assert "--set cache.isolate=none" in remedy("cache_salt")
    assert "request.max_tokens_field" in remedy("max_tokens")
    assert "request.endpoint" in remedy("store")
    assert "--set workload.history=live" in remedy("store", store=True)
    assert refusals.remedy("HTTP 400: no", {}, request) == ""


@pytest.mark.parametrize(
    "text",
    [
        # vLLM and chat templates
        "Conversation roles must alternate user/assistant/user/assistant/...",
        "After the optional system message, conversation roles must alternate user and assistant roles",
        "Unexpected role 'user' after role 'tool'",
        "Tool call id was call-1-0 but must be a-z, A-Z, 0-9, with a length of 9.",
        "Not the same number of function calls and responses",
        "[{'type': 'missing', 'loc': ('body', 'messages', 1, 'content'), 'msg': 'Field required'}]",
        "Can only get item pairs from a mapping.",
        "'NoneType' object is not iterable",
        "Encountered an error while applying the chat_template",
        # llama.cpp
        "Cannot determine type of 'item'",
        "'type' must be 'output_text' or 'refusal'; item['content'] is empty",
        "Assistant message must contain either 'content' or 'tool_calls'!",
        "Jinja Exception: Unexpected message role.",
        "Failed to parse messages: Missing 'role'",
        # TGI, SGLang
        "Template error: undefined value (in <string>:1)",
        "Failed to deserialize the JSON body into the target type: messages[1]: data did not match any variant",
        # OpenAI, Anthropic, Gemini, DeepSeek, and LiteLLM before them
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
        "litellm.BadRequestError: OpenAIException - An assistant message with 'tool_calls' must be followed by tool messages",
        "Invalid type for 'messages[1].content': expected one of a string or array of objects, but got null instead.",
        "No tool call found for function call output with call_id call-1-0.",
        'messages: roles must alternate between "user" and "assistant", but found multiple "user" roles in a row',
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: call-1-0",
        "messages: text content blocks must be non-empty",
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        "Please ensure that function call turn comes immediately after a user turn or after a function response turn.",
        "deepseek-reasoner does not support successive user or assistant messages",
    ],
)
def test_texts_that_name_the_history(text: str) -> None:
    assert refusals.names_history(f"HTTP 400: {text}")
    for form in UNNAMED:
        assert refusals.names_history(f"HTTP 400: {json.dumps(form(text))}")


@pytest.mark.parametrize(
    "detail",
    [
        {"error": {"message": "Invalid value: 'x'.", "param": "messages[2].role"}},
        {"error": {"message": "Invalid value: 'x'.", "param": "input[1].content[0]"}},
        {"detail": [{"type": "missing", "loc": ["body", "messages", 1, "content"], "msg": "Field required"}]},
        {
            "error": {
                "message": "Provider returned error",
                "metadata": {"raw": '{"error": {"param": "messages.1.role"}}'},
            }
        },
    ],
)
def test_a_place_within_the_context_names_the_history(detail: object) -> None:
    assert refusals.names_history(f"HTTP 400: {json.dumps(detail)}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Internal Server Error",
        "The model `x` does not exist.",
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4990 in the messages)",
        "the request exceeds the available context size, try increasing it",
        "Rate limit reached: too many messages per minute by this user",
        "Your messages were flagged by the content policy",
        "Unknown parameter: 'cache_salt'.",
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "max_tokens must be at least 16",
        "the model cannot answer now",
        "Loading model",
    ],
)
def test_texts_that_name_no_history(text: str) -> None:
    assert not refusals.names_history(f"HTTP 400: {text}")
    for form in UNNAMED:
        assert not refusals.names_history(f"HTTP 400: {json.dumps(form(text))}")


@given(st.text(max_size=80), st.sampled_from(UNNAMED))
def test_no_text_of_a_history_raises(text: str, form: object) -> None:
    refusals.names_history(text)
    refusals.names_history(json.dumps(form(text)))  # type: ignore[operator]
