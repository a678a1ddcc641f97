"""Chats: context of a turn, truncation of long conversations, and recorded answers."""

import base64
import contextlib
import json
import re
import struct
import zlib
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_scenario import small

from inferload.base.errors import UsageError
from inferload.client.requests.bodies import BodySettings, BodyWriter, Texts
from inferload.scenario.scenario import Scenario, load
from inferload.scenario.schema.chat import ContextLimit, Documents
from inferload.workload.chat import DocumentPool, NextRequest, fit
from inferload.workload.content.images import picture_url, png
from inferload.workload.content.messages import Message, Piece, ToolCall, text_message
from inferload.workload.content.prompts import calibrate
from inferload.workload.content.script import Ask, PlannedTurn, TurnReply, outline
from inferload.workload.isolation import Isolation
from inferload.workload.plan.describe import describe
from inferload.workload.sessions import Sessions

EXACT = calibrate(lambda text: [int.from_bytes(word.encode(), "big") for word in text.split()])


def scenario(**workload: Any) -> Scenario:
    """A scenario with a synthetic chat."""
    chat = {"kind": "chat", "prompt_tokens": 10, "output_tokens": 5} | workload
    return small(workload=chat, arrivals={"kind": "poisson", "sessions_per_s": 2})


def plan_of(sessions: Sessions, number: int = 0) -> list[PlannedTurn]:
    return list(outline(sessions.begin(number).script, number))


def messages_of(chat_scenario: Scenario, ask: Ask) -> list[Any]:
    writer = BodyWriter(Texts(EXACT, chat_scenario.seed), BodySettings.of(chat_scenario, "tiny"), Isolation())
    sent_messages: list[Any] = json.loads(writer.body(ask))["messages"]
    return sent_messages


# -- random values


def always(value: float) -> dict[str, Any]:
    """A distribution that is sampled and always has the same value."""
    return {"dist": "uniform", "min": value, "max": value}


@given(
    st.integers(0, 1000),
    st.integers(1, 4),
    st.floats(0, 9),
    st.integers(1, 99),
    st.sampled_from(["synthetic", "corpus"]),
)
def test_constants_equal_degenerate_distributions(
    index: int, turns: int, think_time_s: float, tokens: int, source: str
) -> None:
    laws = {"turns": turns, "think_time_s": think_time_s, "prompt_tokens": tokens, "output_tokens": 7}
    fixed = Sessions(scenario(source={"kind": source}, **laws))
    drawn = Sessions(scenario(source={"kind": source}, **{key: always(value) for key, value in laws.items()}))
    assert plan_of(fixed, index) == plan_of(drawn, index)
    assert [opened.draws for sessions in (fixed, drawn) for opened in sessions.open().values()] == [False, True]


@pytest.mark.parametrize(
    "more", [{name: always(3)} for name in ("turns", "think_time_s", "prompt_tokens", "output_tokens")]
)
def test_a_chat_with_a_distribution_is_random(more: dict[str, Any]) -> None:
    opened = Sessions(scenario(**more)).open()["chat"]
    assert opened.draws


def test_documents_and_random_lengths_are_drawn() -> None:
    beside = Sessions(scenario(documents={"count": 9, "tokens": 20}))
    source = {"kind": "random", "input_tokens": 50, "output_tokens": 5, "range_ratio": 0.5}
    random = Sessions(scenario(source=source, prompt_tokens=None, output_tokens=None))
    for sessions in (beside, random):
        assert sessions.open()["chat"].draws
        assert plan_of(sessions, 1)[0].ask != plan_of(sessions, 2)[0].ask


# -- history


def on_server(endpoint: str = "responses", **workload: Any) -> Scenario:
    """A chat whose history the server keeps."""
    chat = scenario(turns=4, system_prompt_tokens=3, **workload).as_data()["workload"]
    return small(workload=chat | {"history": "server"}, request={"endpoint": endpoint})


def sent_to(server: Scenario, sessions: Sessions, ids: list[str]) -> tuple[list[Ask], list[dict[str, Any]]]:
    """Return the turns of a session, and their bodies. `ids`: of the answers."""
    writer = BodyWriter(Texts(EXACT, 0), BodySettings.of(server, "m"), Isolation("first_line", "this-run"))
    script = sessions.begin(1).script
    asks = [next(script)]
    with contextlib.suppress(StopIteration):
        for number, each in enumerate(ids):
            asks.append(script.send(TurnReply("yes", 5, key=f"answer/1/{number}", response_id=each)))
    return asks, [json.loads(writer.body(ask)) for ask in asks]  # type: ignore[misc, arg-type]


