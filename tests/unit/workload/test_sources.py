"""Text sources: indexed conversation files, filters with counts, and generated text."""

import csv
import gzip
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import TESTS
from small_scenario import small

from inferload.base.errors import UsageError
from inferload.client.requests.bodies import Texts
from inferload.scenario.files import data_files
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.sources import Columns, RandomLengths, VllmDraws
from inferload.workload import json_values
from inferload.workload.content.data import DataContext, DataFindings
from inferload.workload.content.messages import Piece
from inferload.workload.content.prompts import approximate
from inferload.workload.content.script import PlannedTurn, outline
from inferload.workload.content.token_estimate import Counting, measure
from inferload.workload.sessions import Sessions
from inferload.workload.sources import corpus, file_records, index, loaders, registry
from inferload.workload.sources.parsing import DocumentError, Exchange, RecordedConversation, parse
from inferload.workload.sources.synthetic import around, vllm_draws
from inferload.workload.tables import row_of

HERE = TESTS


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(loaders, "_cached", {})


def scenario(source: dict[str, Any], **workload: Any) -> Scenario:
    """A chat with the given source."""
    return small(workload={"kind": "chat", "source": source, **workload})


def plan_of(sessions: Sessions, number: int) -> list[PlannedTurn]:
    return list(outline(sessions.begin(number).script, number))


def conversation(*texts: str, name: str = "c") -> dict[str, Any]:
    """A conversation in ShareGPT's format; the user sends the first message."""
    who = ("human", "gpt")
    return {"id": name, "conversations": [{"from": who[index % 2], "value": text} for index, text in enumerate(texts)]}


def sharegpt(path: Path, conversations: list[Any], **dump: Any) -> dict[str, Any]:
    path.write_text(json.dumps(conversations, **dump), encoding="utf-8")
    return {"kind": "sharegpt", "path": str(path), "chars_per_token": 1.0}


def said_in(turn: PlannedTurn) -> list[str]:
    return [piece.literal or "" for message in turn.ask.messages for piece in message.pieces]


def refusal(source: dict[str, Any], **workload: Any) -> str:
    with pytest.raises(UsageError) as caught:
        Sessions(scenario(source, **workload)).open()
    text = str(caught.value)
    assert "\n" not in text
    return text


# -- reading


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 400), st.integers(1, 60))
def test_a_truncated_array_is_refused_with_its_line(tmp_path: Path, cut: int, block: int) -> None:
    path = tmp_path / "a.json"
    text = json.dumps([conversation("Hi", 'He said "no"'), conversation("Why?", "Because {x}.")], indent=1).encode()
    path.write_bytes(text[: cut % len(text)])
    lines = path.read_bytes().count(b"\n") + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_values, "BLOCK_BYTES", block)
        with pytest.raises(UsageError) as caught:
            list(file_records.json_array(path))
    message = str(caught.value)
    assert "\n" not in message
    assert "empty" in message or any(f"a.json:{line}: " in message for line in range(1, lines + 1))


_CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(_CELLS, _CELLS), max_size=6), st.sampled_from(["\n", "\r\n"]))
def test_a_table_is_read_back(tmp_path: Path, rows: list[tuple[str, str]], end: str) -> None:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("prompt", "answer"), *rows])
    path = tmp_path / "a.csv"
    path.write_bytes(out.getvalue().encode())
    records = list(file_records.table(path))
    assert [(record.document["prompt"], record.document["answer"]) for record in records] == rows
    content, names = path.read_bytes(), ["prompt", "answer"]
    assert [row_of(names, content[record.start : record.start + record.size]) for record in records] == [
        record.document for record in records
    ]


# -- documents


def test_system_texts_come_before_the_first_turn() -> None:
    messages = [{"role": "system", "content": "t"}, {"role": "user", "content": "a"}]
    talk = parse({"system": "s", "messages": messages}, "conversation", Columns())
    assert isinstance(talk, RecordedConversation)
    assert talk.lead == (("system", "s"), ("system", "t"))


def test_filters_and_samples_of_turns() -> None:
    document = {"conversations": [{"from": "gpt", "value": "0"}, *conversation("1", "2", "3", "4")["conversations"]]}
    whole, first, prompt = (
        parse(document, sampler, Columns()) for sampler in ("conversation", "first_two", "whole_prompt")
    )  # type: ignore[arg-type]
    assert isinstance(whole, RecordedConversation)
    assert isinstance(first, RecordedConversation)
    assert isinstance(prompt, RecordedConversation)
    assert whole.turns == (
        Exchange("1", "2"),
        Exchange("3", "4"),
    )  # an assistant message before the first user message is skipped
    assert first.turns == (Exchange("0", "1"),)  # the first two messages of any role
    planned = parse(document | {"output_tokens": [8, 9]}, "first_two", Columns())
    assert isinstance(planned, RecordedConversation)
    assert planned.turns == (Exchange("0", "1", 8),)
    assert prompt.turns == (Exchange("3", "4"),)
    assert [text for _role, text in prompt.lead] == ["0", "1", "2"]


