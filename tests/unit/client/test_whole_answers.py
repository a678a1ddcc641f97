"""Answers without a stream: the filter of vectors, and what a body must have to be an answer."""

import json
from itertools import pairwise, takewhile
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inferload.client.answers.whole import VectorFilter, WholeAnswer, asked_for
from inferload.client.endpoints.dialect import DIALECTS
from inferload.client.requests.bodies import BodySettings, BodyWriter, Texts
from inferload.scenario.schema.endpoints import OF_TEXTS, EndpointName
from inferload.scenario.schema.request import RequestOptions
from inferload.turns.remarks import Remark
from inferload.workload.content.messages import text_message
from inferload.workload.content.prompts import approximate
from inferload.workload.content.script import Ask
from inferload.workload.isolation import Isolation

NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
DOCUMENTS = st.recursive(
    st.one_of(st.lists(NUMBERS), NUMBERS, st.none(), st.booleans(), st.text('[]1\\"é \n,-{}')),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from("abcd"), inner, max_size=4)),
    max_leaves=20,
)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def shape(value: Any) -> Any:
    """Return a value with one text for all texts, and one for all numbers that begin a list."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        numbers = len([*takewhile(is_number, value)])
        return ["numbers"] * (numbers > 0) + [shape(item) for item in value[numbers:]]
    return "text" if isinstance(value, str) else value


@given(DOCUMENTS, st.lists(st.integers(0, 400), max_size=9), st.sampled_from([None, 1]), st.booleans())
@example([3, [1]], [4], None, True)
@example([3, {"a": [1, None, "b"]}], [4], 1, True)
def test_the_filter_keeps_all_but_the_numbers_of_vectors(
    document: Any, at: list[int], indent: int | None, ascii_only: bool
) -> None:
    whole = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
    edges, reader = [0, *sorted(at), len(whole)], VectorFilter()
    kept = b"".join(reader.feed(whole[low:high]) for low, high in pairwise(edges))
    assert shape(json.loads(kept)) == shape(document)


def test_a_large_batch_takes_little_memory() -> None:
    vector = json.dumps([0.123456789] * 4096).encode()
    reader = VectorFilter()
    kept = sum(len(reader.feed(b'{"embedding":' + vector + b"},")) for _ in range(100))
    assert kept < 100 * len('{"embedding":[0]},') + 1


REQUEST = b'{"input":["a","b"]}'
SCORES = [{"index": 1, "score": 0.9}, {"index": 0, "score": 0}]
RELEVANT = [{"index": 1, "relevance_score": 0.9, "document": None}, {"index": 0, "relevance_score": 0}]
RERANK = {"query": "q", "documents": ["a", "b"]}


@pytest.mark.parametrize(
    ("request_body", "body", "tokens"),
    [
        ({"input": ["a", "b"]}, {"embeddings": [[0.5, 1], [2]], "prompt_eval_count": 8}, 8),  # Ollama: /api/embed
        ({"prompt": "a"}, {"embedding": [0.5, 1]}, None),  # Ollama: /api/embeddings
        ({"texts": ["a", "b"]}, {"embeddings": {"float": [[0.5], [1]], "int8": [[1], [2]]}}, None),  # Cohere: /v2/embed
        ({"inputs": ["a", "b"]}, [[0.5, 1], [2]], None),  # TEI: /embed
        ({"inputs": ["a", "b"]}, [[{"index": 1, "value": 0.5}], [{"index": 2, "value": 1}]], None),  # /embed_sparse
        ({"query": "q", "texts": ["a", "b"]}, SCORES, None),  # TEI: /rerank
        (RERANK, {"results": RELEVANT, "usage": {"total_tokens": 9}}, 9),  # Jina, llama.cpp
        (RERANK, {"object": "list", "data": RELEVANT, "usage": {"total_tokens": 9}}, 9),  # Voyage
        (RERANK, {"id": "x", "results": RELEVANT, "meta": {"billed_units": {"search_units": 1}}}, None),  # Cohere
        (RERANK, {"object": "rerank", "results": RELEVANT, "usage": {"prompt_tokens": 5}}, 5),  # Infinity
    ],
)
@pytest.mark.parametrize("lacks", [0, 1])
def test_answers_of_services(request_body: Any, body: Any, tokens: int | None, lacks: int) -> None:
    texts = max(len(value) for value in request_body.values() if isinstance(value, list | str))
    more = {key: [*value, "more"] for key, value in request_body.items() if lacks and isinstance(value, list)}
    answer = WholeAnswer()
    answer.add(json.dumps(body).encode(), 5)
    answer.asked(json.dumps(request_body | more).encode())
    answer.conclude(reply_complete=True)
    assert (answer.texts, answer.remarks) == (texts + bool(more), {})
    assert (answer.failure, answer.input_tokens) == ("cut" if more else None, tokens), answer.detail


@pytest.mark.parametrize(
    ("body", "failure", "tokens"),
    [
        ({"embeddings": [[1]]}, "cut", None),
        ({"embeddings": {"float": []}}, "empty", None),
        ({"embedding": {}}, "empty", None),
        ({"embeddings": ["", ""]}, "empty", None),
        ({"data": [{"embedding": [1, 2]}, {"embedding": [0.5]}], "usage": {"prompt_tokens": 5}}, None, 5),
        ({"results": [{"index": 0}, {"index": 1}], "usage": {"total_tokens": 4}}, None, 4),
        ({"results": [{"relevance_score": 0}, {}], "meta": {"billed_units": {"search_units": 1}}}, None, None),
        ([[0.5, 1], [2]], None, None),
        (b"\xef\xbb\xbf[[0.5, 1], [2]]", None, None),
        ([[0.5], [2], [3]], None, None),
        ({"data": [{"embedding": [1]}, {"embedding": None}]}, "cut", None),
        ({"data": [{"embedding": []}]}, "empty", None),
        ({"data": []}, "empty", None),
        ({"error": {"message": "boom"}}, "server_error", None),
        ({"object": "error", "message": "boom"}, "server_error", None),
        (b"<html>", "not_sse", None),
        (b'{"data": [{"embedding": [1, 2]', "cut", None),
        (b'{"data": nonsense}', "bad_event", None),
        (b"", "empty", None),
    ],
)
def test_a_body_is_an_answer_if_it_has_a_result_for_each_text(
    body: Any, failure: str | None, tokens: int | None
) -> None:
    answer = WholeAnswer()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    for at in range(len(data)):
        answer.add(data[at : at + 1], at)
    answer.asked(REQUEST)
    answer.settle()
    answer.conclude(reply_complete=True)
    assert (answer.failure, answer.input_tokens, answer.output_tokens) == (failure, tokens, None), answer.detail
    assert list(answer.remarks) == ([Remark.ODD_EVENT] if body == [[0.5], [2], [3]] else [])
    assert answer.whole_ns == (None if failure else len(data) - 1)


@pytest.mark.parametrize(
    ("request_body", "asked"),
    [
        ({"input": "a"}, (1, 1)),
        ({"input": [5, 6, 7]}, (1, 1)),
        ({"input": [[5, 6], [7]]}, (2, 2)),
        ({"query": "a", "documents": ["b", "c", "d"], "top_n": 2}, (3, 2)),
        ({"query": "a", "documents": ["b", "c", "d"], "top_k": 1}, (3, 1)),
        ({"text_1": ["a", "b"], "text_2": ["c", "d"]}, (2, 2)),
        ({"queries": "a", "documents": ["c", "d"]}, (2, 2)),
        ({"messages": []}, (1, 1)),
    ],
)
def test_the_results_that_a_request_asks_for(request_body: Any, asked: tuple[int, int]) -> None:
    assert asked_for(json.dumps(request_body).encode()) == asked


@pytest.mark.parametrize("isolated", [Isolation(), Isolation("salt", "run"), Isolation("first_line", "run")])
@pytest.mark.parametrize("endpoint", OF_TEXTS)
def test_a_body_without_options_is_json(endpoint: EndpointName, isolated: Isolation) -> None:
    settings = BodySettings("m", RequestOptions.model_validate({"endpoint": endpoint}))
    ask = Ask(tuple(text_message("user", f"{number}", 3) for number in range(3)), None)
    assert DIALECTS[endpoint].options(settings.request, ask) == {}
    body = json.loads(BodyWriter(Texts(approximate(), 0), settings, isolated).body(ask))
    texts = [text for value in body.values() for text in (value if isinstance(value, list) else [value])]
    assert sum(text.startswith("[run]\n") for text in texts) == (3 if isolated.kind == "first_line" else 0)
    assert ("cache_salt" in body) == (isolated.kind == "salt")
