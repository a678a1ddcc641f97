"""Tokenizer routes of servers: which form a server takes, and which counts are plausible."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.client.client import ClientSettings
from inferload.client.connection.target import Target
from inferload.client.fetch import Fetched, FetchError
from inferload.client.tokenizer import FORMS, form_of, plausible, tokenizer

SETTINGS = ClientSettings(Target.parse("http://server:8000"), "m")


class Route:
    """Stands for the connection to a server: answers each request to /tokenize by a function of its body."""

    def __init__(self, answer: Any, status: int = 200) -> None:
        self._answer, self._status = answer, status

    def post(self, _path: str, document: dict[str, Any]) -> Fetched:
        answer = self._answer(document) if callable(self._answer) else self._answer
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return Fetched(self._status, "application/json", data)


def name_of(answer: Any, status: int = 200) -> str | None:
    form = form_of(SETTINGS, Route(answer, status))  # type: ignore[arg-type]
    return None if form is None else form.name


def words(text: str) -> list[int]:
    return [sum(map(ord, word)) for word in text.split()]


def of_key(key: str, count: Any = words) -> Any:
    """A route that reads one key of the body, and takes a missing one for an empty text."""
    return lambda document: {"tokens": count(document.get(key, ""))}


@pytest.mark.parametrize(
    ("key", "count", "name"),
    [
        ("prompt", words, "vllm"),
        ("content", words, "llama.cpp"),
        ("prompt", lambda text: list(text.encode()), "vllm"),  # a token for each byte
        ("prompt", lambda text: [1, *words(text)], "vllm"),  # a token for the begin of each text
        ("prompt", lambda text: [0] * len(text.split()), "vllm"),  # without meaningful ids
        ("inputs", words, None),
        ("prompt", lambda text: list(range(20 * len(text))), None),
        ("prompt", lambda text: [1] * (1 + len(text.split()) // 10), None),
    ],
)
def test_the_form_that_gives_plausible_counts_is_found(key: str, count: Any, name: str | None) -> None:
    assert name_of(of_key(key, count)) == name


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**12) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
IDS = st.lists(st.integers(0, 100_000), max_size=60)


@given(
    VALUES
    | st.fixed_dictionaries(
        {"tokens": VALUES | IDS}, optional={"count": VALUES | st.integers(0, 99), "max_model_len": VALUES}
    )
    | st.binary(max_size=60)
)
def test_no_constant_answer_is_a_tokenizer(answer: Any) -> None:
    assert name_of(answer) is None


@given(st.integers(0, 999).filter(lambda status: status != 200))
def test_another_status_is_no_tokenizer(status: int) -> None:
    assert name_of(of_key("prompt"), status) is None


@given(st.integers(-3, 40))
def test_a_count_that_differs_from_the_list_is_no_tokenizer(off: int) -> None:
    def answer(document: dict[str, Any]) -> dict[str, Any]:
        tokens = words(document.get("prompt", ""))
        return {"tokens": tokens, "count": len(tokens) + off}

    assert name_of(answer) == ("vllm" if off == 0 else None)


@given(st.text(max_size=300), st.integers(-5, 2000))
def test_a_plausible_count_is_within_words_and_bytes(text: str, tokens: int) -> None:
    size, count = len(text.encode("utf-8", "surrogatepass")), len(text.split())
    if count and tokens < 1:
        assert not plausible(text, tokens)
    if tokens > size + 8:
        assert not plausible(text, tokens)
    if max(1, count) <= tokens <= size:
        assert plausible(text, tokens)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_later_count_that_is_implausible_is_an_error(form: Any) -> None:
    key = {"vllm": "prompt", "llama.cpp": "content"}[form.name]
    tokenize = tokenizer(SETTINGS, form, Route(of_key(key, lambda text: words(text) if len(text) < 50 else [])))  # type: ignore[arg-type]
    assert len(tokenize("two words")) == 2
    assert tokenize("") == []
    with pytest.raises(FetchError, match="0 tokens for a text of 600 characters"):
        tokenize("ab cd " * 100)