def test_a_history_of_the_server_is_planned_in_full_and_sent_by_id() -> None:
    server = on_server()
    asks, bodies = sent_to(server, Sessions(server), ["resp_a", "resp_b", "resp_c"])
    assert [len(ask.messages) for ask in asks] == [2, 4, 6, 8]
    assert [len(body["input"]) for body in bodies] == [2, 1, 1, 1]
    assert [body.get("previous_response_id") for body in bodies] == [None, "resp_a", "resp_b", "resp_c"]
    assert all(body["store"] is True for body in bodies)
    assert ["this-run" in json.dumps(body) for body in bodies] == [True, False, False, False]
    live, planned = (
        [(turn.ask.messages, turn.input_tokens, turn.new_tokens) for turn in plan_of(Sessions(each), 1)]
        for each in (scenario(turns=4, system_prompt_tokens=3), server)
    )
    assert planned == live
    assert "the server keeps the history" in describe(server)


def test_a_session_ends_where_the_server_gives_no_id() -> None:
    sessions = Sessions(on_server())
    asks, _ = sent_to(on_server(), sessions, ["resp_a", ""])
    assert len(asks) == 2
    assert list(sessions.notes) == ["sessions that ended because the server gave an answer no id"]


def test_a_summary_begins_a_history_of_the_server_anew() -> None:
    server = on_server(context={"limit_tokens": 40, "then": "compact", "summary_tokens": 4})
    asks, bodies = sent_to(server, Sessions(server), ["resp_a", "resp_b", "resp_c"])
    assert [body.get("previous_response_id") for body in bodies] == [None, "resp_a", None, "resp_c"]
    assert [len(body["input"]) for body in bodies] == [2, 1, 2, 1]
    assert [len(ask.messages) for ask in asks] == [2, 4, 2, 4]


def test_a_history_of_the_server_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match=r"history: server needs request\.endpoint responses; it is chat"):
        on_server("chat")
    with pytest.raises(UsageError, match=r"cannot be cut by context\.then truncate"):
        on_server(context={"limit_tokens": 99, "then": "truncate"})


def test_a_recorded_history_is_independent_of_answers() -> None:
    chat_scenario = scenario(turns=3, history="recorded")

    def asked(*answers: str) -> list[Any]:
        script = Sessions(chat_scenario).begin(1).script
        asks = [next(script), *(script.send(TurnReply(answer, 2)) for answer in answers)]
        return [messages_of(chat_scenario, ask) for ask in asks if isinstance(ask, Ask)]

    first, second = asked("yes", "no"), asked("maybe", "perhaps so")
    assert first == second
    assert [len(messages) for messages in first] == [1, 3, 5]
    assert len(first[2][1]["content"].split()) == 5
    live = messages_of(chat_scenario, [*outline(Sessions(scenario(turns=3)).begin(1).script, 1)][2].ask)
    assert [message["content"] for message in live[::2]] == [message["content"] for message in first[2][::2]]


def test_tool_calls_without_results_are_not_resent() -> None:
    script = Sessions(scenario(turns=2)).begin(0).script
    next(script)
    ask = script.send(TurnReply("let me see", 3, tool_calls=(ToolCall("1", "f", "{}"),)))
    assert isinstance(ask, Ask)
    assert ask.messages[1].tool_calls == ()


def test_system_prompts_are_shared_or_per_session() -> None:
    for by, different in (("run", 1), ("session", 5)):
        sessions = Sessions(scenario(system_prompt_tokens=7, system_prompt_shared_by=by))
        firsts = [plan_of(sessions, number)[0].ask.messages[0] for number in range(5)]
        assert {(message.role, message.tokens) for message in firsts} == {("system", 7)}
        assert len({message.pieces for message in firsts}) == different


# -- documents