def test_consecutive_messages_of_one_role_are_joined() -> None:
    document = {"messages": [{"role": role, "content": role[0]} for role in ("user", "user", "assistant", "assistant")]}
    assert parse(document, "conversation", Columns()) == RecordedConversation((Exchange("u\nu", "a\na"),))


def test_invalid_documents_are_refused() -> None:
    assert parse([], "conversation", Columns()) == "not a conversation"
    assert parse(conversation(" ", "\n"), "conversation", Columns()) == "empty"
    assert parse({"conversations": [{"from": "gpt", "value": "x"}]}, "conversation", Columns()) == "one side only"
    with pytest.raises(DocumentError, match="no text: neither prompt nor messages among its keys question"):
        parse({"question": "x"}, "conversation", Columns())
    for wrong in (0, -1, 3.5, True, "many", ["3 or 4"]):
        with pytest.raises(DocumentError, match=r"output_tokens is .* must be a whole number from 1"):
            parse({"prompt": "x", "output_tokens": wrong}, "conversation", Columns())
    with pytest.raises(DocumentError, match="output_tokens has 1 lengths for 2 turns"):
        parse({"prompt": ["x", "y"], "output_tokens": [3]}, "conversation", Columns())
    with pytest.raises(DocumentError, match="tools must be a JSON array"):
        parse({"prompt": "x", "tools": {"a": 1}}, "conversation", Columns())


# -- ShareGPT


def test_sharegpt_conversations_are_sent_turn_by_turn(tmp_path: Path) -> None:
    source = sharegpt(tmp_path / "s.json", [conversation("Who?", "Me.", "Why?", "So so.")])
    sessions = Sessions(scenario(source, history="recorded", think_time_s=3))
    first, second = plan_of(sessions, 0)
    assert said_in(first) == ["Who?"]
    assert said_in(second) == ["Who?", "Me.", "Why?"]
    assert [turn.ask.output_tokens for turn in (first, second)] == [3, 6]
    assert [turn.ask.pause_s for turn in (first, second)] == [0.0, 3.0]
    assert (second.input_tokens, second.new_tokens) == (11, 4)
    live = plan_of(Sessions(scenario(source)), 0)[1]
    assert [piece.literal for message in live.ask.messages for piece in message.pieces] == ["Who?", None, "Why?"]


def test_the_first_two_messages_may_have_any_role() -> None:
    document = {
        "conversations": [
            {"from": "human", "value": "What time is it?"},
            {"from": "function_call", "value": "clock()"},
            {"from": "observation", "value": "noon"},
            {"from": "gpt", "value": "It is noon."},
        ]
    }
    first = parse(document, "first_two", Columns())
    assert isinstance(first, RecordedConversation)
    assert first.turns == (Exchange("What time is it?", "clock()"),)
    assert first.dropped == {"messages after the first two": 2}


def test_unsent_messages_are_counted_by_kind(tmp_path: Path) -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    messages = [
        {"role": "assistant", "content": "Welcome."},
        {"role": "user", "content": [picture, {"type": "text", "text": "What is this?"}, {"type": "input_audio"}, 7]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}, {"id": "b"}]},
        {"role": "tool", "tool_call_id": "a", "content": "a cat"},
        {"role": "assistant", "content": "A cat."},
        {"role": "narrator", "content": "She smiles."},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " "},
        "nothing",
    ]
    path = tmp_path / "tools.jsonl"
    path.write_text("".join(json.dumps({"messages": sent}) + "\n" for sent in (messages, messages[1:])))
    sessions = Sessions(scenario({"kind": "jsonl", "path": str(path)}))
    opened = sessions.open()["chat"]
    assert opened.facts()["source"]["dropped"] == {
        "answers before the first question": 1,
        "empty messages": 2,
        "image_url parts": 2,
        "input_audio parts": 2,
        "later system messages": 2,
        "messages of other roles": 2,
        "messages of tools": 2,
        "messages without text": 2,
        "no messages": 2,
        "tool calls": 4,
        "unknown parts": 2,
    }
    assert said_in(plan_of(sessions, 0)[0]) == ["What is this?"]
    assert any(line.startswith("not sent: 1 answers before") for line in opened.in_words())


