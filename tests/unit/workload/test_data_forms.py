"""One conversation in all usual forms of data sets: lines, arrays, tables, batches of requests, nested columns, gzip."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferload.scenario.schema.sources import Columns, Csv, JsonLines
from inferload.workload.sources.loaders import JSON_VALUES, TABLE, FileReader
from inferload.workload.sources.parsing import DocumentError, Exchange, RecordedConversation, parse

UNNAMED = Columns()

words = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=8).map(
    lambda text: f"x{text}"
)
talks = st.lists(st.tuples(words, words), min_size=1, max_size=3)


def roles(talk: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [message for question, answer in talk for message in (("user", question), ("assistant", answer))]


def openai(talk: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"role": role, "content": text} for role, text in roles(talk)]


def parts(talk: list[tuple[str, str]]) -> list[dict[str, Any]]:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    return [{"role": role, "content": [{"type": "text", "text": text}, image]} for role, text in roles(talk)]


def sharegpt(talk: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"from": "human" if role == "user" else "gpt", "value": text} for role, text in roles(talk)]


def gemini(talk: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"role": "user" if role == "user" else "model", "parts": [{"text": text}]} for role, text in roles(talk)]


def columns_of(talk: list[tuple[str, str]]) -> dict[str, list[str]]:
    return {"role": [role for role, _ in roles(talk)], "content": [text for _, text in roles(talk)]}


def texts(talk: list[tuple[str, str]]) -> list[str]:
    return [text for _, text in roles(talk)]


MESSAGES = {form.__name__: form for form in (openai, parts, sharegpt, gemini, columns_of, texts)}
messages = st.sampled_from(sorted(MESSAGES))


def nested(path: str, value: Any) -> dict[str, Any]:
    """Return a document with a value at a path of keys and positions."""
    *outer, last = path.split(".")
    inner: Any = value
    for part in [last, *reversed(outer)]:
        inner = [None] * int(part) + [inner] if part.isdecimal() else {part: inner, f"not {part}": 1}
    assert isinstance(inner, dict)
    return inner


def written(path: Path, documents: list[Any], container: str, packed: bool) -> Path:
    if container == "lines":
        text = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents)
    else:
        text = json.dumps(documents, indent=None if container == "array" else 1)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


def read(path: Path, columns: Columns = UNNAMED, kind: type[JsonLines | Csv] = JsonLines) -> list[Any]:
    """Return the conversations of a file, each read again at its position."""
    name, form = ("csv", TABLE) if kind is Csv else ("jsonl", JSON_VALUES)
    reader = FileReader(kind(kind=name, path=str(path), columns=columns), "", form)
    records = list(reader.records())
    again = [reader.read(record.start, record.size) for record in records]
    assert again == [record.document for record in records]
    return [parse(document, "conversation", columns) for document in again]


def exchanges(talk: list[tuple[str, str]]) -> tuple[Exchange, ...]:
    return tuple(Exchange(question, answer) for question, answer in talk)


FILES = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
containers = st.sampled_from(["lines", "array", "pretty array"])


@given(several=st.lists(talks, min_size=1, max_size=4), form=messages, container=containers, packed=st.booleans(),
       path=st.sampled_from(["messages", "conversations", "body.messages", "request.contents", "a.0.b", "data.1"]))  # fmt: skip
@FILES
def test_messages_are_read_in_any_form_at_any_path(
    *, tmp_path: Path, several: list[list[tuple[str, str]]], form: str, container: str, packed: bool, path: str
) -> None:
    documents = [nested(path, MESSAGES[form](talk)) for talk in several]
    file = written(tmp_path / "d", documents, container, packed)
    found = read(file, Columns(messages=path))
    assert [conversation.turns for conversation in found] == [exchanges(talk) for talk in several]
    images = 2 * len(several[0]) if form == "parts" else 0
    assert found[0].dropped == ({"image_url parts": images} if images else {})


@given(
    several=st.lists(talks, min_size=2, max_size=4),
    form=messages.filter(lambda form: form != "columns_of"),
    packed=st.booleans(),
)
@FILES
def test_a_line_may_be_the_array_of_messages(
    tmp_path: Path, several: list[list[tuple[str, str]]], form: str, packed: bool
) -> None:
    documents = [MESSAGES[form](talk) for talk in several]
    for container in ("lines", "array", "pretty array"):
        found = read(written(tmp_path / "d", documents, container, packed))
        assert [conversation.turns for conversation in found] == [exchanges(talk) for talk in several]


@given(talk=talks)
@FILES
def test_a_file_of_one_array_is_one_conversation_if_its_elements_are_messages(
    tmp_path: Path, talk: list[tuple[str, str]]
) -> None:
    (conversation,) = read(written(tmp_path / "d", openai(talk), "array", False))
    assert conversation.turns == exchanges(talk)
    prompts = read(written(tmp_path / "d", texts(talk), "array", False))
    assert [prompt.turns for prompt in prompts] == [(Exchange(text),) for text in texts(talk)]


@given(prompts=st.lists(words, min_size=1, max_size=5), container=containers, packed=st.booleans())
@FILES
def test_a_record_that_is_a_text_is_a_prompt(tmp_path: Path, prompts: list[str], container: str, packed: bool) -> None:
    found = read(written(tmp_path / "d", prompts, container, packed))
    assert [conversation.turns for conversation in found] == [(Exchange(text),) for text in prompts]


@given(
    questions=st.lists(words, min_size=1, max_size=4),
    answers=st.integers(0, 4),
    path=st.sampled_from(["prompt", "turns", "a.b"]),
)
@FILES
def test_a_prompt_that_is_a_list_of_texts_is_a_turn_for_each(questions: list[str], answers: int, path: str) -> None:
    known = [f"answer {number}" for number in range(min(answers, len(questions)))]
    document = nested(path, questions) | {"answer": known}
    found = parse(document, "conversation", Columns(prompt=path))
    assert isinstance(found, RecordedConversation)
    assert [turn.question for turn in found.turns] == questions
    assert [turn.answer for turn in found.turns] == known + [None] * (len(questions) - len(known))
    blanks = [text for question in questions for text in (" ", question)]
    planned = nested(path, blanks) | {"output_tokens": [*range(1, len(blanks) + 1)]}
    found = parse(planned, "conversation", Columns(prompt=path))
    assert isinstance(found, RecordedConversation)
    assert [turn.output_tokens for turn in found.turns] == [*range(2, len(blanks) + 1, 2)]


limits = st.sampled_from(["max_tokens", "max_completion_tokens", "max_output_tokens"])


@given(
    question=words, system=words, limit=limits, tokens=st.integers(1, 999), container=containers, form=st.integers(0, 4)
)
@FILES
def test_a_line_of_a_batch_is_the_body_of_its_request(
    *, tmp_path: Path, question: str, system: str, limit: str, tokens: int, container: str, form: int
) -> None:
    asked = [{"role": "user", "content": question}]
    body: dict[str, Any] = [
        {"messages": [{"role": "system", "content": system}, *asked]},
        {"instructions": system, "input": question},
        {"instructions": system, "input": asked},
        {"system": [{"type": "text", "text": system}], "messages": asked},
        {"system": system, "prompt": question},
    ][form]
    line = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions"}
    document = line | {"params" if form == 3 else "body": {"model": "m", limit: tokens, **body}}
    for found in read(written(tmp_path / "d", [document, document], container, False)):
        assert found.turns == (Exchange(question, None, tokens),)
        assert found.lead == (("system", system),)


@given(several=st.lists(talks, min_size=1, max_size=3), form=messages, packed=st.booleans())
@FILES
def test_a_cell_of_a_table_may_hold_the_messages_as_json(
    tmp_path: Path, several: list[list[tuple[str, str]]], form: str, packed: bool
) -> None:
    if form == "columns_of":
        return
    out = io.StringIO()
    rows = [[str(number), json.dumps(MESSAGES[form](talk))] for number, talk in enumerate(several)]
    csv.writer(out).writerows([["id", "body.messages"], *rows])
    file = tmp_path / "d.csv"
    file.write_bytes(gzip.compress(out.getvalue().encode()) if packed else out.getvalue().encode())
    found = read(file, Columns(messages="body.messages"), Csv)
    assert [conversation.turns for conversation in found] == [exchanges(talk) for talk in several]


@pytest.mark.parametrize("text", ["[INST] hi [/INST]", "[1, 2, 3]", '["a", "b"]', "[", "{}"])
def test_a_prompt_that_looks_like_json_is_a_text(text: str) -> None:
    found = parse({"prompt": text, "output_tokens": 3}, "conversation", Columns())
    assert isinstance(found, RecordedConversation)
    assert found.turns == (Exchange(text, None, 3),)


def test_a_key_with_a_point_comes_before_a_path() -> None:
    document = {"a.b": "key", "a": {"b": "path"}}
    found = parse(document, "conversation", Columns(prompt="a.b"))
    assert isinstance(found, RecordedConversation)
    assert found.turns[0].question == "key"


@given(talk=talks, system=st.none() | words, length=st.none() | st.integers(1, 99), form=st.integers(0, 3))
def test_turns_of_other_clients_are_questions_with_their_lengths(
    talk: list[tuple[str, str]], system: str | None, length: int | None, form: int
) -> None:
    def turn(text: str, role: str = "user", **more: object) -> dict[str, Any]:
        named = {"texts": [{"name": "t", "contents": [text]}]}
        said = [{"role": role, "content": text}]
        return [{"text": text}, {"texts": [text]}, named, {"messages": said}][form] | {"role": role} | more  # type: ignore[dict-item]

    questions = [turn(question, output_length=length, image="u") for question, _ in talk]
    first = [] if system is None else [turn(system, "system")]
    last = turn("later", "system", temperature=0, tools=[{}], seed=float("nan"), stop=[])
    answers = [turn("said", "assistant")]
    found = parse({"turns": [*first, *questions, last, *answers]}, "conversation", Columns())
    assert isinstance(found, RecordedConversation)
    assert found.turns == tuple(Exchange(question, None, length) for question, _ in talk)
    assert found.lead == (() if system is None else (("system", system),))
    others = {"`temperature`": 1, "`tools`": 1, "later system messages": 1, "answers in turns": 1}
    assert found.dropped == {"`image`": len(talk), "turns without text": 1} | others
    bare = [{key: value for key, value in each.items() if key != "role"} for each in questions]
    assert parse(bare, "conversation", Columns()) == parse({"turns": questions}, "conversation", Columns())


def test_names_of_other_clients_and_keys_that_are_not_sent() -> None:
    keys = {"output_length": 20, "temperature": 0, "delay": 0, "model": "m", "max_tokens": 9}
    found = parse({"text": "Why?", "turns": 1} | keys, "conversation", Columns())
    assert isinstance(found, RecordedConversation)
    assert (found.turns, found.dropped) == ((Exchange("Why?", None, 20),), {"`temperature`": 1, "`max_tokens`": 1})
    limited = parse({"prompt": "Why?", "max_tokens": 9}, "conversation", Columns(output_tokens="max_tokens"))
    assert isinstance(limited, RecordedConversation)
    assert (limited.turns[0].output_tokens, limited.dropped) == (9, {})
    with pytest.raises(DocumentError, match="no text: neither question nor messages"):
        parse({"text": "Why?"}, "conversation", Columns(prompt="question"))
    with pytest.raises(DocumentError, match="several conversations; write each as a line"):
        parse({"metadata": {}, "conversations": [[{"messages": []}]]}, "conversation", Columns())


@pytest.mark.parametrize(
    ("length", "known"), [("100.0", 100), (1e2, 100), ("nan", None), (float("nan"), None), ("-", None)]
)
@pytest.mark.parametrize(
    ("session", "name"), [(1.0, "1"), ("nan", None), (float("nan"), None), ("null", None), ("a", "a")]
)
def test_values_of_a_table_are_read_as_tools_write_them(
    length: Any, known: int | None, session: Any, name: str | None
) -> None:
    found = parse({"prompt": "a", "output_tokens": length, "session_id": session}, "conversation", Columns())
    assert isinstance(found, RecordedConversation)
    assert (found.turns[0].output_tokens, found.session) == (known, name)