def test_documents_are_part_of_the_message_and_shared() -> None:
    documents = {"count": 4, "tokens": {"dist": "uniform", "min": 20, "max": 40}, "per_turn": 2, "zipf": 0}
    before, after = (scenario(documents=documents | {"position": where}) for where in ("before", "after"))
    turns = [plan_of(Sessions(before), number)[0] for number in range(30)]
    assert all(len(turn.ask.messages[0].pieces) == 3 for turn in turns)
    document_pieces = {piece for turn in turns for piece in turn.ask.messages[0].pieces[:2]}
    assert len(document_pieces) == 4
    assert {piece.key for piece in document_pieces} == {f"shared/document/{number}" for number in range(4)}
    behind = plan_of(Sessions(after))[0].ask.messages[0].pieces
    assert behind == (*turns[0].ask.messages[0].pieces[2:], *turns[0].ask.messages[0].pieces[:2])
    text = messages_of(before, turns[0].ask)[0]["content"]
    assert len(text.split()) == turns[0].input_tokens


@given(st.integers(1, 30), st.floats(0, 6), st.integers(0, 1000), st.data())
def test_documents_of_a_turn_differ(count: int, zipf: float, seed: int, data: st.DataObject) -> None:
    per_turn = data.draw(st.integers(1, count))
    shelf = DocumentPool(Documents(count=count, tokens=5, per_turn=per_turn, zipf=zipf), Piece, 0)  # type: ignore[arg-type]
    drawn = shelf.draw(Random(seed))
    assert len(set(drawn)) == per_turn
    assert set(drawn) <= set(range(count))


# -- images


def test_images_are_valid_png_files_of_the_given_size() -> None:
    for width, height in ((1, 1), (33, 17), (64, 48)):
        data = png("k", width, height)
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        chunks, offset = {}, 8
        while offset < len(data):
            (size,), name = struct.unpack(">I", data[offset : offset + 4]), data[offset + 4 : offset + 8]
            body, check = data[offset + 8 : offset + 8 + size], data[offset + 8 + size : offset + 12 + size]
            assert struct.unpack(">I", check)[0] == zlib.crc32(name + body)
            chunks[name], offset = body, offset + 12 + size
        assert struct.unpack(">II", chunks[b"IHDR"][:8]) == (width, height)
        assert len(zlib.decompress(chunks[b"IDAT"])) == height * (1 + 3 * width)
    assert png("k", 33, 17) == png("k", 33, 17) != png("l", 33, 17)


def test_messages_have_images() -> None:
    chat_scenario = scenario(images={"per_message": 2, "width_px": 20, "height_px": 10, "variants": 3})
    asks = [plan_of(Sessions(chat_scenario), number)[0].ask for number in range(12)]
    assert {len(ask.messages[0].images) for ask in asks} == {2}
    assert len({url for ask in asks for url in ask.messages[0].images}) == 3
    first, second, text = messages_of(chat_scenario, asks[0])[0]["content"]
    assert (first["type"], second["type"], text["type"]) == ("image_url", "image_url", "text")
    assert base64.b64decode(first["image_url"]["url"].partition(",")[2]).startswith(b"\x89PNG")
    assert picture_url("a", 2, 2).startswith("data:image/png;base64,")
    elsewhere = scenario(images={"url": "http://pictures/1.png"})
    assert plan_of(Sessions(elsewhere))[0].ask.messages[0].images == ("http://pictures/1.png",)


# -- the limit of a context


@given(
    st.sampled_from(["stop", "truncate", "compact"]),
    st.lists(st.integers(1, 50), max_size=10).filter(lambda message_tokens: len(message_tokens) % 2 == 0),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 400),
)
def test_the_context_limit_is_kept(
    then: Any, message_tokens: list[int], question: int, output: int, limit: int
) -> None:
    earlier = tuple(text_message("user", f"m{index}", tokens) for index, tokens in enumerate(message_tokens))
    head = (text_message("system", "s", 10),)
    rule = ContextLimit(limit_tokens=limit, then=then, summary_tokens=15)
    fitted = fit(rule, NextRequest(head, earlier, text_message("user", "q", question), output), "0/0")
    total = 10 + sum(message_tokens) + question + output
    if total <= limit:
        assert fitted == type(fitted)(earlier, text_message("user", "q", question))
    elif fitted.question is None:
        assert (fitted.history, fitted.note) == ((), "stopped")
        assert then != "truncate" or 10 + question + output > limit
    else:
        assert fitted.note == {"truncate": "truncated", "compact": "compacted"}[then]
        assert 10 + sum(message.tokens or 0 for message in (*fitted.history, fitted.question)) + output <= limit
        assert earlier[len(earlier) - len(fitted.history) :] == fitted.history  # the newest messages are kept
        assert len(fitted.history) % 2 == 0