def test_a_session_limit_includes_requested_answers(tmp_path: Path) -> None:
    short, long = "word " * 80, "word " * 800  # 100 and 1,000 tokens at 4 characters per token
    path = tmp_path / "two.jsonl"
    conversations = [
        [("user", short), ("assistant", answer), ("user", short), ("assistant", short)] for answer in (short, long)
    ]
    documents = [{"messages": [{"role": role, "content": text} for role, text in one]} for one in conversations]
    path.write_text("".join(json.dumps(one) + "\n" for one in documents))
    source = {"kind": "jsonl", "path": str(path), "filters": {"max_total_tokens": 500}, "chars_per_token": 4}

    def used(**workload: Any) -> int:
        return int(Sessions(scenario(source, **workload)).open()["chat"].facts()["source"]["used"])

    assert used() == 1  # 400 and 1,300 tokens
    assert used(output_tokens=10) == 2  # 220 tokens each
    assert used(output_tokens=10, history="recorded") == 1
    with pytest.raises(UsageError, match="2 max_total_tokens"):
        used(output_tokens={"dist": "uniform", "min": 100, "max": 220})  # 520 tokens each


def test_every_conversation_is_used_once_before_any_repeats(tmp_path: Path) -> None:
    source = sharegpt(tmp_path / "s.json", [conversation(f"q{number}", "a") for number in range(50)])
    for seed in (0, 1):
        sessions = Sessions(scenario(source).changed({"seed": seed}))
        order = [said_in(plan_of(sessions, number)[0])[0] for number in range(100)]
        assert sorted(order[:50]) == sorted(f"q{number}" for number in range(50))
        assert order[:50] == order[50:]
    assert [
        said_in(plan_of(Sessions(scenario(source | {"shuffle": False})), number)[0])[0] for number in (0, 1, 50)
    ] == ["q0", "q1", "q0"]


def test_the_order_of_a_seed_does_not_change(tmp_path: Path) -> None:
    source = sharegpt(tmp_path / "s.json", [conversation(f"{number}", "a") for number in range(12)])
    sessions = Sessions(scenario(source))
    order = [int(said_in(plan_of(sessions, number)[0])[0]) for number in range(12)]
    assert order == [0, 9, 4, 8, 1, 3, 10, 6, 2, 7, 5, 11]


def test_filters_equal_those_of_vllm_bench(tmp_path: Path) -> None:
    lengths = [(3, 9), (4, 3), (4, 4), (1024, 1024), (1025, 4), (1024, 1025), (20, 2029)]
    talks = [conversation("x" * prompt, "y" * answer) for prompt, answer in lengths]
    source = sharegpt(tmp_path / "s.json", [*talks, conversation("x" * 50), {"id": "no"}]) | {"sampler": "first_two"}
    sessions = Sessions(scenario(source))
    (opened,) = sessions.open().values()
    facts = opened.facts()["source"]
    assert (facts["sessions"], facts["used"]) == (7, 2)
    assert facts["skipped"] == {"not a conversation": 1, "one side only": 1}
    assert facts["filtered"] == {
        "min_prompt_tokens": 1,
        "min_output_tokens": 1,
        "max_prompt_tokens": 1,
        "max_total_tokens": 2,
    }
    asked = {(turn.new_tokens, turn.ask.output_tokens) for number in range(2) for turn in plan_of(sessions, number)}
    assert asked == {(4, 4), (1024, 1024)}
    assert opened.in_words()[1] == (
        "left out: 1 not a conversation, 1 one side only, 1 min_prompt_tokens, 1 min_output_tokens, "
        "1 max_prompt_tokens, 2 max_total_tokens"
    )


