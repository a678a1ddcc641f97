"""Lists of models in any form: names are found, nothing raises, and only a single usable model is taken unasked."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.client.model_list import listed, models_in, only_model

NAME = st.text("abcxyz0123456789-./:", min_size=1, max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "models", "id", "name", "model", "parent"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@st.composite
def lists(draw: st.DrawFn) -> tuple[Any, list[str]]:
    """Draw a document and the names in it."""
    names = draw(st.lists(NAME, max_size=5, unique=True))
    key = draw(st.sampled_from(["id", "name", "model"]))
    more = draw(st.dictionaries(st.sampled_from(["object", "created", "root", "max_model_len"]), JSON, max_size=3))
    junk = draw(st.lists(st.sampled_from([None, 3, "", {}, {"id": None}, {"id": ""}, []]), max_size=3))
    entries: list[Any] = [draw(st.sampled_from([name, more | {key: name}])) for name in names] + junk
    forms = [
        entries,
        {"data": entries},
        {"models": entries},
        {"data": None, "models": entries},
        {"data": {"models": entries}},
    ]
    return draw(st.sampled_from(forms)), names


@given(lists())
def test_the_names_of_any_list_are_found(case: tuple[Any, list[str]]) -> None:
    document, names = case
    models = models_in(document)
    assert models is not None
    assert [model.name for model in models] == names
    assert (only_model(models) is not None) == (
        len([*filter(None, names)]) == 1 or len({m.base for m in models} - {""}) == 1 == len({m.base for m in models})
    )


@pytest.mark.parametrize(
    ("entry", "longest"),
    [
        *(({key: 8192}, 8192) for key in ("max_model_len", "context_window", "context_length", "max_context_length")),
        ({"context_window": 0}, None),  # of Dynamo, for "not known"
        ({"meta": {"n_ctx": 2048, "n_ctx_train": 8192}}, 2048),  # of a slot of llama.cpp
        ({"meta": {"n_ctx_train": 8192}}, None),
        ({"meta": [], "max_model_len": True, "context_length": "8192"}, None),
        ({"max_model_len": 4096, "context_length": 8192}, 4096),
    ],
)
def test_the_longest_context_of_a_model(entry: dict[str, Any], longest: int | None) -> None:
    (model,) = models_in({"data": [{"id": "m", **entry}]}) or ()
    assert model.max_model_len == longest


@given(JSON)
def test_no_document_raises(document: Any) -> None:
    models = models_in(document)
    assert models is None or isinstance(listed([model.name for model in models]), str)
    assert models is None or only_model(models) is None or only_model(models) in models


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"data": [{"id": "base", "root": "b", "parent": None}, {"id": "sql", "root": "s", "parent": "base"}]}, "base"),
        ({"data": [{"id": "a", "root": "/m"}, {"id": "alias", "root": "/m"}]}, "a"),
        ({"models": {"llama": {"size": 1}}}, "llama"),
        ({"models": [{"name": "x.gguf", "model": "x.gguf"}], "data": [{"id": "x.gguf"}]}, "x.gguf"),
        ({"data": [{"id": "unknown"}]}, None),
        ({"data": [{"id": "openai/*"}]}, None),
        ({"data": [{"id": "*"}, {"id": "gpt-4o"}]}, "gpt-4o"),
        ({"data": [{"id": "a"}, {"id": "b"}]}, None),
        ({"data": []}, None),
    ],
)
def test_the_single_model_is_taken(document: Any, name: str | None) -> None:
    models = models_in(document)
    assert models is not None
    only = only_model(models)
    assert (None if only is None else only.name) == name


def test_a_document_without_a_list_is_none() -> None:
    assert [models_in(document) for document in (None, "x", 3, {}, {"error": {"message": "no"}}, {"data": 3})] == [
        None
    ] * 6