@pytest.mark.parametrize(
    ("then", "turns", "notes", "longest"),
    [
        ("stop", 4, {"context stopped": 1}, 55),
        ("truncate", 8, {"context truncated": 4}, 55),
        ("compact", 8, {"context compacted": 2}, 55),
    ],
)
def test_a_conversation_grows_to_its_limit(then: str, turns: int, notes: dict[str, int], longest: int) -> None:
    # Prompts have 10, 25, 40, 55, 70 ... tokens, and each answer has 5.
    sessions = Sessions(scenario(turns=8, context={"limit_tokens": 63, "then": then, "summary_tokens": 8}))
    plan = plan_of(sessions)
    assert len(plan) == turns
    assert max(turn.input_tokens or 0 for turn in plan) == longest
    assert sessions.notes == notes


lengths = st.one_of(
    st.integers(1, 60),
    st.builds(
        lambda low, more: {"dist": "uniform", "min": low, "max": low + more}, st.integers(1, 60), st.integers(0, 60)
    ),
    st.builds(
        lambda mean, most: {"dist": "exponential", "mean": mean, "max": most}, st.integers(1, 60), st.integers(1, 90)
    ),
)


@given(lengths, lengths, st.integers(0, 40), st.integers(1, 200), st.sampled_from(["stop", "truncate", "compact"]))
def test_each_session_of_a_scenario_sends_a_turn(prompt: Any, output: Any, system: int, limit: int, then: str) -> None:
    workload = {"prompt_tokens": prompt, "output_tokens": output, "system_prompt_tokens": system}
    try:
        loaded = scenario(**workload, context={"limit_tokens": limit, "then": then})
    except UsageError:
        return
    sessions = Sessions(loaded)
    assert all(plan_of(sessions, number) for number in range(20))


def test_the_documents_of_a_first_message_count_for_the_limit() -> None:
    documents = {"count": 3, "tokens": 20, "per_turn": 2}
    scenario(documents=documents, context={"limit_tokens": 55})
    with pytest.raises(UsageError, match=r"a first message and its answer can have 55 tokens.*limit_tokens 54"):
        scenario(documents=documents, context={"limit_tokens": 54})


def test_truncation_is_described_in_the_plan() -> None:
    text = describe(scenario(turns=8, context={"limit_tokens": 63, "then": "truncate"}))
    match = re.search(r"context truncated: (\d+) times in (\d+) drawn sessions", text)
    assert match is not None
    assert int(match[1]) == 4 * int(match[2])


def test_messages_of_unknown_length_count_as_zero() -> None:
    unknown = Message("assistant", (Piece("a", None, "text"),))
    rule = ContextLimit(limit_tokens=20, then="stop")
    assert fit(rule, NextRequest((), (unknown,) * 9, text_message("user", "q", 10), 10), "").question is not None


# -- bundled files


@pytest.mark.parametrize("name", ["rag", "random-7000x1000", "chat-sharegpt"])
def test_bundled_scenarios_are_valid(name: str) -> None:
    assert load(name).name == name


def test_the_bundled_random_requests_are_those_of_the_benchmark() -> None:
    sessions = Sessions(load("random-7000x1000"))
    turns = [turn for number in range(300) for turn in plan_of(sessions, number)]
    assert len(turns) == 300
    assert all(6300 <= (turn.input_tokens or 0) <= 7700 for turn in turns)
    assert all(900 <= (turn.ask.output_tokens or 0) <= 1100 for turn in turns)


def test_the_bundled_documents_are_long_and_shared() -> None:
    sessions = Sessions(load("rag"))
    firsts = [plan_of(sessions, number)[0] for number in range(60)]
    documents = Counter(turn.ask.messages[1].pieces[0].key for turn in firsts)
    assert documents.most_common(1)[0][1] >= 3
    assert len(documents) > 20
    assert sum(turn.input_tokens or 0 for turn in firsts) / 60 > 1000