def test_token_estimates_name_their_source(tmp_path: Path) -> None:
    source = sharegpt(tmp_path / "s.json", [conversation("x" * 80, "y" * 40)])
    del source["chars_per_token"]
    measured = DataContext(by_class={"chat": DataFindings(None, 5.0, 0.1)})
    for data, given_chars, tokens, how in (
        (None, None, 20, "assumed"),
        (measured, None, 16, "measured on the server (mean error of a text's count: 10 %)"),
        (measured, 8.0, 10, "set in the scenario"),
    ):
        sessions = Sessions(scenario(source | ({"chars_per_token": given_chars} if given_chars else {})), data)
        (turn,) = plan_of(sessions, 0)
        assert (turn.new_tokens, turn.ask.output_tokens) == (tokens, tokens // 2)
        assert how in sessions.open()["chat"].in_words()[-1]


def test_characters_per_token_are_measured() -> None:
    def tokenize(text: str) -> list[int]:
        return list(range(len(text) // 5))

    assert measure(["x" * 50, "y" * 100], tokenize) == (5.0, 0.0)
    assert measure(["", ""], tokenize) is None
    estimate = measure(["x" * 54, "y" * 96], tokenize)
    assert estimate is not None
    per_token, error = estimate
    assert per_token == pytest.approx(150 / 29)
    assert 0 < error < 0.1
    assert [Counting("given", 4.0).tokens(chars) for chars in (0, 1, 4, 6, 400)] == [0, 1, 1, 2, 100]


def test_a_tokenizer_counts_exactly(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.save(str(tmp_path / "tokenizer.json"))
    source = sharegpt(tmp_path / "s.json", [conversation("one two three", "four five")])
    del source["chars_per_token"]
    sessions = Sessions(scenario(source | {"tokenizer": str(tmp_path)}))
    (turn,) = plan_of(sessions, 0)
    assert (turn.new_tokens, turn.ask.output_tokens) == (3, 2)
    assert "counted by the scenario's tokenizer" in sessions.open()["chat"].in_words()[-1]
    assert "no such file" in refusal(source | {"tokenizer": "nowhere"})


def test_turns_are_limited_by_the_recording(tmp_path: Path) -> None:
    source = sharegpt(tmp_path / "s.json", [conversation(*"abcdef")])
    assert [len(plan_of(Sessions(scenario(source, turns=turns)), 0)) for turns in (1, 2, 9)] == [1, 2, 3]
    assert [turn.ask.output_tokens for turn in plan_of(Sessions(scenario(source, output_tokens=77)), 0)] == [77] * 3


# -- the index


def test_an_index_is_cached_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.json"
    source = sharegpt(path, [conversation("a", "b"), conversation("c", "d")])
    read: list[Path] = []

    def counted(path: Path) -> Iterator[file_records.Raw]:
        read.append(path)
        return file_records.json_array(path)

    form = loaders.FileForm(counted, loaders.JSON_ARRAY.decoder)
    monkeypatch.setattr(registry, "READERS", {"sharegpt": loaders.files(form)})

    def opened() -> dict[str, Any]:
        monkeypatch.setattr(loaders, "_cached", {})
        return Sessions(scenario(source)).open()["chat"].facts()["source"]

    first = opened()
    assert opened() == first
    assert len(read) == 1
    assert first["sha256"] == data_files.sha256_of(path)
    sharegpt(path, [conversation("a", "b")])
    assert opened()["sessions"] == 1
    assert len(read) == 2
    for index_file in index.cache_folder().glob("*.npz"):
        index_file.write_bytes(b"broken")
    assert opened()["sessions"] == 1
    assert len(read) == 3
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))  # a file instead of a folder: the index cannot be stored
    assert opened()["sessions"] == 1


def test_a_worker_with_another_file_is_refused(tmp_path: Path) -> None:
    mine, masters = tmp_path / "mine.json", tmp_path / "masters.json"
    source = sharegpt(mine, [conversation("a", "b")])
    theirs = Sessions(scenario(sharegpt(masters, [conversation("a", "c")]))).open()["chat"].digest
    data = DataContext.from_wire(DataContext(by_class={"chat": DataFindings(theirs)}).to_wire(), "s")
    with pytest.raises(
        UsageError, match=r"mine.json: differs from the master's .* copy the same file to every machine"
    ):
        Sessions(scenario(source), data).open()
    same = DataContext(by_class={"chat": DataFindings(data_files.sha256_of(mine))})
    assert same.has_files
    Sessions(scenario(source), same).open()


def test_only_the_newest_indexes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_MAX_CACHED", 3)
    for number in range(5):
        Sessions(scenario(sharegpt(tmp_path / f"{number}.json", [conversation("a", "b")]))).open()
        newest = max(index.cache_folder().glob("*.npz"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, ns=(number * 10**9, number * 10**9))
    left = sorted(path.stat().st_mtime_ns // 10**9 for path in index.cache_folder().glob("*"))
    assert left == [2, 3, 4]


def test_paths_are_relative_to_the_working_or_scenario_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    (there / "d.json").write_text("[]")
    origin = there / "s.yaml"
    origin.write_text("")
    assert data_files.find("d.json", str(origin)) == there / "d.json"
    (here / "d.json").write_text("[]")
    assert data_files.find("d.json", str(origin)) == here / "d.json"
    with pytest.raises(data_files.Missing, match=r"e.json: no such file in .*here or .*there"):
        data_files.find("e.json", str(origin))
    with pytest.raises(data_files.Missing, match="is a directory"):
        data_files.find("../there")
    assert data_files.find("chat.yaml", "smoke").name == "chat.yaml"  # a file in the folder of a bundled scenario


# -- user files


def jsonl(path: Path, *documents: Any) -> dict[str, Any]:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
    return {"kind": "jsonl", "path": str(path), "chars_per_token": 1.0, "shuffle": False}


def test_json_lines_are_read(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    source = jsonl(
        tmp_path / "p.jsonl",
        {"prompt": "one", "output_tokens": 5, "system": "be kind", "tools": [tool]},
        {"prompt": "first", "output_tokens": 1, "session_id": 7},
        {"messages": [{"role": "user", "content": "alone"}, {"role": "assistant", "content": "four"}]},
        {"prompt": "second", "answer": "yes", "session_id": 7},
    )
    sessions = Sessions(scenario(source, history="recorded"))
    (turn,) = plan_of(sessions, 0)
    assert said_in(turn) == ["be kind", "one"]
    assert (turn.ask.output_tokens, json.loads(turn.ask.tools)) == (5, [tool])
    first, second = plan_of(sessions, 1)
    assert said_in(first) == ["first"]
    assert [message.role for message in second.ask.messages] == ["user", "assistant", "user"]
    assert [first.ask.output_tokens, second.ask.output_tokens] == [1, 3]
    assert second.ask.messages[1].pieces == (Piece("said/1/0", 1),)  # the file has no answer to this prompt
    assert said_in(plan_of(sessions, 2)[0]) == ["alone"]
    assert sessions.open()["chat"].facts()["source"]["sessions"] == 3


def test_columns_can_have_other_names(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text('question,tokens,who\n"a ""b"",\nc",3,x\nd,,y\n\ne,4,x\n')
    source = {
        "kind": "csv",
        "path": str(path),
        "shuffle": False,
        "chars_per_token": 1,
        "columns": {"prompt": "question", "output_tokens": "tokens", "session_id": "who"},
    }
    sessions = Sessions(scenario(source))
    first, second = plan_of(sessions, 0)
    assert said_in(first) == ['a "b",\nc']
    assert [first.ask.output_tokens, second.ask.output_tokens] == [3, 4]
    assert sessions.open()["chat"].facts()["source"]["filtered"] == {"without a known answer length": 1}
    assert len(plan_of(Sessions(scenario(source, output_tokens=9)), 1)) == 1


LINES = st.sampled_from(
    [{"answer": "yes"}, {"output_tokens": 3}, {}, {"session_id": "a"}, {"session_id": "a", "output_tokens": 3}]
)


@given(st.lists(LINES, max_size=8))
def test_turns_without_length_are_counted_with_the_first_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "p.jsonl"
    documents = [{"prompt": "Hi", "output_tokens": 1}, *({"prompt": "Hi", **line} for line in lines)]
    sessions = Sessions(scenario(jsonl(path, *documents)))
    sent = sum(len(plan_of(sessions, index)) for index in range(sessions.open()["chat"].facts()["source"]["used"]))
    lost = len(documents) - sent
    (*_, warning) = sessions.warnings() or [""]
    assert bool(lost) == bool(warning) == any(not {"answer", "output_tokens"} & one.keys() for one in documents)
    if lost:
        location, text = warning.split(": first of ")
        assert text.startswith(f"{lost} turn{'s' * (lost > 1)} left out: no answer and no output_tokens")
        assert not {"answer", "output_tokens"} & documents[int(location.rpartition(":")[2]) - 1].keys()
        assert warning in sessions.open()["chat"].in_words()
    assert Sessions(scenario(jsonl(path, *documents), output_tokens=4)).warnings() == []


def test_lines_without_text_are_counted_with_the_first_line(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "p.jsonl", {"prompt": "a", "output_tokens": 1}, {"prompt": " "}, {"prompt": ""})
    assert Sessions(scenario(source)).warnings() == [f"{tmp_path / 'p.jsonl'}:2: first of 2 records left out: empty"]
    talks = sharegpt(tmp_path / "s.json", [conversation("a", "b"), conversation("a")])
    assert Sessions(scenario(talks)).warnings() == []


def test_turns_after_the_last_answer_are_left_out_and_counted(tmp_path: Path) -> None:
    source = sharegpt(
        tmp_path / "s.json", [conversation("a", "b", "c"), conversation("a", "b"), conversation("a", "b", "c")]
    )
    sessions = Sessions(scenario(source))
    assert [len(plan_of(sessions, number)) for number in range(3)] == [1, 1, 1]
    opened = sessions.open()["chat"]
    facts = opened.facts()["source"]
    assert (facts["turns"], facts["turns_without_length"]) == (5, 2)
    assert "left out: 2 turns after the last answer of known length" in opened.in_words()
    sessions_ = Sessions(scenario(source, output_tokens=4))
    assert sorted(len(plan_of(sessions_, number)) for number in range(3)) == [1, 2, 2]
    assert sessions_.open()["chat"].facts()["source"]["turns_without_length"] == 0


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


UNUSABLE = ": no usable conversation: "
MALFORMED = (
    b"[" * 200_000,
    b'[{"a":' + b'{"a":' * 100_000,
    b"[" + b"9" * 6_000 + b"]",
    b'[{"conversations": "x\xff"}]',
)
TWO = conversation("Hi", "Ho")


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("sharegpt", "", ": empty; give a file with conversations"),
        ("sharegpt", "  \n ", ":2: the file ends where an array of conversations was expected; is it whole?"),
        ("sharegpt", "[]", ": no usable conversation: it has no records"),
        ("sharegpt", json.dumps(TWO), ":1: not a JSON array of conversations; for one object per line use kind jsonl"),
        ("sharegpt", json.dumps([TWO, TWO], indent=1)[:-30], ":24: the file ends within a conversation; is it whole? "),
        ("sharegpt", json.dumps([TWO])[:-1], ":1: the file ends where a comma or the array's end was expected; is it whole?"),
        ("sharegpt", f"[{json.dumps(TWO)}\n{json.dumps(TWO)}]", ":2: '{' where a comma or the array's end was expected"),
        ("sharegpt", f"[{json.dumps(TWO)}]\nx", ":2: unexpected text after the array's end"),
        ("sharegpt", '[\n{"conversations": [}]', ":2: expecting value"),
        ("sharegpt", '[\n{"conversations": [\n"\xe9"]}]'.encode("latin-1"), ":3: not UTF-8; save the file as UTF-8"),
        ("sharegpt", json.dumps([TWO]).encode("utf-16"), ":1: not UTF-8; save the file as UTF-8"),
        ("sharegpt", f'[\n{json.dumps([conversation("a")] * 3)[1:]}', ":2: no usable conversation: 3 one side only"),
        ("jsonl", "", ": empty; give a file with conversations"),
        ("jsonl", '{"prompt": "a"}\n{"prompt": \n', ":2: not JSON: "),
        ("jsonl", '{"prompt": "a"}\n7\n', ":2: not a JSON object; write one object per line, such as {prompt: ...}"),
        ("jsonl", '[{"prompt": "a"}]\n', f"{UNUSABLE}1 without a known answer length; set workload.output_tokens"),
        ("jsonl", '[\n{"prompt": "a"},\n{"prompt": "b"\n', ":4: the file ends within a conversation; is it whole? "),
        ("jsonl", b"PAR1\x00", ": is a Parquet file; convert it to JSON lines, or use source kind huggingface"),
        ("jsonl", b"\x28\xb5\x2f\xfd....", ": is compressed with zstd; unpack it"),
        ("jsonl", gzip.compress(b'{"prompt": "a"}' * 99, mtime=0)[:40], ": gzip data is damaged: "),
        ("csv", gzip.compress(b"prompt\na\n", mtime=0)[:-4], ": gzip data is damaged: "),
        (
            "jsonl",
            '{"prompt": "a", "output_tokens": 1}\n{"said": "b"}',
            ":2: no text: neither prompt nor messages among its keys said",
        ),
        ("jsonl", '{"prompt": "a"}\n', f"{UNUSABLE}1 without a known answer length; set workload.output_tokens"),
        ("jsonl", b'{"prompt": "a"}\n{"prompt": "\xff"}\n', ":2: not UTF-8; save the file as UTF-8"),
        ("csv", "", ": empty; a table has a header line with the column prompt"),
        ("csv", "question,tokens\na,1\n", ":1: no column prompt among question, tokens; name the column with source.columns"),
        ("csv", "prompt,output_tokens\na,1\nb\n", ":3: 1 fields, the header has 2"),
        ("csv", 'prompt,output_tokens\na,1\n"b,2\n', ":3: the file ends within a quoted field that begins here; is it whole?"),
        ("csv", "prompt,output_tokens,output_tokens\na,1,2\n", ":1: column output_tokens is there twice; rename one of them"),
        ("csv", "prompt,output_tokens\na,many\n", ":2: output_tokens is 'many'; it must be a whole number from 1"),
        ("csv", b"prompt\n\xe9\n", ":2: not UTF-8; save the file as UTF-8"),
        ("csv", "prompt,output_tokens\n", ": no usable conversation: it has no records"),
        *((kind, content, ":1: ") for kind in ("sharegpt", "jsonl") for content in MALFORMED),
    ],
)  # fmt: skip
def test_errors_of_a_file_are_one_line_with_the_position(
    tmp_path: Path, kind: str, content: str | bytes, message: str
) -> None:
    path = write(tmp_path / "data", content)
    assert refusal({"kind": kind, "path": path}).startswith(f"{path}{message}")


def test_filters_that_match_nothing_are_refused(tmp_path: Path) -> None:
    source = sharegpt(tmp_path / "s.json", [conversation("Hello", "Hi")] * 4) | {"filters": {"min_prompt_tokens": 9}}
    assert refusal(source).endswith("no usable conversation: 4 min_prompt_tokens")


def test_sources_without_lengths_refuse_a_length(tmp_path: Path) -> None:
    for source, workload, message in (
        ({"kind": "sharegpt", "path": "x"}, {"prompt_tokens": 3}, "prompt_tokens is set, but source sharegpt"),
        ({"kind": "random"}, {"output_tokens": 3}, "output_tokens is set, but source random"),
        ({"kind": "prefix_repetition"}, {"turns": 3}, "turns is set, but source prefix_repetition"),
        ({"kind": "corpus"}, {"prompt_tokens": 3}, "workload.output_tokens: missing; tokens of each answer"),
        ({"kind": "sharegpt", "path": "x", "tokenizer": "t", "chars_per_token": 3}, {}, "are both given; remove one"),
        ({"kind": "random"}, {"documents": {"count": 1, "tokens": 1, "per_turn": 2}}, "per_turn 2 is greater than count 1"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            scenario(source, **workload)


# -- data sets by the package `datasets`


def test_a_local_data_set_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("datasets.config")
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(config, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "set"
    folder.mkdir()
    jsonl(folder / "train.jsonl", *(conversation(f"q{number}", "abc") for number in range(5)))
    source = {"kind": "huggingface", "dataset": str(folder), "shuffle": False, "chars_per_token": 1}
    sessions = Sessions(scenario(source))
    assert [said_in(plan_of(sessions, number)[0]) for number in range(5)] == [[f"q{number}"] for number in range(5)]
    assert sessions.open()["chat"].digest
    assert "nowhere" in refusal(source | {"dataset": str(tmp_path / "nowhere")})


def test_a_missing_datasets_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    message = refusal({"kind": "huggingface", "dataset": "someone/something"})
    assert message == "data set someone/something: needs the package datasets; pip install datasets"


# -- generated text


@given(st.integers(1, 5000), st.floats(0, 0.999), st.integers(0, 100))
def test_lengths_vary_around_a_mean(mean: int, ratio: float, seed: int) -> None:
    low, high = max(1, int(mean * (1 - ratio) // 1)), -int(-mean * (1 + ratio) // 1)
    drawn = {around(mean, ratio, Random(f"{seed}/{number}")) for number in range(50)}
    assert min(drawn) >= low
    assert max(drawn) <= high


@pytest.mark.parametrize(
    ("lengths", "prompts", "total"),
    [
        ({"input_tokens": 7000, "output_tokens": 3000}, 10, 71_443),
        ({"input_tokens": 12_000, "output_tokens": 1000}, 1, 12_453),
    ],
)
def test_the_draws_of_an_earlier_vllm_have_the_totals_that_it_printed(
    lengths: dict[str, int], prompts: int, total: int
) -> None:
    """Printed by benchmark_serving.py of vLLM 0.8 with seed 0 and a range ratio of 0.1, in a forum thread of June 2025."""
    source = RandomLengths(kind="random", range_ratio=0.1, **lengths)
    assert sum(drawn.prompt for drawn in vllm_draws(source, VllmDraws(prompts=prompts))) == total


def starts(prompts: int, input_tokens: int, output_tokens: int, prefix_tokens: int = 0) -> set[int]:
    """Return the first tokens of drawn prompts; prompts of two draws share their beginning if they share it."""
    lengths = {"input_tokens": input_tokens, "output_tokens": output_tokens, "prefix_tokens": prefix_tokens}
    source = RandomLengths(kind="random", range_ratio=0.1, **lengths)
    return {drawn.start for drawn in vllm_draws(source, VllmDraws(prompts=prompts))}


def test_which_numbers_of_prompts_show_what_the_thread_reports() -> None:
    """7000/3000 keeps the prompts of 7000/1000, 10000/3000 loses them, and 7000/1000 has none of 12000/3000."""
    short, middle, long, last = (
        {prompts: starts(prompts, *lengths) for prompts in range(1, 101)}
        for lengths in ((7000, 1000), (7000, 3000), (10_000, 3000), (12_000, 3000))
    )
    kept = [prompts for prompts in short if short[prompts] == middle[prompts]]
    lost = [prompts for prompts in short if not middle[prompts] & long[prompts]]
    assert [prompts for prompts in kept if prompts in lost and not short[prompts] & last[prompts]] == [7, 9]
    assert (5 in kept, middle[5] == long[5]) == (True, True)
    assert (not short[10] & middle[10], 10 in lost) == (True, True)


@pytest.mark.parametrize("prefix", [2, 100])
def test_the_tokens_of_a_shared_prefix_are_drawn_first(prefix: int) -> None:
    generator = np.random.RandomState(0)
    for low, high, size in ((0, 151_643, prefix), (90, 111, 3), (9, 12, 3)):
        generator.randint(low, high, size)
    expected = {(start + index) % 151_643 for index, start in enumerate(generator.randint(0, 151_643, 3).tolist())}
    assert starts(3, 100, 10, prefix) == expected


@given(st.integers(1, 30), st.integers(0, 2**32 - 1), st.integers(2, 3000), st.integers(2, 3000), st.integers(1, 900))
@settings(max_examples=25)
def test_prompts_of_equal_starts_share_their_beginning(
    prompts: int, seed: int, shorter: int, longer: int, output: int
) -> None:
    shorter, longer = sorted((shorter, longer))
    draws = {"prompts": prompts, "seed": seed}
    texts = Texts(approximate(), 0)
    first, second = (
        Sessions(
            scenario({"kind": "random", "input_tokens": length, "output_tokens": output, "draws": draws}),
            DataContext("x"),
        )
        for length in (shorter, longer)
    )
    for number in range(min(prompts, 3)):
        pieces = [plan_of(sessions, number)[0].ask.messages[-1].pieces[0] for sessions in (first, second)]
        words = [texts.of(piece).split() for piece in pieces]
        same = words[1][: len(words[0]) - 1] == words[0][:-1]
        assert same == (pieces[0].key == pieces[1].key)
        assert plan_of(first, number)[0].ask.messages == plan_of(first, number + prompts)[0].ask.messages


def test_random_requests_have_vllms_lengths() -> None:
    sessions = Sessions(
        scenario({"kind": "random", "input_tokens": 10, "output_tokens": 4, "range_ratio": 0.5, "prefix_tokens": 7})
    )
    turns = [turn for number in range(600) for turn in plan_of(sessions, number)]
    assert len(turns) == 600
    assert set(Counter(turn.input_tokens for turn in turns)) == set(range(12, 23))
    assert set(Counter(turn.ask.output_tokens for turn in turns)) == {2, 3, 4, 5, 6}
    pieces = [turn.ask.messages[0].pieces for turn in turns]
    assert len({prefix for prefix, _ in pieces}) == 1
    assert len({suffix.key for _, suffix in pieces}) == 600


def test_prefixes_are_used_equally_often() -> None:
    sessions = Sessions(scenario({"kind": "prefix_repetition", "prefixes": 7, "prefix_tokens": 5, "suffix_tokens": 3}))
    used = [plan_of(sessions, number)[0].ask.messages[0].pieces[0].key for number in range(70)]
    assert set(Counter(used).values()) == {10}
    assert len({tuple(used[start : start + 7]) for start in range(0, 70, 7)}) > 1


@given(st.integers(0, 10**6), st.integers(1, 4000))
def test_generated_prose_has_about_the_given_length(seed: int, chars: int) -> None:
    for text in (corpus.document(Random(seed), chars), corpus.message(Random(seed), "travel", chars)):
        assert 0 < len(text) <= chars
        assert len(text) > chars - 60
        assert text == text.strip()
        assert "{" not in text


def test_generated_prose_of_a_seed(golden: Callable[[str, str], None]) -> None:
    texts = [corpus.message(Random(number), corpus._NAMES[number], 300) for number in range(4)]
    golden("corpus.txt", "\n---\n".join([*texts, corpus.document(Random("d"), 900)]) + "\n")


def test_generated_prose_follows_the_seed_and_a_subject() -> None:
    scenario_ = scenario({"kind": "corpus"}, prompt_tokens=60, output_tokens=10, turns=3)
    one, same, other = (
        [said_in(turn)[-1] for turn in plan_of(Sessions(scenario_.changed({"seed": seed})), 4)] for seed in (0, 0, 1)
    )
    assert one == same
    assert one != other
    assert len(set(one)) == 3


def test_a_million_sessions_are_lazy(tmp_path: Path) -> None:
    source = sharegpt(tmp_path / "s.json", [conversation("a", "b")])
    sessions = Sessions(scenario(source))
    begun = [sessions.begin(number) for number in (0, 10**6, 10**12)]
    os.truncate(source["path"], 0)  # a read after the opening would fail
    assert [session.index for session in begun] == [0, 10**6, 10**12]
