"""Texts of refusals: which key of the body a server names, in the forms of many servers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.client import refusals
from inferload.scenario.scenario import RequestOptions

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

    def remedy(key: str, request: RequestOptions = request) -> str:
        return refusals.remedy(f"Unknown parameter: '{key}'.", (*SENT, "temperature"), request)

    assert "request.ignore_eos: false" in remedy("ignore_eos")
    assert "request.extra_body.temperature" in remedy("temperature")
    assert "request.usage: false" in remedy("stream_options")
    assert "request.continuous_usage: false" in remedy("stream_options", RequestOptions(continuous_usage=True))
    assert "cache.isolate: none" in remedy("cache_salt")
    assert "request.max_tokens_field" in remedy("max_tokens")
    assert refusals.remedy("HTTP 400: no", SENT, request) == ""
